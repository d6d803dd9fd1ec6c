"""Events while an operator runs: heard once, however often the Dispatcher was away, and never after the fence."""

import asyncio
import threading
from collections.abc import Callable
from uuid import uuid4

import pytest

from tests.worker.conftest import Bench
from tests.worker.fake_dispatcher import FakeTask, until
from tracelake.errors import TraceError
from tracelake.wire.head_progress import HeadProgress
from tracelake.wire.units import EventIn, StorageOut, TaskOutput
from tracelake.worker import CanceledError, EmitRefusedError, OperatorContext, OperatorResult
from tracelake.worker.operators import Operator

DATASET = uuid4()
VERSION = uuid4()


def event(cursor: int) -> EventIn:
    return EventIn(dataset_uuid=DATASET, dataset_version=VERSION, cursor=cursor)


class Source:
    """An operator that emits when the test says so, and tells what came of it."""

    def __init__(self) -> None:
        self.go = threading.Semaphore(0)
        self.said: list[int] = []
        self.errors: list[BaseException] = []
        self.paused: list[bool] = []

    def __call__(self, context: OperatorContext) -> OperatorResult:
        cursor = 0
        while True:
            self.go.acquire()
            cursor += 1
            self.paused.append(context.paused.is_set())
            try:
                context.emit([event(cursor)])
            except BaseException as error:
                self.errors.append(error)
                raise
            self.said.append(cursor)


def with_source(bench: Bench) -> tuple[Source, FakeTask]:
    source = Source()
    bench.operators["sleep"] = Operator(source)
    return source, bench.dispatcher.add("sleep", {"seconds": 0})


def cursors(task: FakeTask) -> list[int | None]:
    return [item.cursor for item in task.events]


def test_emit_returns_when_the_events_are_stored(bench: Bench) -> None:
    async def main() -> None:
        source, task = with_source(bench)
        async with bench.working():
            await bench.wake(task)
            for number in (1, 2, 3):
                source.go.release()
                await until(lambda number=number: len(source.said) == number, "the emit")  # type: ignore[misc]
                assert cursors(task) == list(range(1, number + 1))
            assert task.status == "Running"
            task.cancel = True
            heartbeats = bench.dispatcher.calls["heartbeat"]
            await until(lambda: bench.dispatcher.calls["heartbeat"] > heartbeats + 2, "heartbeats")
            source.go.release()
            await until(lambda: task.status == "Canceled", "the end")
        assert isinstance(source.errors[0], CanceledError)
        assert cursors(task) == [1, 2, 3], "nothing is said after the cancel"

    asyncio.run(main())


def test_emit_waits_for_a_dispatcher_that_is_away(bench: Bench) -> None:
    async def main() -> None:
        source, task = with_source(bench)
        async with bench.working():
            await bench.wake(task)
            await until(lambda: task.heartbeats, "the start")
            bench.dispatcher.away = True
            source.go.release()
            before = bench.dispatcher.refused_while_away["batch"]
            await until(lambda: bench.dispatcher.refused_while_away["batch"] > before + 3, "some tries")
            assert source.said == []
            bench.dispatcher.away = False
            await until(lambda: source.said == [1], "the emit")
            assert cursors(task) == [1]
            task.cancel = True
            await until(lambda: task.heartbeats > 3, "heartbeats")
            source.go.release()

    asyncio.run(main())


def test_an_answer_that_was_lost_is_asked_for_again(bench: Bench) -> None:
    async def main() -> None:
        source, task = with_source(bench)
        async with bench.working():
            await bench.wake(task)
            await until(lambda: task.heartbeats, "the start")
            bench.dispatcher.lose_answers = True
            source.go.release()
            await until(lambda: bench.dispatcher.calls["events"] > 2, "repeats")
            assert (source.said, cursors(task)) == ([], [1])
            bench.dispatcher.lose_answers = False
            await until(lambda: source.said == [1], "the emit")
            assert cursors(task) == [1]
            task.status = "Canceled"
            await until(lambda: bench.signals["fenced"], "the fence")
            source.go.release()

    asyncio.run(main())


def test_an_expired_token_is_replaced(bench: Bench) -> None:
    async def main() -> None:
        source, task = with_source(bench)
        async with bench.working(heartbeat_seconds=3600):
            await bench.wake(task)
            await until(lambda: bench.signals["claimed"], "the claim")
            bench.dispatcher.expire_tokens()
            source.go.release()
            await until(lambda: source.said == [1], "the emit")
            assert bench.dispatcher.calls["token"] == 1
            bench.dispatcher.fence(task)
            source.go.release()
            await until(lambda: source.errors, "the end")

    asyncio.run(main())


def test_a_fenced_emit_stops_the_operator_and_says_nothing_more(bench: Bench) -> None:
    async def main() -> None:
        source, task = with_source(bench)
        async with bench.working(heartbeat_seconds=3600):  # the emit hears of it first
            await bench.wake(task)
            await until(lambda: bench.signals["claimed"], "the claim")
            bench.dispatcher.fence(task)
            source.go.release()
            await until(lambda: bench.tasks_signalled["fenced", task.task_id], "the fence")
            await bench.until_empty()
        assert isinstance(source.errors[0], CanceledError)
        assert bench.dispatcher.calls["complete"] == 0
        assert task.events == []

    asyncio.run(main())


def test_events_that_are_refused_are_the_operators_failure(bench: Bench) -> None:
    async def main() -> None:
        source, task = with_source(bench)
        async with bench.working():
            await bench.wake(task)
            await until(lambda: task.heartbeats, "the start")
            task.refuse.append(TraceError("dataset_forbidden"))
            source.go.release()
            await until(lambda: task.status == "Failed", "the failure")
        assert isinstance(source.errors[0], EmitRefusedError)
        assert task.final is not None
        assert "dataset_forbidden" in (task.final.error_message or "")
        assert task.final.retryable

    asyncio.run(main())


def test_a_worker_that_ends_leaves_no_emit_waiting(bench: Bench) -> None:
    async def main() -> Source:
        source, task = with_source(bench)
        async with bench.working(grace_seconds=0):
            await bench.wake(task)
            await until(lambda: task.heartbeats, "the start")
            bench.dispatcher.away = True
            source.go.release()
            before = bench.dispatcher.refused_while_away["batch"]
            await until(lambda: bench.dispatcher.refused_while_away["batch"] > before + 2, "some tries")
        await until(lambda: source.errors, "the end of the emit")
        return source

    assert isinstance(asyncio.run(main()).errors[0], CanceledError)


@pytest.mark.parametrize("count", [0, 1, 1000, 2500])
def test_many_events_go_in_calls_of_the_size_that_is_taken(bench: Bench, count: int) -> None:
    async def main() -> None:
        def emit(context: OperatorContext) -> OperatorResult:
            context.emit([event(cursor) for cursor in range(count)])
            return OperatorResult()

        bench.operators["sleep"] = Operator(emit)
        task = bench.dispatcher.add("sleep", {"seconds": 0})
        async with bench.working():
            await bench.wake(task)
            await until(lambda: task.status == "Completed", "the end")
        assert cursors(task) == list(range(count))
        assert bench.dispatcher.calls["events"] == -(-count // 1000)

    asyncio.run(main())


def test_an_inline_operator_cannot_wait_for_its_own_loop(bench: Bench) -> None:
    async def main() -> None:
        def emit(context: OperatorContext) -> OperatorResult:
            context.emit([event(1)])
            return OperatorResult()

        bench.operators["noop"] = Operator(emit, inline=True)
        task = bench.dispatcher.add("noop")
        async with bench.working():
            await bench.wake(task)
            await until(lambda: task.status == "Failed", "the failure")
        assert task.final is not None
        assert "an inline operator returns what it has to say" in (task.final.error_message or "")

    asyncio.run(main())


def test_the_heartbeat_says_when_to_pause(bench: Bench) -> None:
    async def main() -> None:
        contexts: list[OperatorContext] = []

        def wait(context: OperatorContext) -> OperatorResult:
            contexts.append(context)
            context.cancel.wait()
            raise CanceledError

        bench.operators["sleep"] = Operator(wait)
        task = bench.dispatcher.add("sleep", {"seconds": 0})
        async with bench.working():
            await bench.wake(task)
            await until(lambda: task.heartbeats, "the start")
            for pause in (True, False):
                task.pause = pause
                await until(told(contexts, pause), f"pause {pause}")
            task.cancel = True
            await until(lambda: task.status == "Canceled", "the end")

    asyncio.run(main())


def told(contexts: list[OperatorContext], pause: bool) -> Callable[[], bool]:
    return lambda: bool(contexts) and contexts[0].paused.is_set() is pause


def test_a_ticker_ticks_until_it_is_told_to_stop(bench: Bench) -> None:
    async def main() -> None:
        output = TaskOutput(
            output_index=0, dataset_uuid=DATASET, dataset_version=VERSION, storage=StorageOut(kind="none")
        )
        task = bench.dispatcher.add("ticker", {"seconds": 0.01}, outputs=[output])
        async with bench.working():
            await bench.wake(task)
            await until(lambda: len(task.events) > 5, "ticks")
            task.cancel = True
            await until(lambda: task.status == "Canceled", "the end")
        found = [cursor for cursor in cursors(task) if cursor is not None]
        assert found == list(range(found[0], found[0] + len(found)))

    asyncio.run(main())


@pytest.mark.parametrize("answered", [True, False])
def test_an_attempt_that_fails_tells_its_progress_before(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, answered: bool
) -> None:
    """However long its heartbeats are apart; if the Dispatcher does not take it, the attempt fails without it."""

    def follow(context: OperatorContext) -> OperatorResult:
        context.report(HeadProgress(state="reorg_too_deep", stored=7))
        raise RuntimeError("reorg_too_deep: no")

    async def main() -> None:
        bench.operators["sleep"] = Operator(follow)
        task = bench.dispatcher.add("sleep", {"seconds": 0})
        if not answered:
            monkeypatch.setattr(bench.dispatcher, "_heartbeat", lambda _task: TraceError("listener_busy"))
        async with bench.working(heartbeat_seconds=3600):
            await bench.wake(task)
            await bench.until_empty()
        assert task.final is not None
        assert task.final.error_message == "RuntimeError: reorg_too_deep: no"
        assert task.progress == HeadProgress(state="reorg_too_deep", stored=7)

    asyncio.run(main())


def test_heartbeats_carry_the_latest_progress_and_nothing_before(bench: Bench) -> None:
    reported = threading.Event()

    def follow(context: OperatorContext) -> OperatorResult:
        reported.wait(30)
        context.report(HeadProgress(state="appended", stored=6))
        context.report(HeadProgress(state="at_head", stored=7))
        context.cancel.wait(30)
        raise CanceledError

    async def main() -> None:
        bench.operators["sleep"] = Operator(follow)
        task = bench.dispatcher.add("sleep", {"seconds": 0})
        async with bench.working():
            await bench.wake(task)
            await until(lambda: task.heartbeats, "the start")
            assert task.progress is None
            reported.set()
            await until(lambda: task.progress is not None and task.progress.stored == 7, "the progress")
            task.cancel = True
            await bench.until_empty()

    asyncio.run(main())
