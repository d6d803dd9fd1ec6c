"""Deploys, builds and queues do not go through finished work: with many stored rows every statement has its index.

Statements are prepared once and run by one plan for whatever they are given, so that is the plan to look at.
"""

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import asyncpg
import pytest

from tests.deploy.support import chain
from tests.support.dags import deploy, job, output
from tests.support.dispatcher import DispatcherHarness
from tests.support.postgres import TestCluster
from tests.support.state import ROUTED_EVENTS
from tracelake.dispatcher.deploy import apply, builds, cutover, edges, pointers, registry, tasks
from tracelake.dispatcher.engine import limits
from tracelake.dispatcher.engine.catch_up import routing_reconciler
from tracelake.dispatcher.engine.pressure import gauge, queues, upstream, watch
from tracelake.dispatcher.engine.tables import task_rows

MODULES = (apply, builds, cutover, edges, pointers, registry, tasks, gauge, queues, upstream, watch, limits)
FINISHED, LIVE, DROPPED = 80_000, 4_000, 4_000

_TASKS = """
    INSERT INTO tasks (task_id, org_id, job_id, inputs, status, attempt, lease_token, outcome, ready_at, finished_at,
                       superseded, node_id, edge, unit_key, unit_start, unit_end)
    SELECT gen_random_uuid(), $1, $2, '[]', $4, CASE WHEN $4 = 'Completed' THEN 1 ELSE 0 END,
           CASE WHEN $4 = 'Completed' THEN gen_random_uuid() END, CASE WHEN $4 = 'Completed' THEN 'Completed' END,
           CASE WHEN $4 = 'Queued' THEN trace_now() END, CASE WHEN $4 <> 'Queued' THEN trace_now() END,
           CASE WHEN $4 = 'Canceled' THEN 'Dropped' END, $3, 0, $4 || n, n, n
    FROM generate_series(1, $5::bigint) n"""


@pytest.fixture(scope="module")
def large(cluster: TestCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DispatcherHarness]:
    """Few jobs, as it is after a while: no job is rare enough to make a scan look dear."""
    home: Path = tmp_path_factory.mktemp("costs")
    harness = DispatcherHarness.start(cluster.fresh("state"), cluster.fresh("queue"), home)
    try:
        deploy(harness, str(chain()))
        for name, status, number in (
            ("a", "Completed", FINISHED),
            ("b", "Completed", FINISHED),
            ("a", "Queued", LIVE),
            ("b", "Canceled", DROPPED),
        ):
            row = job(harness, "d", name)
            harness.sql(_TASKS, row["org_id"], row["job_id"], row["node_id"], status, number)
        harness.sql(ROUTED_EVENTS, row["org_id"], *output(harness, "d", "tick"), FINISHED)
        harness.sql("VACUUM ANALYZE")
        yield harness
    finally:
        harness.stop()


def statements() -> dict[str, str]:
    """Every statement of these modules that a constant holds."""
    found: dict[str, str] = {}
    for module in MODULES:
        found |= _of(module)
    # The proof of all counters goes through all live tasks, as it must; the others of its module are for repairs.
    found["reconcile._WAITED_FOR"] = routing_reconciler._WAITED_FOR
    found["rows._LOCK_TASKS"] = task_rows._LOCK_TASKS
    found["rows._LOCK_UNITS"] = task_rows._LOCK_UNITS
    return found


def _of(module: ModuleType) -> dict[str, str]:
    short = module.__name__.rpartition(".")[2]
    return {
        f"{short}.{name}": text
        for name, text in vars(module).items()
        if isinstance(text, str)
        and re.match(r"\s*\(*(SELECT|UPDATE|INSERT|WITH)\b", text)
        and not text.endswith("WHERE ")
    }


async def _plans(dsn: str, wanted: dict[str, str]) -> dict[str, str]:
    connection = await asyncpg.connect(dsn, server_settings={"plan_cache_mode": "force_generic_plan", "jit": "off"})
    plans = {}
    try:
        for name, statement in wanted.items():
            arguments = max((int(number) for number in re.findall(r"\$(\d+)", statement)), default=0)
            given = f" ({', '.join(['NULL'] * arguments)})" if arguments else ""
            await connection.execute(f"PREPARE wanted AS {statement}")
            plans[name] = "\n".join(row[0] for row in await connection.fetch(f"EXPLAIN EXECUTE wanted{given}"))
            await connection.execute("DEALLOCATE wanted")
    finally:
        await connection.close()
    return plans


@pytest.fixture(scope="module")
def plans(large: DispatcherHarness) -> dict[str, str]:
    return asyncio.run(_plans(large.state_dsn, statements()))


def test_no_statement_scans_finished_work(plans: dict[str, str]) -> None:
    assert {"tasks._FIND", "builds._UNFINISHED", "queues._COUNT", "cutover._JOBS", "limits._NEXT"} <= set(plans)
    for name, plan in plans.items():
        for table in ("tasks", "events"):
            assert f"Seq Scan on {table} " not in plan, f"{name}:\n{plan}"


@pytest.mark.parametrize(
    "name", ["tasks._FIND", "builds._UNFINISHED", "tasks._RETURNING", "queues._UNCOUNTED", "queues._COUNT"]
)
def test_open_work_is_found_among_the_open_alone(plans: dict[str, str], name: str) -> None:
    used = set(re.findall(r"Scan (?:Backward )?(?:using|on) (tasks_\w+)", plans[name]))
    assert used, plans[name]
    assert used <= {"tasks_live", "tasks_superseded", "tasks_ready", "tasks_pkey"}, plans[name]


def test_the_look_at_a_build_costs_the_same_whatever_ended(large: DispatcherHarness) -> None:
    """Nothing is open for `b`, the job with the longest past."""
    node_id = job(large, "d", "b")["node_id"]

    async def touched() -> int:
        connection = await asyncpg.connect(
            large.state_dsn, server_settings={"plan_cache_mode": "force_generic_plan", "jit": "off"}
        )
        try:
            await connection.execute(f"PREPARE look (uuid[]) AS {builds._UNFINISHED}")
            plan = await connection.fetchval(
                f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE look (ARRAY['{node_id}']::uuid[])"
            )
            top = re.search(r'"Shared Hit Blocks": (\d+),\s+"Shared Read Blocks": (\d+)', plan)
            assert top is not None
            return int(top[1]) + int(top[2])
        finally:
            await connection.close()

    assert asyncio.run(touched()) < 50
