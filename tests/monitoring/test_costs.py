"""A look of the gauges costs the same however much is stored: every statement goes along an index, up to a bound."""

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from tests.monitoring.situations import HEAD, PIPE, Stage
from tests.routing.support import Flow
from tests.support import dags
from tests.support.dispatcher import DispatcherHarness
from tests.support.postgres import TestCluster
from tests.support.state import FINISHED_TASKS, QUEUED_TASKS, ROUTED_EVENTS, set_edges
from tracelake.dispatcher.loops import gauges, named
from tracelake.dispatcher.outbox import admin

ROWS = 4_000

_BATCHES = """
    INSERT INTO buffer_publishes (publish_id, org_id, task_id, attempt, dataset_uuid, dataset_version, batch_uri,
        size_bytes, etag, content_type, committed_at, dead_at, dead_code, dead_reason)
    SELECT gen_random_uuid(), p.org_id, p.task_id, p.attempt, p.dataset_uuid, p.dataset_version, p.batch_uri || n,
        1, p.etag, p.content_type, CASE WHEN n % 10 < 8 THEN trace_now() END,
        CASE WHEN n % 10 = 9 THEN trace_now() END, CASE WHEN n % 10 = 9 THEN 'x' END, CASE WHEN n % 10 = 9 THEN 'x' END
    FROM buffer_publishes p, generate_series(1, $1) n"""
_OUTBOX = """
    INSERT INTO outbox (kind, queue, key) SELECT 'task_wakeup', 'q', gen_random_uuid() FROM generate_series(1, $1)"""

WANTED = {
    "running tasks": (gauges._IN_FLIGHT, {"tasks_running"}),
    "tasks by state": (gauges._TASKS, {"tasks_ready", "tasks_held", "tasks_waiting", "tasks_failed"}),
    "the outbox": (admin.OUTBOX_COUNTS, {"outbox_wakeups", "outbox_batches", "outbox_invoke", "outbox_failed"}),
    "edges that are behind": (gauges._EDGES, set()),
    "events that wait": (gauges._EVENTS, {"events_routed"}),
    "failed units": (gauges._FAILED_UNITS, set()),
    "builds and invalidations": (gauges._WORK, set()),
    "batches that wait": (gauges._BACKLOG, {"buffer_publishes_open"}),
    "dead letters": (gauges._LETTERS, {"buffer_publishes_dead_of"}),
    "full backlogs": (gauges._BACKLOGS, {"buffer_publishes_backlog"}),
    "sources": (gauges._SOURCES, {"events_routed"}),
    "queues": (gauges._QUEUES, set()),
    "names": (named._CHANGED, set()),
}
"""With the indexes that it must use."""


@pytest.fixture(scope="module")
def dsn(cluster: TestCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A stack with a long past, a backlog, and a queue that is away."""
    state = cluster.fresh("state")
    harness = DispatcherHarness.start(state, cluster.fresh("queue"), Path(tmp_path_factory.mktemp("costs")))
    try:
        flow = Flow(harness)
        flow.deploy(PIPE)
        flow.deploy(HEAD.replace("name: d", "name: e", 1))
        row = dags.job(harness, "d", "step")
        harness.sql(FINISHED_TASKS, row["org_id"], row["job_id"], "Completed", 10 * ROWS)
        harness.sql(QUEUED_TASKS, row["org_id"], row["job_id"], ROWS, 0.0)
        harness.sql(ROUTED_EVENTS, row["org_id"], *dags.output(harness, "d", "src"), ROWS)
        harness.sql(_OUTBOX, 5 * ROWS)
        Stage(harness, "others").buffers().publish([{"key": 1}])
        harness.sql(_BATCHES, 10 * ROWS)
        set_edges(harness, row["node_id"], position=0)
        harness.sql("VACUUM ANALYZE")
        yield state
    finally:
        harness.stop()


async def _plan(dsn: str, statement: str) -> str:
    """The plan for whatever arguments come, as the Dispatcher's own sessions have it."""
    connection = await asyncpg.connect(dsn, server_settings={"plan_cache_mode": "force_generic_plan", "jit": "off"})
    try:
        await connection.execute(f"PREPARE wanted AS {statement}")
        arguments = len(set(re.findall(r"\$\d+", statement)))
        given = f" ({', '.join(['NULL'] * arguments)})" if arguments else ""
        return "\n".join(row[0] for row in await connection.fetch(f"EXPLAIN EXECUTE wanted{given}"))
    finally:
        await connection.close()


@pytest.mark.parametrize("name", WANTED)
def test_a_look_goes_along_indexes(dsn: str, name: str) -> None:
    statement, indexes = WANTED[name]
    plan = asyncio.run(_plan(dsn, statement))
    for table in ("tasks", "events", "outbox", "jobs", "buffer_publishes"):
        if (name, table) != ("names", "jobs") and (name, table) != ("running tasks", "jobs"):
            assert f"Seq Scan on {table}" not in plan, plan
    for index in indexes:
        assert index in plan, plan


@pytest.mark.parametrize("name", ["tasks by state", "the outbox", "events that wait", "batches that wait"])
def test_what_could_be_many_is_counted_up_to_a_bound(dsn: str, name: str) -> None:
    """As many nodes that stop early as there are counts in it."""
    statement, _ = WANTED[name]
    plan = asyncio.run(_plan(dsn, statement))
    assert plan.count("Limit ") == statement.count("LIMIT "), plan
    assert "Sort  (" not in plan or name == "events that wait", plan
