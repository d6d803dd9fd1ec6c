"""Routing does not go through what is long done: with many stored rows every statement finds its way by an index.

Statements keep one plan for whatever arguments come, so it is that plan which is looked at.
"""

import asyncio
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import asyncpg
import pytest

from tests.routing.support import Flow
from tests.routing.test_routing import FEED
from tests.support import dags
from tests.support.dispatcher import DispatcherHarness
from tests.support.postgres import TestCluster
from tests.support.state import set_edges
from tracelake.dispatcher.deploy import builds, pointers
from tracelake.dispatcher.deploy import edges as deployed_edges
from tracelake.dispatcher.engine.catch_up import edge_drain, invalidation_drain, routing_reconciler
from tracelake.dispatcher.engine.routing import coverage, directory, drafts, edges, invalidations, output_units

ROWS = 50_000
LARGE = ("tasks", "events", "dataset_runs", "dataset_keys", "unit_revisions", "invalidations")

FIRST = {
    "tasks_units": "node_id",
    "tasks_open": "node_id",
    "tasks_by_job": "job_id",
    "tasks_superseded": "superseded",
    "events_routed": "dataset_uuid",
    "dataset_runs_pkey": "dataset_uuid",
    "dataset_keys_pkey": "dataset_uuid",
    "unit_revisions_pkey": "dataset_uuid",
}
"""An index from one end to the other is no better: its first column must be known."""

_TASKS = """
    INSERT INTO tasks (task_id, org_id, job_id, status, attempt, outcome, lease_token, finished_at, inputs, unit,
                       node_id, edge, unit_key, unit_start, unit_end)
    SELECT gen_random_uuid(), $1, $2, 'Completed', 1, 'Completed', gen_random_uuid(), trace_now(), '[]', '{}',
           $3, $4, 'c:' || n, n, n
    FROM generate_series(1, $5::bigint) n"""
_LIVE = """
    INSERT INTO tasks (task_id, org_id, job_id, status, ready_at, inputs, unit, node_id, edge, unit_key, unit_start,
                       unit_end)
    SELECT gen_random_uuid(), $1, $2, 'Queued', trace_now(), '[]', '{}', $3, 0, 'c:' || n, n, n
    FROM generate_series($4::bigint + 1, $4 + 500) n"""
_EVENTS = """
    INSERT INTO events (org_id, producer, dataset_uuid, dataset_version, unit, cursor, state, routed_seq)
    SELECT $1, 'x', $2, $3, 'c:' || n, n, 'Routed', nextval('events_routed_seq')
    FROM generate_series(1, $4::bigint) n"""
_RUNS = """
    INSERT INTO dataset_runs SELECT $1, $2, 10, 0, n * 100, n * 100 + 9 FROM generate_series(1, $3::bigint) n"""
_KEYS = "INSERT INTO dataset_keys SELECT $1, $2, 'c:' || n FROM generate_series(1, $3::bigint) n"
_REVISIONS = "INSERT INTO unit_revisions SELECT $1, $2, 'c:' || n, 'r', n FROM generate_series(1, $3::bigint) n"
_INVALIDATIONS = """
    INSERT INTO invalidations SELECT 'i:x' || n, $1, $2, $3, 0, 9, 'x', 'x' FROM generate_series(1, $4::bigint) n"""

STATEMENTS = {
    "what a cursor reads from": drafts._PREDECESSORS,
    "cursors nobody reads": drafts._UNREAD,
    "neighbours of runs": coverage._NEIGHBOURS,
    "runs that are merged": coverage._DELETE_RUNS,
    "whether units are there": coverage._ASK,
    "ranges that overlap": coverage._OVERLAPPING,
    "cursors that overlap": invalidations._CURSOR_UNITS,
    "units that a range overlaps": output_units._OVERLAPPING,
    "readers": directory._LOAD,
    "edges": edges._LOCK,
    "edges that are behind": edge_drain._BEHIND,
    "a page of events": edge_drain._EVENTS,
    "work that waits": invalidation_drain._WAITING,
    "work": invalidation_drain._WORK,
    "counters": routing_reconciler._WRONG_COUNTERS,
    "counters again": routing_reconciler._RECOUNT,
    "failed units": routing_reconciler._HELD_UNITS,
    "events without a task": routing_reconciler._MISSING,
    "what a build lacks": builds._UNFINISHED,
    "edges that go live": deployed_edges._GO_LIVE,
    "events that are released": pointers._RELEASE,
}


@pytest.fixture(scope="module")
def dsn(cluster: TestCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A DAG with a long past."""
    state, home = cluster.fresh("state"), tmp_path_factory.mktemp("costs")
    harness = DispatcherHarness.start(state, cluster.fresh("queue"), Path(home))
    try:
        flow = Flow(harness)
        flow.deploy(FEED)
        for job in ("each", "after", "part", "join"):
            row = dags.job(harness, "d", job)
            place = (row["org_id"], row["job_id"], row["node_id"])
            harness.sql(_TASKS, *place, -1 if job in ("part", "join") else 0, ROWS)
            if job == "each":
                harness.sql(_LIVE, *place, ROWS)
        for index in (0, 1):
            generation = dags.output(harness, "d", "feeder", index)
            harness.sql(_EVENTS, flow.actor.org_id, *generation, ROWS)
            for statement in (_RUNS, _KEYS, _REVISIONS):
                harness.sql(statement, *generation, ROWS)
        harness.sql(_INVALIDATIONS, flow.actor.org_id, *dags.output(harness, "d", "feeder"), ROWS)
        set_edges(harness, routed=ROWS)
        harness.sql("VACUUM ANALYZE")
        yield state
    finally:
        harness.stop()


async def _plan(dsn: str, statement: str) -> str:
    connection = await asyncpg.connect(dsn, server_settings={"plan_cache_mode": "force_generic_plan", "jit": "off"})
    try:
        await connection.execute(f"PREPARE wanted AS {statement}")
        arguments = max([0, *(int(number) for number in re.findall(r"\$(\d+)", statement))])
        asked = f" ({', '.join(['NULL'] * arguments)})" if arguments else ""
        return "\n".join(row[0] for row in await connection.fetch(f"EXPLAIN EXECUTE wanted{asked}"))
    finally:
        await connection.close()


@pytest.mark.parametrize("name", STATEMENTS)
def test_no_statement_scans_what_is_long_done(dsn: str, name: str) -> None:
    text = asyncio.run(_plan(dsn, STATEMENTS[name]))
    for table in LARGE:
        assert f"Seq Scan on {table} " not in text, text
    lines = text.splitlines()
    for line, below in pairwise(lines):
        for index, column in FIRST.items():
            if f"using {index} on" in line or f"Index Scan on {index}" in line:
                assert re.search(rf"Index Cond: .*\b{column} = ", below), text
