"""One engine for all tests of a module."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tracelake.query.engine.requests import EngineLimits, EngineQuery, EngineReport, Relation
from tracelake.query.engine.server import EngineServer


@dataclass
class Engine:
    server: EngineServer
    runner: asyncio.Runner

    def ask(self, sql: str, **parts: Any) -> tuple[pa.Table, EngineReport]:
        return self.runner.run(answer(self.server, EngineQuery(sql=sql, **parts)))

    def rows(self, sql: str, **parts: Any) -> list[tuple[Any, ...]]:
        table, _ = self.ask(sql, **parts)
        return list(zip(*(column.to_pylist() for column in table.columns), strict=True))

    def value(self, sql: str, **parts: Any) -> Any:
        ((value,),) = self.rows(sql, **parts)
        return value


async def answer(server: EngineServer, query: EngineQuery) -> tuple[pa.Table, EngineReport]:
    async with server.run(query) as execution:
        stream = b"".join([chunk async for chunk in execution.chunks()])
        report = await execution.report()
    assert report.bytes == len(stream)
    table = pa.ipc.open_stream(stream).read_all()
    table.validate(full=True)
    assert table.num_rows == report.rows
    return table, report


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with asyncio.Runner() as runner:
        server = EngineServer(spares=0)  # every process below it is one of a query
        runner.run(server.start())
        yield Engine(server, runner)
        runner.run(server.close())


def store(path: Path, table: pa.Table, **options: Any) -> Relation:
    """A Parquet file that the sandbox may read."""
    pq.write_table(table, path, **options)
    return relation_of(path)


def relation_of(path: Path, **parts: Any) -> Relation:
    path.chmod(0o444)
    return Relation(files=(str(path),), **parts)


SMALL = EngineLimits(deadline_seconds=60, memory_bytes=128 * 1024 * 1024)
