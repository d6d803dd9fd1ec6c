"""The relation `_check_results`: what came of the checks of an org's datasets, for queries of people.

Its rows are in the state database, for which this service has no credential: the Dispatcher lists them, for the org of
the verified caller alone. The engine gets them as an Arrow file, like rows of buffered datasets.

No dataset can have the name, since names of datasets begin with a letter. So a dataset neither hides the relation nor
takes its place in a query that was written before it.
"""

import asyncio
from collections.abc import Iterable, Sequence
from pathlib import Path
from uuid import UUID

import msgspec
import pyarrow as pa

from tracelake.errors import TraceError
from tracelake.model.dag import ColumnType
from tracelake.query.broker import TableFile, arrow_schema
from tracelake.query.control import ControlPlane
from tracelake.query.files import make_readable
from tracelake.query.pruning import SimpleFilter
from tracelake.wire.checks import OrgCheckResult, OrgCheckResultsRequest
from tracelake.wire.query import ReadableRelation
from tracelake.wire.task_calls import TableColumn

NAME = "_check_results"
MOST_RESULTS = 10_000
"""The newest ones of the dataset and the check that the query asks for, if it asks for one."""
_SAMPLE = "sample_rows"

COLUMNS = (
    TableColumn(name="checked_at", type=ColumnType.TIMESTAMP),
    TableColumn(name="dataset", type=ColumnType.TEXT),
    TableColumn(name="dataset_version", type=ColumnType.TEXT),
    TableColumn(name="job", type=ColumnType.TEXT),
    TableColumn(name="unit", type=ColumnType.TEXT),
    TableColumn(name="check_name", type=ColumnType.TEXT),
    TableColumn(name="kind", type=ColumnType.TEXT),
    TableColumn(name="severity", type=ColumnType.TEXT),
    TableColumn(name="verdict", type=ColumnType.TEXT),
    TableColumn(name="checked_rows", type=ColumnType.INT64),
    TableColumn(name="offending_rows", type=ColumnType.INT64),
    TableColumn(name="message", type=ColumnType.TEXT),
    TableColumn(name=_SAMPLE, type=ColumnType.JSON),
    TableColumn(name="task_id", type=ColumnType.TEXT),
    TableColumn(name="attempt", type=ColumnType.INT32),
    TableColumn(name="output_index", type=ColumnType.INT32),
)

RELATION = ReadableRelation(
    name=NAME, dataset_uuid=UUID(int=0), dataset_version=UUID(int=0), storage="system", columns=list(COLUMNS)
)
_SCHEMA = arrow_schema(COLUMNS)


async def write_check_results(
    control: ControlPlane,
    org: str,
    path: Path,
    needed: frozenset[str],
    filters: Iterable[SimpleFilter],
    max_bytes: int,
) -> TableFile:
    """Raises `query_too_large` beyond `max_bytes`."""
    equal = {item.column: item.value for item in filters if item.operator == "=" and isinstance(item.value, str)}
    request = OrgCheckResultsRequest(
        org=org, dataset=equal.get("dataset"), check=equal.get("check_name"), samples=_SAMPLE in needed
    )
    batches: list[pa.RecordBatch] = []
    size = 0
    async for results in control.check_results(request, MOST_RESULTS):
        batch = await asyncio.to_thread(to_batch, results)
        size += batch.nbytes
        if size > max_bytes:
            raise TraceError("query_too_large")
        batches.append(batch)
    await asyncio.to_thread(_write, batches, path)
    return TableFile(path=path, size=size)


def to_batch(results: Sequence[OrgCheckResult]) -> pa.RecordBatch:
    rows = [_row(result) for result in results]
    columns = zip(*rows, strict=True) if rows else ([] for _ in _SCHEMA)
    arrays = [pa.array(list(values), field.type) for values, field in zip(columns, _SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)


def _row(result: OrgCheckResult) -> tuple[object, ...]:
    """In the order of `COLUMNS`."""
    verdict = "passed" if result.passed else "failed" if result.severity == "error" else "warned"
    return (
        result.checked_at,
        result.dataset,
        str(result.dataset_version),
        result.job,
        result.unit,
        result.name,
        result.kind.value,
        result.severity,
        verdict,
        result.rows,
        result.offending_rows,
        result.message,
        msgspec.json.encode(result.sample).decode(),
        str(result.task_id),
        result.attempt,
        result.output_index,
    )


def _write(batches: Sequence[pa.RecordBatch], path: Path) -> None:
    with path.open("wb") as file, pa.ipc.new_file(file, _SCHEMA) as writer:
        for batch in batches:
            writer.write_batch(batch)
    make_readable(path)
