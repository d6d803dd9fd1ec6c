"""Invalidations of more units than fit into one transaction: accepted at once, made page by page, every unit once."""

from typing import Any

import pytest

from tests.routing.support import Flow, block
from tests.routing.test_routing import FEED, Feeder
from tests.support import dags
from tests.support.state import cancel_queued_tasks, set_edges
from tracelake.dispatcher.engine.catch_up import invalidation_drain
from tracelake.dispatcher.engine.routing.invalidations import AT_ONCE

MANY = 2 * AT_ONCE + 500
END = MANY * 10 - 1
ALL = {"start": 0, "end": END, "reason": "reorg"}
RANGES = {f"p:{start}-{start + 9}" for start in range(0, MANY * 10, 10)}

_CURSOR_TASKS = """
    INSERT INTO tasks (task_id, org_id, job_id, status, attempt, outcome, lease_token, finished_at, inputs, unit,
                       node_id, edge, unit_key, unit_start, unit_end, revision, revision_kind)
    SELECT gen_random_uuid(), $1, $2, 'Completed', 1, 'Completed', gen_random_uuid(), trace_now(), '[]', '{}',
           $3, 0, 'c:' || n * 10, n * 10 - 9, n * 10, revision, $6
    FROM generate_series(1, $4::int) n, unnest($5::text[]) AS revision"""


@pytest.fixture
def feeder(flow: Flow) -> Feeder:
    """Its first output has many units of ten blocks side by side."""
    made = Feeder(flow)
    there(flow, 0, END)
    return made


def there(flow: Flow, start: int, end: int, *, size: int = 10, index: int = 0) -> None:
    generation = dags.output(flow.harness, "d", "feeder", index)
    flow.harness.sql(
        "INSERT INTO dataset_runs VALUES ($1, $2, $3, $4, $5, $6)", *generation, size, start % size, start, end
    )


def work(flow: Flow) -> dict[str, Any]:
    """By job: how far it has come."""
    rows = flow.harness.sql(
        """SELECT n.job_name, w.unit_size, w.unit_offset, w.unit_start, w.cursor
           FROM invalidation_work w JOIN nodes n USING (node_id)"""
    )
    return {row["job_name"]: tuple(row)[1:] for row in rows}


def invalidation(flow: Flow) -> str:
    (row,) = flow.harness.sql("SELECT invalidation_id FROM invalidations")
    found: str = row["invalidation_id"]
    return found


def round_of_drain(flow: Flow) -> int:
    done: int = flow.harness.run(flow.harness.dispatcher.drain.run_once())
    return done


def repair(flow: Flow) -> int:
    found: int = flow.harness.run(flow.harness.dispatcher.routing_reconciler.run_once())
    return found


def test_it_is_accepted_at_once_and_made_page_by_page(flow: Flow, feeder: Feeder) -> None:
    there(flow, 100, 119, index=1)
    feeder.say(block(50, 59) | {"invalidates": ALL})
    again = invalidation(flow)
    assert flow.units("each") == flow.units("part") == [("p:50-59", again)], "its own unit has its task already"
    assert set(work(flow)) == {"each", "part", "join"}
    assert repair(flow) == 0, "what is still to come is not lost"
    assert round_of_drain(flow) == 3
    made = len(flow.units("each"))
    assert 1 < made <= invalidation_drain.PAGE
    assert work(flow)["each"] == (10, 0, (made - 1) * 10, None)
    flow.harness.restart()
    flow.drain()
    assert work(flow) == {}
    for job in ("each", "part"):
        assert flow.units(job) == sorted((unit, again) for unit in RANGES), job
    assert flow.units("join") == [("p:100-109", f"{again}|"), ("p:110-119", f"{again}|")]
    assert repair(flow) == 0
    assert flow.drain() == 0


def test_pages_made_again_make_no_second_task(flow: Flow, feeder: Feeder) -> None:
    feeder.say(block(50, 59) | {"invalidates": ALL})
    flow.drain()
    before = {job: flow.units(job) for job in ("each", "part", "join")}
    # As after a crash between a page and its position.
    flow.harness.sql("UPDATE edges SET position = 0 WHERE phase = 'Active'")
    flow.drain()
    assert work(flow) == {}
    assert {job: flow.units(job) for job in before} == before


def test_ranges_of_every_grid_and_cursors_as_they_were(flow: Flow, feeder: Feeder) -> None:
    there(flow, 5, 44)
    there(flow, 0, 69, size=7)
    there(flow, END - 4, END + 5, size=5)
    there(flow, END + 100, END + 199)
    each = dags.job(flow.harness, "d", "each")
    place = (each["org_id"], each["job_id"], each["node_id"])
    flow.harness.sql(_CURSOR_TASKS, *place, MANY, ["", "r"], "event")
    flow.harness.sql(_CURSOR_TASKS, *place, MANY + 7, ["by hand"], "manual")
    set_edges(flow.harness, each["node_id"], routed=MANY * 10)
    feeder.say({"cursor": 100, "revision": "fork", "invalidates": ALL})
    again = invalidation(flow)
    assert ("c:100", again) in flow.units("each"), "such a unit was there"
    assert ("c:100", "fork") in flow.units("part"), "no unit of this one ends there"
    flow.drain()
    wanted = RANGES | {f"p:{start}-{start + 9}" for start in range(5, 45, 10)}
    wanted |= {f"p:{start}-{start + 6}" for start in range(0, 70, 7)} | {f"p:{END - 4}-{END}"}
    assert [unit for unit, revision in flow.units("part") if revision == again] == sorted(wanted)
    wanted |= {f"c:{cursor}" for cursor in range(10, MANY * 10 + 1, 10)}
    made = [task for task in flow.tasks("each") if task["revision"] == again]
    assert sorted(task["unit_key"] for task in made) == sorted(wanted)
    assert ("c:100", "fork") not in flow.units("each")
    assert all(
        task["unit"]["cursor"]["after"] == task["unit"]["cursor"]["to"] - 10
        for task in made
        if "cursor" in task["unit"]
    )
    assert dags.edge(flow.harness, "d", "each")["routed"] == MANY * 10, "what is made again takes no edge on"


def test_an_event_beside_the_range_has_its_unit_as_always(flow: Flow, feeder: Feeder) -> None:
    feeder.say(block(END + 1, END + 10) | {"invalidates": ALL})
    assert flow.units("each") == [(f"p:{END + 1}-{END + 10}", "")]
    flow.drain()
    assert len(flow.units("each")) == MANY + 1


def test_many_small_ones_at_once_are_a_large_one(flow: Flow, feeder: Feeder) -> None:
    half = {"start": 0, "end": 10 * (AT_ONCE // 2) - 1, "reason": "x"}
    feeder.say(*({"partition_key": name, "invalidates": half} for name in ("eu", "us", "asia")))
    assert len(flow.units("each")) == 3 + AT_ONCE
    assert set(work(flow)) == {"each", "part", "join"}
    flow.drain()
    assert len(flow.units("each")) == 3 + 3 * (AT_ONCE // 2)


def test_one_in_a_history_is_built_before_it_counts(flow: Flow, feeder: Feeder) -> None:
    feeder.say(block(50, 59) | {"invalidates": ALL})
    flow.drain()
    text = (
        FEED
        + """
  - {name: late, activation: reactive, operator: noop, inputs: [{from: {job: feeder}}]}
"""
    )
    assert flow.deploy(text).state == "Building"
    assert round_of_drain(flow)
    cancel_queued_tasks(flow.harness)
    assert set(work(flow)) == {"late"}
    assert dags.run_builds(flow.harness) == 0, "units of it are still to be made"
    while work(flow):
        round_of_drain(flow)
    again = invalidation(flow)
    assert flow.units("late") == sorted((unit, again) for unit in RANGES)
    cancel_queued_tasks(flow.harness)
    assert dags.run_builds(flow.harness) == 1


def test_a_version_that_does_not_count_goes_on_when_it_does(flow: Flow, feeder: Feeder) -> None:
    feeder.say(block(50, 59) | {"invalidates": ALL})
    round_of_drain(flow)
    made = len(flow.units("each"))
    each = dags.job(flow.harness, "d", "each")["node_id"]
    set_edges(flow.harness, each, phase="Parked", position=1000)
    flow.drain()
    assert set(work(flow)) == {"each"}
    assert len(flow.units("each")) == made
    set_edges(flow.harness, each, phase="Active")
    flow.drain()
    assert len(flow.units("each")) == MANY


def test_a_reader_of_another_generation_makes_nothing_again(flow: Flow, feeder: Feeder) -> None:
    feeder.say(block(50, 59) | {"invalidates": ALL})
    each = dags.job(flow.harness, "d", "each")["node_id"]
    other = dags.output(flow.harness, "d", "feeder", 1)
    # As a cutover of the producer leaves it.
    flow.harness.sql("UPDATE edges SET dataset_uuid = $2, dataset_version = $3 WHERE node_id = $1", each, *other)
    flow.drain()
    assert (work(flow), len(flow.units("each"))) == ({}, 1)


def test_a_full_queue_is_not_flooded(flow: Flow) -> None:
    flow.deploy(
        """
name: d
defaults: {runtime: ecs_platform}
jobs:
  - {name: src, activation: source, source: {kind: manual}}
  - {name: feeder, activation: reactive, operator: noop, inputs: [{from: {job: src}}]}
  - {name: slow, activation: reactive, operator: noop, inputs: [{from: {job: feeder}}], max_queue_depth: 10}
"""
    )
    there(flow, 0, END)
    flow.trigger("d", "src", cursor=0)
    task = flow.tasks("feeder")[0]["task_id"]
    flow.say(task, flow.claim(task), flow.event("d", "feeder", **block(50, 59), invalidates=ALL))
    flow.drain()
    assert len(flow.units("slow")) == 10
    for ready in flow.tasks("slow", "Queued"):
        flow.pass_on(ready["task_id"])
    flow.drain()
    assert len(flow.units("slow")) == 20
    assert set(work(flow)) == {"slow"}


LATE_JOIN = """
  - name: late
    activation: reactive
    operator: noop
    execution_strategy: PerPartition
    inputs: [{from: {job: feeder}}, {from: {job: feeder, output_index: 1}}]
"""


def test_a_history_that_is_shown_again_takes_no_revision_back(flow: Flow) -> None:
    feeder = Feeder(flow)
    feeder.say(block(0, 9) | {"revision": "x"})
    assert flow.deploy(FEED + LATE_JOIN).state == "Building"
    feeder.say(block(0, 9) | {"revision": "y"})
    flow.drain()
    feeder.say(block(0, 9) | {"revision": "b"}, index=1)
    assert flow.units("join") == [("p:0-9", "y|b")]
