"""What pressure asks of the tables is cheap however many tasks are stored, and however many wait.

Statements keep one plan for whatever arguments come, so it is that plan which is looked at.
"""

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from tests.backpressure.pipe import PIPE
from tests.routing.support import Flow
from tests.support import dags
from tests.support.dispatcher import DispatcherHarness
from tests.support.postgres import TestCluster
from tracelake.dispatcher.engine.pressure import gauge, queues, upstream

DONE = 50_000
READY = 20_000

_DONE = """
    INSERT INTO tasks (task_id, org_id, job_id, status, attempt, outcome, lease_token, finished_at, inputs, unit,
                       node_id, edge, unit_key, unit_start, unit_end, counted)
    SELECT gen_random_uuid(), $1, $2, 'Completed', 1, 'Completed', gen_random_uuid(), trace_now(), '[]', '{}',
           $3, 0, 'c:' || n, n, n, true
    FROM generate_series(1, $4::bigint) n"""
_READY = """
    INSERT INTO tasks (task_id, org_id, job_id, status, ready_at, inputs, unit, node_id, edge, unit_key, unit_start,
                       unit_end, counted)
    SELECT gen_random_uuid(), $1, $2, 'Queued', trace_now() + make_interval(secs => n), '[]', '{}', $3, 0, 'c:' || n,
           n, n, true
    FROM generate_series($4::bigint + 1, $4 + $5::bigint) n"""

STATEMENTS = {
    "the row of a queue": gauge._LOCK,
    "the oldest that waits": queues._OLDEST,
    "a count": queues._COMPARE,
    "what is not counted yet": queues._UNCOUNTED,
    "a node": queues._LOCK_NODE,
    "levels and pauses": upstream._STOPS,
}


@pytest.fixture(scope="module")
def harness(cluster: TestCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DispatcherHarness]:
    """Two jobs with thresholds: one with much behind it and much before it, one with nothing to do."""
    dsns = cluster.fresh("state"), cluster.fresh("queue")
    running = DispatcherHarness.start(*dsns, Path(tmp_path_factory.mktemp("costs")))
    try:
        Flow(running).deploy(PIPE.replace("max_queue_depth: 10", "max_queue_depth: 10, max_queue_age: 60s"))
        row = dags.job(running, "d", "slow")
        place = (row["org_id"], row["job_id"], row["node_id"])
        running.sql(_DONE, *place, DONE)
        running.sql(_READY, *place, DONE, READY)
        running.sql("VACUUM ANALYZE")
        yield running
    finally:
        running.stop()
        for dsn in dsns:
            asyncio.run(cluster.drop(dsn))


def explain(harness: DispatcherHarness, statement: str, *arguments: str, analyze: bool = False) -> str:
    async def ask() -> str:
        settings = {"plan_cache_mode": "force_generic_plan", "jit": "off"}
        connection = await asyncpg.connect(harness.state_dsn, server_settings=settings)
        try:
            await connection.execute(f"PREPARE wanted AS {statement}")
            number = max([0, *(int(found) for found in re.findall(r"\$(\d+)", statement))])
            given = ", ".join(arguments or ["NULL"] * number)
            how = "(ANALYZE, TIMING OFF, COSTS OFF, SUMMARY OFF)" if analyze else ""
            rows = await connection.fetch(f"EXPLAIN {how} EXECUTE wanted ({given})")
            return "\n".join(row[0] for row in rows)
        finally:
            await connection.close()

    return asyncio.run(ask())


@pytest.mark.parametrize("name", STATEMENTS)
def test_no_statement_reads_what_is_done(harness: DispatcherHarness, name: str) -> None:
    plan = explain(harness, STATEMENTS[name])
    assert "Seq Scan on tasks" not in plan, plan
    assert "tasks_by_job" not in plan, "it has what is done, too"


def test_the_oldest_is_looked_for_among_the_first(harness: DispatcherHarness) -> None:
    """However many wait: the row of the queue is not locked meanwhile, but the look comes every second."""
    node = dags.job(harness, "d", "slow")["node_id"]
    plan = explain(harness, queues._OLDEST, f"'{node}'", str(queues.LOOKED_AT), analyze=True)
    assert "tasks_live" in plan, plan
    read = [float(found) for found in re.findall(r"rows=([\d.]+)", plan)]
    assert max(read) <= queues.LOOKED_AT, plan


def test_a_round_locks_a_long_queue_for_the_writing_alone(harness: DispatcherHarness) -> None:
    """The lock is taken by the last two statements of a round; everything that depends on the length comes before."""
    node = dags.job(harness, "d", "slow")["node_id"]
    said: list[str] = []

    async def round_of_one() -> None:
        async with harness.dispatcher.ports.store.transaction() as connection:
            # The rows were made by SQL, so nothing has counted them.
            await connection.execute("UPDATE pressure SET depth = $2 WHERE node_id = $1", node, READY)
        async with harness.dispatcher.ports.store.transaction() as connection:
            connection.add_query_logger(lambda record: said.append(record.query))
            await queues.look_at_age(connection, node)

    harness.run(round_of_one())
    wanted = [queues._OLDEST, gauge._LOCK, gauge._WRITE]
    assert [query for query in said if query in wanted] == wanted
