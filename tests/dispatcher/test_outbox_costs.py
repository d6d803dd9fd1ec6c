"""A backlog of 500,000 outbox rows slows nobody else: every statement reads the rows that it takes and no more.

Rows of one kind, rows that were given up and rows that wait for their next try stand before those that others take. The
plans are those for whatever arguments come, as the Dispatcher's own sessions have them.
"""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from tests.routing.support import Flow
from tests.routing.test_routing import FEED
from tests.support.dispatcher import DispatcherHarness
from tests.support.postgres import TestCluster
from tests.support.state import QUEUED_TASKS
from tracelake.dispatcher.engine.tables import batch_rows
from tracelake.dispatcher.invoke import loop as invoke
from tracelake.dispatcher.loops import reconciler
from tracelake.dispatcher.metrics import MOST
from tracelake.dispatcher.outbox import admin, relay
from tracelake.dispatcher.why import task as why_task

BACKLOG = 500_000
PAGE = 1000

_BACKLOG = """
    INSERT INTO outbox (kind, queue, key, body, status, tries, next_try_at)
    SELECT CASE WHEN n % 5 < 2 THEN 'task_invoke' WHEN n % 5 < 4 THEN 'task_wakeup' ELSE 'buffer_batch' END,
           CASE WHEN n % 5 < 2 THEN 'lambda' ELSE 'q' END, lpad(to_hex(n), 32, '0')::uuid,
           CASE WHEN n % 5 = 4 THEN '{}'::json END,
           CASE WHEN n % 5 IN (0, 2) THEN 'Failed' ELSE 'Pending' END, 1,
           trace_now() + CASE WHEN n % 5 = 3 THEN interval '1 hour' ELSE interval '0' END
    FROM generate_series(1, $1) n"""
_THEIRS = """
    INSERT INTO outbox (kind, queue, key) SELECT 'task_wakeup', 'q', task_id FROM tasks ORDER BY task_id LIMIT 100"""


@pytest.fixture(scope="module")
def dsn(cluster: TestCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    state = cluster.fresh("state")
    harness = DispatcherHarness.start(state, cluster.fresh("queue"), Path(tmp_path_factory.mktemp("outbox")))
    try:
        Flow(harness).deploy(FEED)
        row = harness.sql("SELECT org_id, job_id FROM jobs LIMIT 1")[0]
    finally:
        harness.stop()

    async def fill() -> None:
        connection = await asyncpg.connect(state)
        await connection.execute(_BACKLOG, BACKLOG)
        await connection.execute(QUEUED_TASKS, row["org_id"], row["job_id"], 5 * PAGE, 3600.0)
        await connection.execute(_THEIRS)
        await connection.execute("VACUUM ANALYZE outbox")
        await connection.execute("ANALYZE tasks")
        await connection.close()

    asyncio.run(fill())
    yield state
    asyncio.run(cluster.drop(state))


def _literal(value: Any) -> str:
    if isinstance(value, list) and isinstance(value[0], int):
        return f"ARRAY{value}"
    if isinstance(value, list):
        return "ARRAY[" + ", ".join(f"'{item}'::uuid" for item in value) + "]::uuid[]"
    return str(value) if isinstance(value, int | float) else f"'{value}'"


async def _run(dsn: str, statement: str, *arguments: Any) -> list[dict[str, Any]]:
    """Runs the statement by its generic plan, undoes it, and answers the nodes of the plan that read the outbox."""
    connection = await asyncpg.connect(dsn, server_settings={"plan_cache_mode": "force_generic_plan", "jit": "off"})
    try:
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute(f"PREPARE wanted AS {statement}")
        given = f" ({', '.join(map(_literal, arguments))})" if arguments else ""
        plan = await connection.fetchval(f"EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE wanted{given}")
        await transaction.rollback()
    finally:
        await connection.close()
    nodes: list[dict[str, Any]] = []

    def walk(node: dict[str, Any]) -> None:
        nodes.append(node)
        for child in node.get("Plans", []):
            walk(child)

    walk(json.loads(plan)[0]["Plan"])
    return [node for node in nodes if node.get("Relation Name") == "outbox" or "outbox" in node.get("Index Name", "")]


def _rows_read(nodes: list[dict[str, Any]]) -> Any:
    removed = ("Rows Removed by Filter", "Rows Removed by Index Recheck")
    return sum(
        (node["Actual Rows"] + sum(node.get(key, 0) for key in removed)) * node["Actual Loops"]
        for node in nodes
        if node["Node Type"] not in ("ModifyTable", "Bitmap Index Scan")
    )


_IDS = [str(UUID(int=number)) for number in range(BACKLOG, BACKLOG + PAGE)]

STATEMENTS: dict[str, tuple[str, tuple[Any, ...], int]] = {
    "relay": (relay._TAKE, (256,), 2 * 256 + 8),
    "orgs of invokes": (invoke._DUE_ORGS, ("lambda",), 3),
    "invoke": (invoke._TAKE, ("lambda", [str(UUID(int=0))], [16], 10.0), 2 * 16),
    "orgs of invokes of another runtime": (invoke._DUE_ORGS, ("dispatcher",), 0),
    "ready tasks": (reconciler._READY, (60.0, "-infinity", str(UUID(int=0)), PAGE), PAGE),
    "wake again": (reconciler._WAKE_AGAIN, ("task_wakeup", "q", _IDS), 2 * PAGE),
    "open batches": (reconciler._OPEN_PUBLISHES, (60.0, "-infinity", _IDS[0], PAGE), PAGE),
    "batches": (batch_rows.ENQUEUE_PUBLISHES, (_IDS,), 2 * PAGE),
    "why": (why_task._OUTBOX, (_IDS[0],), 1),
    "gauges": (admin.OUTBOX_COUNTS, (), 4 * MOST),
    "list": (admin._LISTS[None], (100,), 100),
    "list failed": (admin._LISTS["Failed"], (100,), 100),
    "list pending": (admin._LISTS["Pending"], (100,), 3 * 100),
    "requeue": (admin._REQUEUE_NEXT, (1000,), 2 * 1000),
}
"""With its arguments and the most rows of the outbox that it may read."""


@pytest.mark.parametrize("name", STATEMENTS)
def test_a_backlog_is_not_read(dsn: str, name: str) -> None:
    statement, arguments, most = STATEMENTS[name]
    nodes = asyncio.run(_run(dsn, statement, *arguments))
    assert nodes, "the statement reads the outbox"
    assert not [node for node in nodes if node["Node Type"] == "Seq Scan"], nodes
    assert _rows_read(nodes) <= most, nodes


def test_each_kind_has_its_share_of_a_batch(dsn: str) -> None:
    """The wake-ups are the newest rows of all, and the first batch that the relay takes has them."""

    async def take() -> list[asyncpg.Record]:
        connection = await asyncpg.connect(dsn)
        try:
            transaction = connection.transaction()
            await transaction.start()
            rows: list[asyncpg.Record] = await connection.fetch(relay._TAKE, 256)
            await transaction.rollback()
            return rows
        finally:
            await connection.close()

    rows = asyncio.run(take())
    assert len([row for row in rows if row["body"] is None]) == 100
    assert len([row for row in rows if row["body"] is not None]) == 256
