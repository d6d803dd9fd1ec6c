"""Runs checked queries in the engine, and reads what comes out of it.

The rows of a reply come as an Arrow stream with bounds; if that has not all of them, they all go to a Parquet file that
the sandbox writes itself.
"""

import asyncio
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from tracelake.errors import TraceError
from tracelake.query.engine.requests import EngineLimits, EngineParameter, EngineQuery, Relation
from tracelake.query.engine.server import EngineServer
from tracelake.query.parts import BoundScalar, BoundValue, Columns
from tracelake.query.relations import LocalRelation

_TYPE_KEY = b"tracelake.type"
"""Metadata of a field: DuckDB's type. Named here too, since the module that sets it loads DuckDB."""
_DESCRIBED = "relation"
_DESCRIBE_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineResources:
    """What one query may use."""

    memory_bytes: int
    threads: int
    export_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutedQuery:
    columns: list[tuple[str, str]]
    """Names and DuckDB's types."""
    stream: bytes
    """The first rows, as an Arrow stream."""
    row_count: int
    """Of the whole result."""
    truncated: bool
    """The stream does not have all rows."""

    def read(self) -> pa.Table:
        """The rows of the stream. Arrays are checked: the process that wrote them has read what others wrote."""
        try:
            with pa.ipc.open_stream(self.stream) as reader:
                table = reader.read_all()
            table.validate(full=True)
        except pa.ArrowException as error:
            raise TraceError("query_failed") from error
        return table


class QueryExecution:
    def __init__(self, engine: EngineServer, resources: EngineResources) -> None:
        self._engine = engine
        self._resources = resources
        self._endings: set[asyncio.Task[None]] = set()

    async def describe(self, path: Path, seconds: float) -> Columns:
        """The columns of a Parquet file, which may be hostile."""
        query = EngineQuery(
            sql=f"SELECT * FROM {_DESCRIBED} LIMIT 0",  # noqa: S608 - a constant
            relations={_DESCRIBED: Relation(files=(str(path),))},
            limits=self._limits(seconds, 1, _DESCRIBE_BYTES),
        )
        stream, _, _ = await self._run(query, nullcontext())
        return dict(_columns(stream))

    async def run(
        self,
        sql: str,
        parameters: Mapping[str, BoundValue],
        relations: Mapping[str, LocalRelation],
        *,
        slot: AbstractAsyncContextManager[None] | None = None,
        directory: Path | None = None,
        limit: int | None,
        export: Path,
        seconds: float,
        inline_rows: int,
        inline_bytes: int,
    ) -> ExecutedQuery:
        """`slot` is entered first, and left once the process has ended, which takes longer than its result. `directory`
        has the files of the relations and nothing else. `export` gets all rows if the stream cannot have them. Raises
        TraceError with no text of the engine."""
        query = EngineQuery(
            sql=sql,
            limit=limit,
            relations={name: relation.to_relation() for name, relation in relations.items()},
            parameters={name: to_parameter(value) for name, value in parameters.items()},
            directory=str(directory) if directory is not None else None,
            limits=self._limits(seconds, inline_rows, inline_bytes),
            export=str(export),
        )
        stream, row_count, truncated = await self._run(query, slot or nullcontext())
        return ExecutedQuery(columns=_columns(stream), stream=stream, row_count=row_count, truncated=truncated)

    def _limits(self, seconds: float, rows: int, size: int) -> EngineLimits:
        resources = self._resources
        return EngineLimits(
            deadline_seconds=seconds,
            memory_bytes=resources.memory_bytes,
            threads=resources.threads,
            result_rows=rows,
            result_bytes=size,
            export_bytes=resources.export_bytes,
        )

    async def _run(self, query: EngineQuery, slot: AbstractAsyncContextManager[None]) -> tuple[bytes, int, bool]:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(slot)
            execution = await stack.enter_async_context(self._engine.run(query))
            stream = b"".join([chunk async for chunk in execution.chunks()])
            report = await execution.report()
            ending = asyncio.create_task(stack.pop_all().aclose())
        self._endings.add(ending)
        ending.add_done_callback(self._endings.discard)
        return stream, max(report.rows, report.exported_rows), report.truncated


def _columns(stream: bytes) -> list[tuple[str, str]]:
    try:
        with pa.ipc.open_stream(stream) as reader:
            schema = reader.schema
    except pa.ArrowException as error:
        raise TraceError("query_failed") from error
    return [(field.name, (field.metadata or {}).get(_TYPE_KEY, b"").decode("utf-8", "replace")) for field in schema]


def to_parameter(value: BoundValue) -> EngineParameter:
    """The text of the query casts each parameter to its declared type, and each item of a list."""
    match value:
        case None | bool() | int() | float() | str() | bytes():
            return _scalar(value)
    items = [_scalar(item).value for item in value]
    return EngineParameter("VARCHAR[]", tuple(item for item in items if not isinstance(item, tuple)))


def _scalar(value: BoundScalar) -> EngineParameter:
    match value:
        case None:
            return EngineParameter("VARCHAR", None)
        case bool():
            return EngineParameter("BOOLEAN", "true" if value else "false")
        case int():
            return EngineParameter("BIGINT" if -(2**63) <= value < 2**63 else "HUGEINT", str(value))
        case float():
            return EngineParameter("DOUBLE", repr(value))
        case bytes():
            return EngineParameter("BLOB", value.hex())
    return EngineParameter("VARCHAR", value)
