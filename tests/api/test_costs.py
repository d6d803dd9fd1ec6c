"""Reads do not go through finished work: with many stored rows every statement still finds its way by an index."""

import asyncio
import re
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from tests.api.support import World
from tests.support.dispatcher import DispatcherHarness
from tests.support.state import FINISHED_TASKS, ROUTED_EVENTS
from tracelake.dispatcher.buffers import dead_batches
from tracelake.dispatcher.views import (
    commits,
    dags,
    datasets,
    events,
    failures,
    files,
    jobs,
    lineage,
    reads,
    tasks,
    trigger_progress,
)
from tracelake.model.ids import new_id

ROWS = 20_000
LARGE = ("tasks", "events", "manifests", "dataset_units", "buffer_publishes")

_COMMITS = """
    WITH m AS (
        INSERT INTO manifests (manifest_id, dataset_uuid, dataset_version, unit, revision, task_id, attempt, prefix,
                               objects)
        SELECT gen_random_uuid(), $1, $2, 'p:' || n * 10 || '-' || n * 10 + 9, 1, $3, 1, 'x', '[]'
        FROM generate_series(1, $4::bigint) n RETURNING manifest_id, unit)
    INSERT INTO dataset_units
    SELECT $1, $2, unit, start, start + 9, 1, manifest_id
    FROM m, LATERAL (SELECT split_part(substr(unit, 3), '-', 1)::bigint AS start) s"""

_BATCHES = """
    INSERT INTO buffer_publishes (publish_id, org_id, task_id, attempt, dataset_uuid, dataset_version, batch_uri,
                                  size_bytes, etag, content_type, committed_at, commit_seq)
    SELECT gen_random_uuid(), $1, $2, 1, $3, $4, 's3://b/' || n, 1, 'e', 'application/jsonl', trace_now(), 1 + n / 4
    FROM generate_series(1, $5::bigint) n"""


@pytest.fixture(scope="module")
def world(harness: DispatcherHarness) -> World:
    """Most rows are somebody else's, but many are the org's own."""
    other, world = World(harness), World(harness)
    for owner, rows in ((other, 3 * ROWS), (world, ROWS)):
        owner.sql(FINISHED_TASKS, owner.org_id, owner.fetch, "Completed", rows)
        owner.sql(ROUTED_EVENTS, owner.org_id, *owner.ticks, rows)
        owner.sql(_COMMITS, *owner.blocks, owner.task(owner.fetch, "Completed"), rows)
        owner.sql(_BATCHES, owner.org_id, owner.task(owner.fetch, "Completed"), *owner.alerts, rows // 2)
    world.task(world.fetch, "Running")
    world.sql("VACUUM ANALYZE")
    return world


def statements(world: World) -> dict[str, tuple[str, tuple[Any, ...]]]:
    most, least = UUID(int=2**128 - 1), UUID(int=0)
    some = [world.fetch, world.alert]
    version = world.sql("SELECT active_version FROM dags WHERE org_id = $1 AND dag_name = 'chain'", world.org_id)
    return {
        "tasks": (tasks._NEWEST, (some, most, least, 51)),
        "live tasks": (tasks._NEWEST_LIVE, (some, most, least, 51, "Running", "Running")),
        "tasks that wait for a retry": (tasks._NEWEST_LIVE, (some, most, least, 51, "Failed", "Retrying")),
        "ended tasks": (tasks._NEWEST_ENDED, (some, most, least, 51, "Canceled")),
        "tasks behind one": (tasks._FOLLOWING, (some, least, least, most, 51)),
        "task rows": (tasks._ROWS, ([new_id()], world.org_id)),
        "events of a task": (tasks._EVENTS, (str(new_id()), world.org_id)),
        "events": (events._NEWEST, ([world.ticks.dataset_uuid], 2**60, 51, "Routed")),
        "events behind one": (events._FOLLOWING, ([world.ticks.dataset_uuid], 0, 51, "Routed", 2**60)),
        "given events": (events._GIVEN, (world.org_id, ["chain__clock_0"], [7])),
        "event rows": (events._ROWS, ([world.ticks.dataset_uuid], [7])),
        "dags": (dags._DAGS, (world.org_id,)),
        "jobs": (jobs._JOBS, (version[0][0],)),
        "done tasks": (jobs._DONE, (some, 200)),
        "failed tasks": (failures._NEWEST, (some, least, datetime.now(UTC))),
        "number of failed tasks": (failures._COUNT, (some, least, datetime.now(UTC))),
        "open tasks of a trigger": (trigger_progress._OPEN, (some, new_id(), datetime.now(UTC))),
        "tasks of a trigger": (trigger_progress._MADE, (some, new_id(), datetime.now(UTC))),
        "renewed tasks": (trigger_progress._RENEWED, ([world.fetch_node], 7, datetime.now(UTC))),
        "returning tasks": (trigger_progress._RETURNING, (some, [world.fetch_node])),
        "events without tasks": (trigger_progress._BEHIND, ([world.fetch_node], 7)),
        "batches of a trigger": (trigger_progress._BATCHES, (some, datetime.now(UTC))),
        "edges": (jobs._EDGES, ([world.fetch_node],)),
        "datasets": (datasets._DATASETS, (world.org_id, None)),
        "generations": (datasets._GENERATIONS, (world.blocks.dataset_uuid, False)),
        "generations of a table": (datasets._GENERATIONS, (world.alerts.dataset_uuid, True)),
        "a table and its last commit": (datasets._TABLE, (world.alerts.dataset_uuid,)),
        "batches of commits": (commits._BATCHES, ([world.alerts.dataset_uuid], [7], world.org_id)),
        "dead letters": (dead_batches._LIST, (world.org_id, "alerts", 0, None, 51)),
        "one dead letter": (dead_batches._LIST, (world.org_id, None, 0, new_id(), 1)),
        "dead letters of jobs": (jobs._DEAD_LETTERS, ([world.alerts.dataset_uuid],)),
        "files": (files._UNITS, (*world.blocks, 0, 2**60, 501)),
        "rows of files": (files._ROWS, (*world.blocks, ["p:10-19"], [1])),
        "files before a range": (files._BEFORE, (*world.blocks, 1000)),
        "files of a whole generation": (files._WHOLE, world.blocks),
        "files of a moment": (files._UNITS_AS_OF, (*world.blocks, 0, 2**60, 501, datetime.now(UTC))),
        "the moment of a list": (files._NEWEST, world.blocks),
        "committed units": (lineage._COMMITTED, (*world.blocks, -1, 0, 2**60, 51)),
        "one committed unit": (lineage._COMMITTED_UNIT, (*world.blocks, ["p:10-19"])),
        "announced units": (lineage._ANNOUNCED, (*world.ticks, 2**60, None, 0, 2**60, True, 51)),
        "what was read": (reads._READ, (*world.blocks, 0, 2**60, datetime.now(UTC), 20_000, 20)),
        "the end of a look": (lineage._LAST_LOOKED_AT, (*world.ticks, 2**60)),
    }


async def _explain(dsn: str, statement: str, arguments: int) -> str:
    """The plan for whatever arguments come: what a statement that is used often ends up with."""
    connection = await asyncpg.connect(dsn, server_settings={"plan_cache_mode": "force_generic_plan", "jit": "off"})
    try:
        await connection.execute(f"PREPARE wanted AS {statement}")
        rows = await connection.fetch(f"EXPLAIN EXECUTE wanted ({', '.join(['NULL'] * arguments)})")
    finally:
        await connection.close()
    return "\n".join(row[0] for row in rows)


def plans(world: World, statement: str, arguments: tuple[Any, ...]) -> list[str]:
    """For these very arguments, and for any."""
    special = "\n".join(row[0] for row in world.sql(f"EXPLAIN {statement}", *arguments))
    return [special, asyncio.run(_explain(world.harness.state_dsn, statement, len(arguments)))]


def assert_none_scans(world: World, wanted: dict[str, tuple[str, tuple[Any, ...]]]) -> None:
    for name, (statement, arguments) in wanted.items():
        for text in plans(world, statement, arguments):
            for table in LARGE:
                assert f"Seq Scan on {table}" not in text, f"{name}:\n{text}"


def test_no_statement_scans_a_table_of_finished_work(world: World) -> None:
    assert_none_scans(world, statements(world))


@pytest.mark.parametrize("name", ["live tasks", "dags", "jobs"])
def test_open_tasks_are_counted_among_the_live_alone(world: World, name: str) -> None:
    for text in plans(world, *statements(world)[name]):
        assert "tasks_live" in text or "tasks_running" in text, text
        assert "tasks_by_job" not in text, text


def test_a_commit_finds_its_batches_and_the_last_one_by_its_number(world: World) -> None:
    for name in ("batches of commits", "a table and its last commit"):
        for text in plans(world, *statements(world)[name]):
            assert "buffer_publishes_by_commit" in text, text
            sorts = re.findall(r"Sort Key: (.*)", text)
            assert "p.commit_seq DESC" not in sorts, text
            assert name != "batches of commits" or re.search(r"Index Cond: .*commit_seq = ", text), text
