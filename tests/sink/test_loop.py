"""The sink as a whole: it makes tables of datasets it hears of, follows them, drains them, and ends when told to. What
is wrong with one dataset is not felt by another."""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager

import adbc_driver_postgresql.dbapi as adbc
import pytest

from tests.sink.conftest import MakeFlow
from tests.sink.flow import BufferFlow, DispatcherCalls, WatchedStores
from tests.support.configs import sink_config
from tests.support.postgres import wait_until
from tracelake.adapters.postgres_queue import PostgresQueue
from tracelake.model.backoff import Backoff
from tracelake.sink.loop import Sink


@contextmanager
def sink_of(flow: BufferFlow) -> Iterator[None]:
    """A sink for every dataset of the flow's Dispatcher."""
    harness, stop = flow.harness, asyncio.Event()

    async def run() -> None:
        queue = PostgresQueue(harness.queue_dsn)
        sink = Sink(
            sink_config(poll_seconds=0.05, wait_seconds=0.2, backoff=Backoff(0.01, 0.05)),
            queue=queue,
            objects=harness.objects,
            calls=DispatcherCalls(harness),
            data_dsn=lambda: flow.data_dsn,
        )
        try:
            await sink.run(stop)
        finally:
            await queue.close()

    running: Future[None] = asyncio.run_coroutine_threadsafe(run(), harness.background.loop)
    try:
        yield
    finally:
        harness.background.loop.call_soon_threadsafe(stop.set)
        running.result(30)


def shows(flow: BufferFlow, *names: str, rows: list[tuple[object, ...]]) -> Callable[[], bool]:
    return lambda: flow.has_table() and flow.rows(*names) == rows


def test_from_the_deploy_to_the_end(flow: BufferFlow) -> None:
    with sink_of(flow):
        wait_until(flow.has_table, "the table")
        flow.publish([{"key": 1, "value": "a"}])
        flow.relay()
        wait_until(shows(flow, "key", "value", rows=[(1, "a")]), "the row")
        flow.deploy("name: memo, type: text")
        wait_until(lambda: flow.has_column("memo"), "the column")
        flow.publish([{"key": 2, "memo": "x"}])
        flow.relay()
        wait_until(shows(flow, "key", "memo", rows=[(1, None), (2, "x")]), "the second row")


def test_a_table_that_cannot_be_made_is_nobody_elses_trouble(
    make_flow: MakeFlow, caplog: pytest.LogCaptureFixture
) -> None:
    """The broken one is the first that the sink hears of."""
    broken, sound = sorted((make_flow(), make_flow()), key=lambda flow: flow.org)
    with adbc.connect(broken.data_dsn, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLE {broken.table} ()")
    for flow in (broken, sound):
        flow.publish([{"key": 1, "value": "a"}])
    with sink_of(broken):
        sound.relay()
        wait_until(shows(sound, rows=[(1, "a")]), "the row of the sound one")
        wait_until(
            lambda: any(
                record.levelname == "ERROR" and record.__dict__.get("dataset") == "large" for record in caplog.records
            ),
            "somebody is told",
        )
        assert broken.open_batches() == 1
        with adbc.connect(broken.data_dsn, autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute(f"DROP TABLE {broken.table}")
        wait_until(shows(broken, rows=[(1, "a")]), "the row of the one that was mended")
    assert (broken.letters(), broken.open_batches()) == ([], 0)


def test_who_waits_for_a_lock_gives_way(make_flow: MakeFlow) -> None:
    """Both have one connection between them; a person holds the table of the first."""
    stuck, free = make_flow(lock_seconds=0.05), make_flow()
    for flow in (stuck, free):
        flow.publish([{"key": 1, "value": "a"}])
        flow.sink()
        flow.publish([{"key": 1, "value": "b"}])
        flow.relay()

    async def both(connection: adbc.Connection) -> tuple[int, int]:
        one = WatchedStores(stuck, limit=1)
        waiting = asyncio.create_task(stuck.rounds(shared=one))
        try:
            async with asyncio.timeout(30):
                while not stuck.waited:
                    await asyncio.sleep(0.01)
                second = await free.rounds(shared=one)
                connection.rollback()
                return await waiting, second
        finally:
            one.close()

    with adbc.connect(stuck.data_dsn) as connection, connection.cursor() as cursor:
        cursor.execute(f"LOCK TABLE {stuck.table} IN ACCESS EXCLUSIVE MODE")
        assert stuck.harness.run(both(connection)) == (1, 1)
    assert stuck.rows() == free.rows() == [(1, "b")]
