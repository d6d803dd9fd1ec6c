"""Operators and messages that misbehave end as failures of their own; the worker and its neighbours go on."""

import asyncio
from typing import Any
from uuid import uuid4

import pytest

from tests.worker.conftest import QUEUE, Bench
from tests.worker.fake_dispatcher import until
from tracelake.errors import TraceError
from tracelake.wire.task_calls import CompleteRequest
from tracelake.wire.units import EventIn
from tracelake.worker import CanceledError, NonRetryableError, OperatorContext, OperatorResult
from tracelake.worker.operators import Operator


def outcome_of(bench: Bench, operator: Operator) -> CompleteRequest:
    """The final word, with a healthy neighbour before and after."""

    async def main() -> CompleteRequest:
        bench.operators["sleep"] = operator
        first, task, last = (
            bench.dispatcher.add(),
            bench.dispatcher.add("sleep", {"seconds": 0}),
            bench.dispatcher.add(),
        )
        async with bench.working():
            await bench.wake(first, task, last)
            await bench.until_empty()
        assert (first.status, last.status) == ("Completed", "Completed")
        assert task.final is not None
        return task.final

    return asyncio.run(main())


def raising(error: BaseException) -> Any:
    def run(_context: OperatorContext) -> OperatorResult:
        raise error

    return run


@pytest.mark.parametrize("inline", [True, False])
@pytest.mark.parametrize(
    ("error", "text", "retryable"),
    [
        (ValueError("bad block 7"), "ValueError: bad block 7", True),
        (KeyError(), "KeyError", True),
        (NonRetryableError("no such column"), "no such column", False),
        (CanceledError("nobody asked"), "CanceledError: nobody asked", True),
        (RuntimeError("half a \ud800 pair"), "RuntimeError: half a ? pair", True),
        (RuntimeError("x" * 50_000), "RuntimeError: " + "x" * 1986, True),
    ],
)
def test_exceptions(bench: Bench, error: Exception, text: str, retryable: bool, inline: bool) -> None:
    final = outcome_of(bench, Operator(raising(error), inline=inline))
    assert (final.status, final.error_message, final.retryable) == ("Failed", text, retryable)


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), StopIteration(1)])
def test_exceptions_that_would_end_a_worker(bench: Bench, error: BaseException) -> None:
    final = outcome_of(bench, Operator(raising(error)))
    assert final.status == "Failed"
    assert type(error).__name__ in (final.error_message or "")


@pytest.mark.parametrize(
    "result",
    [
        None,
        "nonsense",
        OperatorResult(events=[object()]),  # type: ignore[list-item]
        OperatorResult(events=[EventIn(dataset_uuid=uuid4(), dataset_version=uuid4(), cursor=1, revision="\ud800")]),
    ],
)
def test_results_that_are_none(bench: Bench, result: Any) -> None:
    final = outcome_of(bench, Operator(lambda _: result))
    assert (final.status, final.retryable) == ("Failed", True)


def test_no_traceback_on_the_wire(bench: Bench) -> None:
    final = outcome_of(bench, Operator(raising(ValueError("one line"))))
    assert "Traceback" not in (final.error_message or "")
    assert __file__ not in (final.error_message or "")


@pytest.mark.parametrize(
    ("operator", "config", "text"),
    [
        ("unheard_of", {}, "no operator 'unheard_of'"),
        ("sleep", {"seconds": -1}, "config of sleep is not valid"),
        ("noop", {"extra": 1}, "config of noop is not valid"),
    ],
)
def test_tasks_this_worker_can_never_run(bench: Bench, operator: str, config: dict[str, Any], text: str) -> None:
    async def main() -> None:
        task = bench.dispatcher.add(operator, config)
        async with bench.working():
            await bench.wake(task)
            await bench.until_empty()
        assert task.final is not None
        assert (task.final.status, task.final.retryable) == ("Failed", False)
        assert text in (task.final.error_message or "")

    asyncio.run(main())


def test_fail_attempts_fails_the_first_ones(bench: Bench) -> None:
    async def main() -> None:
        task = bench.dispatcher.add("sleep", {"seconds": 0, "fail_attempts": 2}, attempt=1)
        other = bench.dispatcher.add("sleep", {"seconds": 0, "fail_attempts": 2}, attempt=2)
        async with bench.working():
            await bench.wake(task, other)
            await bench.until_empty()
        assert (task.status, other.status) == ("Failed", "Completed")
        assert task.final is not None
        assert task.final.retryable

    asyncio.run(main())


@pytest.mark.parametrize(
    ("code", "retryable"), [("dataset_forbidden", False), ("publication_conflict", False), ("output_incomplete", True)]
)
def test_a_refused_result_becomes_a_failure(bench: Bench, code: str, retryable: bool) -> None:
    """That is tried again only where another attempt may have another result."""

    async def main() -> None:
        task = bench.dispatcher.add(refuse=[TraceError(code)])
        async with bench.working():
            await bench.wake(task)
            await bench.until_empty()
        assert task.final is not None
        assert (task.final.status, task.final.retryable) == ("Failed", retryable)
        assert code in (task.final.error_message or "")

    asyncio.run(main())


def test_a_refused_failure_is_left_to_the_lease(bench: Bench) -> None:
    async def main() -> None:
        task = bench.dispatcher.add(refuse=[TraceError("body_invalid")] * 2)
        good = bench.dispatcher.add()
        async with bench.working(slots=1):
            await bench.wake(task)
            await until(lambda: not task.refuse, "both refusals")
            await bench.wake(good)
            await until(lambda: bench.signals["acked"], "the next task in the same slot")
            assert (await bench.depth()).in_flight == 1, "not final, so not acked"

    asyncio.run(main())


@pytest.mark.parametrize("body", [b"", b"not json", b"{}", b'{"task_id": 7}', b"\xff\xfe", b"[]"])
def test_unreadable_wake_ups_are_left_for_the_dead_letters(bench: Bench, body: bytes) -> None:
    async def main() -> None:
        good = bench.dispatcher.add()
        async with bench.working(slots=1):
            await bench.wake_raw(body)
            await bench.wake(good)
            await until(lambda: bench.signals["acked"], "the good one")
            depth = await bench.depth()
            assert (depth.queue, depth.in_flight) == (QUEUE, 1)

    asyncio.run(main())
