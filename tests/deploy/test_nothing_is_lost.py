"""Events, deploys, rollbacks, builds and workers in any order: in the end the active version made every unit once."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from itertools import count, cycle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.deploy.support import Text, node
from tests.support.dags import activate, actor, deploy, run_builds
from tests.support.dispatcher import DispatcherHarness, fence
from tests.support.postgres import TestCluster
from tracelake.errors import TraceError
from tracelake.wire.dags import ActivateRequest
from tracelake.wire.jobs import TriggerRequest

numbers = count()


@pytest.fixture(scope="module")
def shared(cluster: TestCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DispatcherHarness]:
    """One Dispatcher for all examples; each has a DAG of its own."""
    home: Path = tmp_path_factory.mktemp("home")
    running = DispatcherHarness.start(cluster.fresh("state"), cluster.fresh("queue", role="trace_queue"), home)
    try:
        yield running
    finally:
        running.stop()


class World:
    """tick -> work; `work` exists in several variants, each a version."""

    def __init__(self, harness: DispatcherHarness) -> None:
        self.harness = harness
        self.dag = f"d{next(numbers)}"
        self.cursor = 0
        self.running: list[tuple[str, Any]] = []
        self.deploy(0)

    def deploy(self, variant: int) -> None:
        text = Text(self.dag).source().job("work", "tick", seconds=variant, scaling={"max_concurrency": 2})
        deploy(self.harness, str(text))

    def event(self) -> None:
        self.cursor += 1
        trigger = TriggerRequest(cursor=self.cursor)
        self.harness.run(self.harness.dispatcher.actions.trigger(actor(self.harness), self.dag, "tick", trigger))

    def rollback(self, now: bool) -> None:
        with suppress(TraceError):  # when there is none
            activate(self.harness, self.dag, "previous", now=now)

    def claim(self) -> int:
        ready = self.harness.sql(
            """SELECT t.task_id FROM tasks t JOIN jobs j USING (job_id)
               WHERE j.dag_name = $1 AND t.status = 'Queued' AND NOT t.held ORDER BY t.task_id LIMIT 2""",
            self.dag,
        )
        for row in ready:
            reply = self.harness.claim(str(row["task_id"]))
            assert reply.body["status"] == "Claimed", reply
            self.running.append((str(row["task_id"]), reply.body))
        return len(ready)

    def finish(self) -> int:
        """Workers end what they have: as it should be, or because they were told to stop."""
        ended, self.running = self.running, []
        for task_id, claimed in ended:
            asked = self.harness.row(task_id)["cancel_requested"]
            body = fence(task_id, claimed, status="Canceled" if asked else "Completed")
            reply = self.harness.task("complete", claimed["capability_token"], body)
            assert reply.status == 200, reply
        return len(ended)

    def loops(self) -> int:
        return self.harness.run(self.harness.dispatcher.drain.run_once()) + run_builds(self.harness)

    def settle(self) -> None:
        while self.loops() + self.claim() + self.finish():
            pass


actions = st.one_of(
    st.tuples(st.just("event")),
    st.tuples(st.just("event")),
    st.tuples(st.just("deploy"), st.integers(0, 3)),
    st.tuples(st.just("rollback"), st.booleans()),
    st.tuples(st.just("claim")),
    st.tuples(st.just("finish")),
    st.tuples(st.just("loops")),
)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(steps=st.lists(actions, min_size=5, max_size=30))
def test_every_unit_is_made_once(shared: DispatcherHarness, steps: list[tuple[Any, ...]]) -> None:
    world = World(shared)
    for name, *arguments in steps:
        getattr(world, name)(*arguments)
    world.settle()
    check(shared, world)


def check(harness: DispatcherHarness, world: World) -> None:
    made = harness.sql(
        "SELECT unit_end, status FROM tasks WHERE node_id = $1 ORDER BY unit_end", node(harness, world.dag, "work")
    )
    assert [(row["unit_end"], row["status"]) for row in made] == [
        (cursor, "Completed") for cursor in range(1, world.cursor + 1)
    ]
    limits = harness.sql("SELECT used FROM limits WHERE limit_key LIKE '%:' || $1 || ':work'", world.dag)
    assert [row["used"] for row in limits] == [0]
    assert not harness.sql("SELECT FROM activations WHERE dag_name = $1 AND state = 'Building'", world.dag)


def test_every_unit_is_made_once_while_everything_happens_at_once(shared: DispatcherHarness) -> None:
    world = World(shared)
    for variant in (1, 2):
        world.deploy(variant)
    who, dispatcher = actor(shared), shared.dispatcher
    events = 200

    async def emit() -> None:
        for cursor in range(1, events + 1):
            await dispatcher.actions.trigger(who, world.dag, "tick", TriggerRequest(cursor=cursor))

    async def move(emitting: "asyncio.Task[None]") -> None:
        versions = cycle([1, 2, 3])
        while not emitting.done():
            request = ActivateRequest(version=next(versions), now=True)
            await dispatcher.deployments.activate(who, world.dag, request)

    async def drain(emitting: "asyncio.Task[None]") -> None:
        while not emitting.done():
            await dispatcher.drain.run_once()
            await dispatcher.builds.run_once()

    async def work(emitting: "asyncio.Task[None]") -> None:
        """Claims, without the routing lock, lock the same tasks."""
        while not emitting.done():
            for row in await shared._sql(
                "SELECT task_id FROM tasks WHERE status = 'Queued' AND NOT held ORDER BY random() LIMIT 5"
            ):
                body = {"task_id": str(row["task_id"]), "worker_id": "test"}
                headers = {"x-trace-worker-token": shared.worker_token}
                reply = await shared.call_async("internal", "POST", "/internal/task-claim", body, headers)
                if reply.body["status"] == "Claimed":
                    world.running.append((str(row["task_id"]), reply.body))

    async def everything() -> None:
        emitting = asyncio.create_task(emit())
        await asyncio.gather(emitting, move(emitting), drain(emitting), work(emitting))

    shared.run(everything(), timeout=120)
    world.cursor = events
    world.settle()
    check(shared, world)
