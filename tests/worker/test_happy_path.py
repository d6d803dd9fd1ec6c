"""Tasks run, are reported in batches, and their messages go."""

import asyncio
from collections.abc import Sequence
from uuid import uuid4

import pytest

from tests.worker.conftest import QUEUE, Bench
from tests.worker.fake_dispatcher import until
from tracelake.catalogue import CATALOGUE
from tracelake.ports import Delivery
from tracelake.spark.operators import OPERATORS as SPARK_OPERATORS
from tracelake.wire.units import EventIn
from tracelake.worker import OperatorContext, OperatorResult
from tracelake.worker.feeds import FEEDS
from tracelake.worker.operators import OPERATORS, Operator


def test_every_operator_of_the_catalogue_has_its_function() -> None:
    assert {*OPERATORS, *FEEDS, *SPARK_OPERATORS} == {name for name, spec in CATALOGUE.items() if spec.for_workers}


def test_many_tasks_complete_and_are_acked(bench: Bench) -> None:
    async def main() -> None:
        tasks = [bench.dispatcher.add("noop") for _ in range(150)]
        tasks += [bench.dispatcher.add("sleep", {"seconds": 0.001}) for _ in range(50)]
        async with bench.working():
            await bench.wake(*tasks)
            await until(lambda: all(task.status == "Completed" for task in tasks), "all tasks")
            await bench.until_empty()
        assert {task.attempt for task in tasks} == {1}
        assert {len(task.claim_ids) for task in tasks} == {1}
        assert bench.dispatcher.calls["complete"] == 200
        assert bench.dispatcher.calls["claim"] < 200, "claims go in batches"
        assert max(bench.dispatcher.batches) > 1, "final words go in batches"

    asyncio.run(main())


def test_no_more_at_once_than_there_are_slots(bench: Bench) -> None:
    async def main() -> None:
        running: set[object] = set()
        most = 0
        gate = asyncio.Event()
        loop = asyncio.get_running_loop()

        def busy(context: OperatorContext) -> OperatorResult:
            nonlocal most
            running.add(context.task_id)
            most = max(most, len(running))
            asyncio.run_coroutine_threadsafe(gate.wait(), loop).result()
            running.discard(context.task_id)
            return OperatorResult()

        bench.operators["sleep"] = Operator(busy)
        tasks = [bench.dispatcher.add("sleep", {"seconds": 0}) for _ in range(10)]
        async with bench.working(slots=3):
            await bench.wake(*tasks)
            await until(lambda: len(running) == 3, "three at once")
            depth = await bench.depth()
            assert (depth.ready, depth.in_flight) == (7, 3), "what cannot run is left to others"
            gate.set()
            await bench.until_empty()
        assert most == 3
        assert all(task.status == "Completed" for task in tasks)

    asyncio.run(main())


def test_the_result_of_an_operator_is_reported(bench: Bench) -> None:
    async def main() -> None:
        event = EventIn(dataset_uuid=uuid4(), dataset_version=uuid4(), cursor=7)
        seen: list[OperatorContext] = []

        def emit(context: OperatorContext) -> OperatorResult:
            seen.append(context)
            context.progress("half way")
            return OperatorResult(events=[event])

        bench.operators["noop"] = Operator(emit)
        task = bench.dispatcher.add()
        async with bench.working():
            await bench.wake(task)
            await bench.until_empty()
        assert task.final is not None
        assert task.final.events == [event]
        assert (seen[0].task_id, seen[0].attempt) == (task.task_id, 1)

    asyncio.run(main())


@pytest.mark.parametrize("status", ["Running", "Completed", "Canceled", "Failed", "NotReady", None])
def test_what_cannot_be_claimed_is_acked(bench: Bench, status: str | None) -> None:
    async def main() -> None:
        task_id = uuid4() if status is None else bench.dispatcher.add(status=status).task_id
        async with bench.working():
            await bench.wake(task_id)
            await until(lambda: bench.tasks_signalled["not_claimed", task_id], "the refusal")
            await bench.until_empty()
        assert bench.dispatcher.calls["complete"] == 0

    asyncio.run(main())


def test_a_second_wake_up_of_a_running_task_is_acked_and_changes_nothing(bench: Bench) -> None:
    async def main() -> None:
        task = bench.dispatcher.add("sleep", {"seconds": 3600})
        async with bench.working():
            await bench.wake(task)
            await until(lambda: task.heartbeats, "a heartbeat")
            await bench.wake(task)
            await until(lambda: bench.tasks_signalled["not_claimed", task.task_id], "the refusal")
            await until(lambda: bench.signals["acked"], "the ack")
            assert (await bench.depth()).in_flight == 1
            beats = task.heartbeats
            await until(lambda: task.heartbeats > beats + 1, "the first to go on")
            assert (task.status, task.attempt) == ("Running", 1)
            task.cancel = True
            await bench.until_empty()

    asyncio.run(main())


def test_messages_stay_hidden_while_their_task_runs(frozen_bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = frozen_bench

    async def main() -> None:
        task = bench.dispatcher.add("sleep", {"seconds": 3600})
        async with bench.working(visibility_seconds=0.06):
            extends: list[int] = []
            extend = bench.queue.extend

            async def counting(deliveries: Sequence[Delivery], seconds: float) -> int:
                held = await extend(deliveries, seconds)
                extends.append(held)
                return held

            monkeypatch.setattr(bench.queue, "extend", counting)
            await bench.wake(task)
            await until(lambda: len(extends) >= 3, "extends")
            assert set(extends) == {1}
            task.cancel = True
            await bench.until_empty()

    asyncio.run(main())


def test_several_queues_share_the_slots(bench: Bench) -> None:
    async def main() -> None:
        blocking = [bench.dispatcher.add("sleep", {"seconds": 3600}) for _ in range(5)]
        tasks = [bench.dispatcher.add() for _ in range(20)]
        async with bench.working(queues=("tasks.busy", QUEUE), slots=4):
            await bench.wake(*blocking, queue="tasks.busy")
            await until(lambda: bench.signals["claimed"] == 2, "the busy queue's share")
            await bench.wake(*tasks)
            await until(lambda: all(task.status == "Completed" for task in tasks), "the other queue's tasks")
            assert [task.status for task in blocking].count("Running") == 2
            for task in blocking:
                task.cancel = True
            await bench.until_empty()

    asyncio.run(main())
