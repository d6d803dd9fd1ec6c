"""An explanation looks at what is live and at the newest of the rest, however much is stored."""

from typing import Any

import pytest

from tests.api.conftest import harness as harness
from tests.api.support import World
from tests.api.test_costs import assert_none_scans, plans
from tests.api.test_costs import world as world
from tracelake.dispatcher.views import pressure
from tracelake.dispatcher.why import buffered, dataset, facts, job, source, task
from tracelake.model.ids import new_id


def statements(world: World) -> dict[str, tuple[str, tuple[Any, ...]]]:
    org, node, now = world.org_id, world.fetch_node, world.sql("SELECT trace_now() AS now")[0]["now"]
    version = world.sql("SELECT active_version FROM dags WHERE org_id = $1 AND dag_name = 'chain'", org)[0][0]
    uuids, versions = [world.ticks.dataset_uuid], [world.ticks.dataset_version]
    return {
        "queues": (pressure._QUEUES, (org,)),
        "pressed edges": (pressure._EDGES, (org, [node], uuids, versions)),
        "held tasks": (pressure._HELD, ([node],)),
        "pauses": (pressure._PAUSED, (org,)),
        "a task": (task._TASK, (new_id(), org)),
        "a limit": (task._LIMIT, ("job:x", org, now, new_id(), "job:x")),
        "a held edge": (task._EDGE, (node, 0)),
        "a dag": (facts._DAG, (org, "chain", "fetch")),
        "a job": (facts._JOB, (version, "fetch")),
        "edges": (facts._EDGES, (node,)),
        "tasks": (facts._TASKS, (node,)),
        "who holds an edge": (job._HOLDER, (node, 0)),
        "what was said": (source._SAID, (world.clock,)),
        "a run": (source._RUN, (node,)),
        "what runs": (facts._RUNNING, (org, "ecs_platform")),
        "units of a join": (facts._UNITS, (*world.ticks,)),
        "a dataset": (dataset._DATASET, (org, "blocks")),
        "batches of a dataset": (buffered._STATE, (uuids,)),
        "writers": (dataset._WRITERS, (org, uuids, versions)),
    }


def test_no_statement_scans_a_table_of_finished_work(world: World) -> None:
    assert_none_scans(world, statements(world))


@pytest.mark.parametrize("name", ["queues", "held tasks", "tasks", "who holds an edge", "what runs"])
def test_tasks_are_looked_for_among_the_live_alone(world: World, name: str) -> None:
    for text in plans(world, *statements(world)[name]):
        assert "tasks_by_job" not in text, text
