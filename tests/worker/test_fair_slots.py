"""Orgs share a worker's slots: an org with ten thousand long tasks does not keep another org waiting."""

import asyncio
import threading
from collections.abc import Sequence
from uuid import UUID

import msgspec

from tests.worker.conftest import QUEUE, Bench
from tests.worker.fake_dispatcher import FakeTask, until
from tracelake.ports.queue import Message
from tracelake.worker import OperatorContext, OperatorResult
from tracelake.worker.operators import Operator

BACKLOG = 10_000
SLOTS = 8


class LongTasks:
    """Tasks that end when the test says so, one by one."""

    def __init__(self, bench: Bench) -> None:
        self.started: list[UUID] = []
        self._ends: dict[UUID, threading.Event] = {}
        self._lock = threading.Lock()
        bench.operators["sleep"] = Operator(self._run)

    def _run(self, context: OperatorContext) -> OperatorResult:
        with self._lock:
            end = self._ends[context.task_id] = threading.Event()
            self.started.append(context.task_id)
        while not end.wait(0.02) and not context.cancel.is_set():
            pass
        return OperatorResult()

    def end(self, task_id: UUID) -> None:
        self._ends[task_id].set()


def add(bench: Bench, count: int) -> list[FakeTask]:
    return [bench.dispatcher.add("sleep", {"seconds": 0}) for _ in range(count)]


async def publish(bench: Bench, org: str, tasks: Sequence[FakeTask]) -> None:
    bodies = [msgspec.json.encode({"task_id": task.task_id}) for task in tasks]
    for at in range(0, len(tasks), 2000):
        await bench.queue.publish([Message(QUEUE, f"{org}{at}", body, org) for body in bodies[at : at + 2000]])


def test_a_task_starts_within_the_time_of_one_task_of_an_org_with_ten_thousand(bench: Bench) -> None:
    async def main() -> None:
        work = LongTasks(bench)
        async with bench.working(slots=SLOTS, grace_seconds=0.1):
            await publish(bench, "org-a", add(bench, BACKLOG))
            await until(lambda: len(work.started) == SLOTS, "the slots are full with tasks of org A")
            theirs = list(work.started)
            mine = add(bench, 3)
            await publish(bench, "org-b", mine)
            for number in range(3):
                work.end(theirs[number])
                await until(lambda n=number: len(work.started) == SLOTS + n + 1, "the slot is used again")  # type: ignore[misc]
            assert set(work.started[SLOTS:]) == {task.task_id for task in mine}, "whoever has fewer slots is next"
            work.end(theirs[3])
            await until(lambda: len(work.started) == SLOTS + 4, "org A goes on")
            assert (await bench.depth()).ready == BACKLOG - SLOTS - 1

    asyncio.run(main())


def test_a_reserved_slot_is_for_an_org_that_has_none(bench: Bench) -> None:
    async def main() -> None:
        work = LongTasks(bench)
        async with bench.working(slots=SLOTS, reserved_slots=1, grace_seconds=0.1):
            await publish(bench, "org-a", add(bench, 3 * SLOTS))
            await until(lambda: len(work.started) == SLOTS - 1, "org A has all that is for everybody")
            mine = add(bench, 2)
            await publish(bench, "org-b", mine)
            await until(lambda: len(work.started) == SLOTS, "org B, though no task of org A ends")
            assert work.started[-1] in {task.task_id for task in mine}

    asyncio.run(main())
