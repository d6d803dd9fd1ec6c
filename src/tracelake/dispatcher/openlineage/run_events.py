"""Run events of the OpenLineage specification (2-0-2), as pure values.

A run is an attempt: its id follows from the task and the number of the attempt, so that an event that is sent twice, by
whomever, is the same. All attempts of a task have one parent run, the task. Names of jobs and datasets are in a
namespace of their org.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid5

from tracelake import __version__
from tracelake.model.columns import DatasetColumns
from tracelake.model.job import Job
from tracelake.wire.units import TaskInput, Unit

SPEC = "https://openlineage.io/spec"
SCHEMA_URL = f"{SPEC}/2-0-2/OpenLineage.json#/$defs/RunEvent"
PRODUCER = f"urn:tracelake:dispatcher:{__version__}"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_SECOND = int((datetime(9999, 12, 31, tzinfo=UTC) - _EPOCH).total_seconds())

Generation = tuple[UUID, UUID]
"""dataset_uuid, dataset_version."""


@dataclass(frozen=True, slots=True)
class AttemptNote:
    """A start or an end of an attempt, with its task as it is now."""

    task_id: UUID
    attempt: int
    event_type: str
    event_time: datetime
    error: str | None
    inputs: Sequence[TaskInput]
    unit: Unit | None


def run_id_of(task_id: UUID, attempt: int) -> UUID:
    return uuid5(task_id, f"attempt {attempt}")


def namespace_of(prefix: str, org: str) -> str:
    """No name of an org has a dot, so that two orgs never share a namespace."""
    return f"{prefix}.{org}"


def make_event(
    note: AttemptNote,
    job: Job,
    names: Mapping[UUID, str],
    columns: Mapping[Generation, DatasetColumns],
    prefix: str,
    *,
    endless: bool = False,
) -> dict[str, Any]:
    """The event. `names` are those of datasets; one of which the name is gone is left out."""
    namespace = namespace_of(prefix, job.org)
    name = f"{job.dag_name}.{job.name}"
    inputs = dict.fromkeys((item.dataset_uuid, item.dataset_version) for item in note.inputs)
    outputs = dict.fromkeys((output.dataset_uuid, output.dataset_version) for output in job.outputs)
    return {
        "eventType": note.event_type,
        "eventTime": _time(note.event_time),
        "producer": PRODUCER,
        "schemaURL": SCHEMA_URL,
        "run": {"runId": str(run_id_of(note.task_id, note.attempt)), "facets": _run_facets(note, job, namespace)},
        "job": {"namespace": namespace, "name": name, "facets": _job_facets(endless=endless)},
        "inputs": [_dataset(key, names, columns, namespace) for key in inputs if key[0] in names],
        "outputs": [_dataset(key, names, columns, namespace) for key in outputs if key[0] in names],
    }


def _run_facets(note: AttemptNote, job: Job, namespace: str) -> dict[str, Any]:
    facets = {
        "parent": _facet(
            "1-0-1/ParentRunFacet",
            run={"runId": str(note.task_id)},
            job={"namespace": namespace, "name": job.dag_name},
        ),
        "tracelake_attempt": {
            "_producer": PRODUCER,
            "_schemaURL": "urn:tracelake:openlineage:attempt:1",
            "taskId": str(note.task_id),
            "attempt": note.attempt,
            "operator": job.operator,
        },
    }
    facets |= _unit_facets(note.unit, in_seconds=job.units is not None and job.units.by == "time")
    if note.event_type == "FAIL":
        message = note.error or "The attempt ended without a report."
        facets["errorMessage"] = _facet("1-0-1/ErrorMessageRunFacet", message=message, programmingLanguage="Python")
    return facets


def _unit_facets(unit: Unit | None, *, in_seconds: bool) -> dict[str, Any]:
    """A window of time is the nominal time of the run; a range of blocks, or a partition, has a facet of its own."""
    if unit is None:
        return {}
    start, end = unit.blocks
    if in_seconds and start is not None and end is not None and end < _LAST_SECOND:
        return {
            "nominalTime": _facet(
                "1-0-1/NominalTimeRunFacet",
                nominalStartTime=_time(_EPOCH + timedelta(seconds=start)),
                nominalEndTime=_time(_EPOCH + timedelta(seconds=end + 1)),
            )
        }
    facet: dict[str, Any] = {"_producer": PRODUCER, "_schemaURL": "urn:tracelake:openlineage:unit:1"}
    if start is not None and end is not None:
        facet |= {"firstBlock": start, "lastBlock": end}
    if unit.partition_key is not None:
        facet["partition"] = unit.partition_key
    return {"tracelake_unit": facet}


def _job_facets(*, endless: bool) -> dict[str, Any]:
    return {
        "jobType": _facet(
            "2-0-3/JobTypeJobFacet",
            processingType="STREAMING" if endless else "BATCH",
            integration="TRACE",
            jobType="JOB",
        )
    }


def _dataset(
    key: Generation, names: Mapping[UUID, str], columns: Mapping[Generation, DatasetColumns], namespace: str
) -> dict[str, Any]:
    facets: dict[str, Any] = {"version": _facet("1-0-1/DatasetVersionDatasetFacet", datasetVersion=str(key[1]))}
    dataset_columns = columns.get(key)
    if dataset_columns is not None and dataset_columns.columns:
        fields = [
            {
                "name": column.name,
                "type": column.type,
                **({"description": column.description} if column.description else {}),
            }
            for column in dataset_columns.columns
        ]
        facets["schema"] = _facet("1-1-1/SchemaDatasetFacet", fields=fields)
    return {"namespace": namespace, "name": names[key[0]], "facets": facets}


def _facet(path: str, **fields: Any) -> dict[str, Any]:
    """`path`: the version of the facet and its name."""
    name = path.partition("/")[2]
    return {"_producer": PRODUCER, "_schemaURL": f"{SPEC}/facets/{path}.json#/$defs/{name}", **fields}


def _time(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
