"""What the OpenLineage specification requires of a run event, written down by hand for the fields that are sent."""

import re
from datetime import datetime
from typing import Any
from uuid import UUID

_URI = re.compile(r"[a-z][a-z0-9+.-]*:\S+")
_TYPES = {"START", "RUNNING", "COMPLETE", "ABORT", "FAIL", "OTHER"}
_FACETS: dict[str, dict[str, type]] = {
    "nominalTime": {"nominalStartTime": str},
    "parent": {"run": dict, "job": dict},
    "errorMessage": {"message": str, "programmingLanguage": str},
    "jobType": {"processingType": str, "integration": str},
    "schema": {"fields": list},
    "version": {"datasetVersion": str},
}
"""Required fields of each, besides those that every facet has."""


def check_run_event(event: dict[str, Any]) -> None:
    """Fails on whatever a strict receiver would refuse."""
    assert event.keys() == {"eventType", "eventTime", "producer", "schemaURL", "run", "job", "inputs", "outputs"}
    assert event["eventType"] in _TYPES
    check_time(event["eventTime"])
    assert _URI.fullmatch(event["producer"])
    assert re.fullmatch(r"https://openlineage\.io/spec/2-0-\d/OpenLineage\.json#/\$defs/RunEvent", event["schemaURL"])
    check_uuid(event["run"]["runId"])
    check_name(event["job"])
    check_facets(event["run"]["facets"])
    check_facets(event["job"]["facets"])
    for dataset in (*event["inputs"], *event["outputs"]):
        check_name(dataset)
        check_facets(dataset["facets"])


def check_facets(facets: dict[str, Any]) -> None:
    for name, facet in facets.items():
        assert _URI.fullmatch(facet["_producer"])
        assert _URI.fullmatch(facet["_schemaURL"])
        assert name in _FACETS or name.startswith("tracelake_"), "a facet of one's own has a prefix"
        for field, kind in _FACETS.get(name, {}).items():
            assert isinstance(facet[field], kind), (name, field)
    if "parent" in facets:
        check_uuid(facets["parent"]["run"]["runId"])
        check_name(facets["parent"]["job"])
    if "nominalTime" in facets:
        check_time(facets["nominalTime"]["nominalStartTime"])
        check_time(facets["nominalTime"]["nominalEndTime"])
    if "jobType" in facets:
        assert facets["jobType"]["processingType"] in {"BATCH", "STREAMING"}
    for column in facets.get("schema", {"fields": []})["fields"]:
        assert isinstance(column["name"], str)
        assert isinstance(column["type"], str)


def check_name(item: dict[str, Any]) -> None:
    assert isinstance(item["namespace"], str)
    assert item["namespace"]
    assert isinstance(item["name"], str)
    assert item["name"]


def check_uuid(text: str) -> None:
    assert str(UUID(text)) == text


def check_time(text: str) -> None:
    assert datetime.fromisoformat(text).tzinfo is not None
