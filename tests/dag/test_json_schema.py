"""The JSON Schema takes what is read, and knows every field that is read."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given

from tests.dag.rendering import documents
from tests.dag.test_reading import EXAMPLES, FULL
from tracelake.dag import json_schema

jsonschema_rs = pytest.importorskip("jsonschema_rs")


def valid(document: Any) -> bool:
    return bool(jsonschema_rs.Draft202012Validator(json_schema()).is_valid(document))


def test_it_is_a_json_schema() -> None:
    jsonschema_rs.meta.validate(json_schema())
    assert json.loads(json.dumps(json_schema())) == json_schema()


@given(document=documents())
def test_good_documents(document: dict[str, Any]) -> None:
    assert valid(document)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples(path: Path) -> None:
    assert valid(yaml.safe_load(path.read_text(encoding="utf-8")))


def test_the_document_with_everything() -> None:
    document = yaml.safe_load(FULL)
    document["jobs"][0]["config"].pop("date")  # PyYAML makes an object of it
    assert valid(document)


@pytest.mark.parametrize(
    "change",
    [
        {"name": "Upper"},
        {"jobs": []},
        {"more": 1},
        {"defaults": {"priority": "high"}},
        {"defaults": {"max_queue_age": "5 minutes"}},
        {"publish": {"X": {"from": {"job": "a"}, "storage": "s3"}}},
        {"publish": {"x": {"from": {"job": "a"}}}},
        {"jobs": [{"name": "a", "activation": "source", "source": {"kind": "never"}}]},
        {"jobs": [{"name": "a", "activation": "reactive", "inputs": [{"from": {"job": "a", "dataset": "b"}}]}]},
    ],
)
def test_bad_documents(change: dict[str, Any]) -> None:
    good = {"name": "d", "jobs": [{"name": "a", "activation": "source", "source": {"kind": "manual"}}]}
    assert valid(good)
    assert not valid(good | change)
