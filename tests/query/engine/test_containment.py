"""Hostile queries and files: contained, with a code and nothing else, and the engine answers the next query."""

import asyncio
import os
import random
import signal
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.query.engine.conftest import SMALL, Engine, answer, relation_of, store
from tests.sandbox.conftest import descendants
from tests.sandbox.test_endings import is_running, until
from tracelake.errors import TraceError
from tracelake.query.engine.requests import FAILURES, MIB, EngineLimits, EngineQuery, Relation
from tracelake.query.engine.server import EngineServer

ENDLESS = "SELECT sum(a.i * b.i) FROM range(10_000_000) a(i), range(10_000_000) b(i)"


@pytest.fixture(autouse=True)
def still_answers(engine: Engine) -> Iterator[None]:
    yield
    assert engine.value("SELECT 42") == 42
    engine.runner.run(until(lambda: not descendants(engine.server.pid or 0)))


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT list(i) FROM range(1_000_000_000) t(i)",
        "SELECT repeat('x', 2_000_000_000)",
        "SELECT rpad('x', 2_000_000_000, 'y')",
        "SELECT string_agg(repeat('x', 1_000_000)) FROM range(100_000)",
        "SELECT count(*) FROM (SELECT DISTINCT i, repeat('x', 100) FROM range(100_000_000) t(i))",
    ],
)
def test_memory_bombs_end(engine: Engine, sql: str) -> None:
    with pytest.raises(TraceError) as caught:
        engine.ask(sql, limits=SMALL)
    assert caught.value.code in ("query_out_of_memory", "query_value_invalid", "query_engine_crashed")


def test_deadline_ends_a_query(engine: Engine) -> None:
    limits = EngineLimits(deadline_seconds=2.0)
    with pytest.raises(TraceError, match="query_timeout"):
        engine.ask(ENDLESS, limits=limits)


def test_cancelled_query_leaves_nothing(engine: Engine, tmp_path: Path) -> None:
    path = tmp_path / "export"

    async def cancel() -> None:
        query = EngineQuery(sql=ENDLESS, export=str(path), limits=EngineLimits(export_bytes=MIB))
        task = asyncio.create_task(answer(engine.server, query))
        await until(lambda: len(descendants(engine.server.pid or 0)) >= 2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        # The block has been left: the process has ended already.
        await until(lambda: not descendants(engine.server.pid or 0))

    engine.runner.run(cancel())
    assert not path.exists()


def test_reader_that_stops_ends_the_query(engine: Engine) -> None:
    async def leave_early() -> bytes:
        sql = "SELECT i FROM range(100_000_000) t(i)"
        limits = EngineLimits(result_rows=100_000_000, result_bytes=1024 * MIB)
        async with engine.server.run(EngineQuery(sql=sql, limits=limits)) as execution:
            async for chunk in execution.chunks():
                return chunk
        return b""

    assert engine.runner.run(leave_early())


def test_forty_queries_at_once(engine: Engine, tmp_path: Path) -> None:
    relation = store(tmp_path / "rows", pa.table({"i": list(range(1000))}))

    async def ask_many() -> list[int]:
        queries = [
            EngineQuery(sql=f"SELECT sum(i) + {number} FROM r", relations={"r": relation}, limits=SMALL)
            for number in range(40)
        ]
        results = await asyncio.gather(*(answer(engine.server, query) for query in queries))
        return [int(table.column(0)[0].as_py()) for table, _ in results]

    assert engine.runner.run(ask_many()) == [499_500 + number for number in range(40)]


def test_killed_fork_server_is_replaced() -> None:
    async def kill_and_ask() -> None:
        server = EngineServer(spares=0)
        await server.start()
        try:
            first = server.pid
            assert first
            await until(lambda: not descendants(first))  # the trials of the start have ended
            task = asyncio.create_task(answer(server, EngineQuery(sql=ENDLESS)))
            await until(lambda: len(descendants(first)) >= 2)
            below = descendants(first)
            os.kill(first, signal.SIGKILL)
            with pytest.raises(TraceError, match="sandbox_lost"):
                await task
            await until(lambda: server.pid not in (None, first))
            table, _ = await answer(server, EngineQuery(sql="SELECT 1 AS a"))
            assert table.to_pylist() == [{"a": 1}]
            assert not below & descendants(os.getpid())
        finally:
            await server.close()

    asyncio.run(kill_and_ask())


def test_spares_serve_one_query_each() -> None:
    async def ask_with_spares() -> None:
        server = EngineServer(spares=2)
        await server.start()
        try:
            spares: set[int] = set()
            for number in range(3):
                await until(lambda: len(descendants(server.pid or 0)) == 4)  # two monitors, two first processes
                before = descendants(server.pid or 0)
                spares |= before
                table, _ = await answer(server, EngineQuery(sql=f"SELECT {number} AS a"))
                assert table.to_pylist() == [{"a": number}]
                await until(lambda: len(before & descendants(server.pid or 0)) == 2)  # noqa: B023
            queries = [EngineQuery(sql=f"SELECT {number} AS a") for number in range(6)]
            results = await asyncio.gather(*(answer(server, query) for query in queries))
            assert [table.to_pylist() for table, _ in results] == [[{"a": number}] for number in range(6)]
            await until(lambda: len(descendants(server.pid or 0)) == 4)
            doomed = descendants(server.pid or 0)
            for pid in doomed:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)  # spares that die are replaced
            await until(lambda: not any(map(is_running, doomed)))
            table, _ = await answer(server, EngineQuery(sql="SELECT 1 AS a"))
            assert table.num_rows == 1
            await until(lambda: len(descendants(server.pid or 0)) == 4)
            spares |= descendants(server.pid or 0)
        finally:
            await server.close()
        await until(lambda: not any(map(is_running, spares)))

    asyncio.run(ask_with_spares())


def test_unreadable_and_missing_files(engine: Engine, tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="sandbox_file_missing"):
        engine.ask("SELECT 1", relations={"r": Relation(files=(str(tmp_path / "missing"),))})


VALID = pa.table({"a": list(range(10_000)), "s": [f"text {number}" for number in range(10_000)]})


def hostile_files(directory: Path) -> Iterator[Path]:
    valid = directory / "valid"
    pq.write_table(VALID, valid)
    content = valid.read_bytes()

    def write(name: str, data: bytes) -> Path:
        path = directory / name
        path.write_bytes(data)
        return path

    yield write("empty", b"")
    yield write("text", b"not a file" * 100)
    yield write("truncated", content[: len(content) // 2])
    yield write("without_start", content[100:])
    yield write("long_footer", content[:-8] + struct.pack("<I", 2**31 - 1) + b"PAR1")
    yield write("short_footer", content[:-8] + struct.pack("<I", 3) + b"PAR1")
    yield write("zero_footer", content[:-8] + bytes(len(content[:-8]) % 7) + struct.pack("<I", 0) + b"PAR1")
    footer = struct.unpack("<I", content[-8:-4])[0]
    start = len(content) - 8 - footer
    yield write("damaged_footer", content[:start] + bytes(byte ^ 0x5A for byte in content[start:-8]) + content[-8:])
    damaged = bytearray(content)
    for position in range(100, start, 97):
        damaged[position] ^= 0xFF
    yield write("damaged_pages", bytes(damaged))


def test_hostile_files_are_contained(engine: Engine, tmp_path: Path) -> None:
    for path in hostile_files(tmp_path):
        relations = {"r": relation_of(path)}
        with pytest.raises(TraceError) as caught:
            engine.ask("SELECT sum(a), min(s), max(s) FROM r", relations=relations, limits=SMALL)
        assert caught.value.code == "query_file_invalid", path.name
        assert caught.value.message == caught.value.kind.message


@pytest.mark.parametrize("seed", range(4))
def test_footers_that_lie_are_contained(engine: Engine, tmp_path: Path, seed: int) -> None:
    """Counts, sizes, offsets, types and encodings, changed at random: an answer or a code, within the limits."""
    whole = tmp_path / "whole"
    pq.write_table(VALID.slice(0, 2000), whole, row_group_size=500)
    content = whole.read_bytes()
    start = len(content) - 8 - struct.unpack("<I", content[-8:-4])[0]
    chance = random.Random(seed)
    queries = []
    for number in range(8):
        lying = bytearray(content)
        for _ in range(chance.choice((1, 1, 3, 10))):
            lying[chance.randrange(start, len(content) - 8)] = chance.randrange(256)
        path = tmp_path / f"lying_{number}"
        path.write_bytes(bytes(lying))
        queries.append(
            EngineQuery(
                sql="SELECT count(*), sum(a), min(s), max(s) FROM r",
                relations={"r": relation_of(path)},
                limits=EngineLimits(deadline_seconds=5.0, memory_bytes=128 * MIB, threads=1),
            )
        )

    async def ask_all() -> list[Any]:
        return list(await asyncio.gather(*(answer(engine.server, query) for query in queries), return_exceptions=True))

    for outcome in engine.runner.run(ask_all()):
        if isinstance(outcome, TraceError):
            assert outcome.code in FAILURES | {"query_timeout"}
            assert (outcome.message, outcome.details) == (outcome.kind.message, {})
        else:
            assert isinstance(outcome, tuple), outcome


def test_thousands_of_row_groups_are_read(engine: Engine, tmp_path: Path) -> None:
    relation = store(tmp_path / "groups", pa.table({"a": list(range(3000))}), row_group_size=1)
    assert engine.value("SELECT sum(a) FROM r", relations={"r": relation}) == sum(range(3000))


def test_deep_nesting_is_contained(engine: Engine, tmp_path: Path) -> None:
    kind: pa.DataType = pa.int32()
    value: object = 1
    for _ in range(90):
        kind, value = pa.list_(kind), [value]
    relation = store(tmp_path / "deep", pa.table({"a": pa.array([value], kind)}))
    with suppress(TraceError):  # each level takes memory and time
        engine.ask("SELECT a FROM deep", relations={"deep": relation}, limits=EngineLimits(deadline_seconds=3.0))


def test_decompression_bomb_is_contained(engine: Engine, tmp_path: Path) -> None:
    table = pa.table({"s": pa.array(["\0" * 50_000_000] * 4)})
    relation = store(tmp_path / "bomb", table, compression="zstd", use_dictionary=False)
    assert Path(relation.files[0]).stat().st_size < MIB
    with pytest.raises(TraceError, match="query_out_of_memory"):
        engine.ask("SELECT list(s || 'x') FROM bomb", relations={"bomb": relation}, limits=SMALL)


def test_invalid_text_is_an_error(engine: Engine, tmp_path: Path) -> None:
    binary = pa.array([b"\xff\xfe invalid"], pa.binary())
    text = pa.Array.from_buffers(pa.string(), 1, binary.buffers())
    relation = store(tmp_path / "text", pa.table({"s": text}), use_dictionary=False)
    with pytest.raises(TraceError, match="query_file_invalid"):
        engine.ask("SELECT s FROM text", relations={"text": relation})
