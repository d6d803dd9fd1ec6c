"""The Dispatcher goes away, answers are lost, tokens expire, attempts are fenced or cancelled, the queue goes away."""

import asyncio
import threading

from tests.worker.conftest import Bench
from tests.worker.fake_dispatcher import until
from tracelake.errors import TraceError
from tracelake.worker import OperatorContext, OperatorResult
from tracelake.worker.operators import Operator

FOR_EVER = {"seconds": 3600}


class Gated:
    """An operator that runs until the test opens its gate, and tells whether it was told to stop."""

    def __init__(self, bench: Bench) -> None:
        self.gate = threading.Event()
        self.running = threading.Event()
        self.cancelled = False
        bench.operators["sleep"] = Operator(self)

    def __call__(self, context: OperatorContext) -> OperatorResult:
        self.running.set()
        while not self.gate.wait(0.001):
            if context.cancel.is_set():
                self.cancelled = True
                break
        return OperatorResult()


def test_cancel_stops_the_operator_and_is_reported(bench: Bench) -> None:
    async def main() -> None:
        task = bench.dispatcher.add("sleep", FOR_EVER)
        async with bench.working():
            await bench.wake(task)
            await until(lambda: task.heartbeats, "a heartbeat")
            task.cancel = True
            await until(lambda: task.status == "Canceled", "the cancel")
            await bench.until_empty()

    asyncio.run(main())


def test_a_cancel_that_comes_between_heartbeats(bench: Bench) -> None:
    """The result is refused because of the cancel, and the task then ends as cancelled."""

    async def main() -> None:
        operator = Gated(bench)
        task = bench.dispatcher.add("sleep", FOR_EVER)
        async with bench.working(heartbeat_seconds=3600):
            await bench.wake(task)
            await until(operator.running.is_set, "the operator")
            task.cancel = True
            operator.gate.set()
            await until(lambda: task.status == "Canceled", "the cancel")
            await bench.until_empty()
        assert bench.dispatcher.calls["complete"] == 2
        assert not operator.cancelled

    asyncio.run(main())


def test_a_fenced_attempt_stops_at_once_and_is_acked(bench: Bench) -> None:
    async def main() -> None:
        operator = Gated(bench)
        task = bench.dispatcher.add("sleep", FOR_EVER)
        async with bench.working():
            await bench.wake(task)
            await until(operator.running.is_set, "the operator")
            bench.dispatcher.fence(task)
            await until(lambda: operator.cancelled, "the operator to stop")
            await bench.until_empty()
            assert bench.tasks_signalled["fenced", task.task_id] == 1
        assert task.final is None
        assert bench.dispatcher.calls["complete"] == 0

    asyncio.run(main())


def test_a_fenced_result_is_dropped_and_acked(bench: Bench) -> None:
    async def main() -> None:
        operator = Gated(bench)
        task = bench.dispatcher.add("sleep", FOR_EVER)
        async with bench.working(heartbeat_seconds=3600):
            await bench.wake(task)
            await until(operator.running.is_set, "the operator")
            bench.dispatcher.fence(task)
            operator.gate.set()
            await bench.until_empty()
        assert task.final is None

    asyncio.run(main())


def test_the_work_goes_on_while_nobody_hears_the_heartbeats(bench: Bench) -> None:
    async def main() -> None:
        operator = Gated(bench)
        task = bench.dispatcher.add("sleep", FOR_EVER)
        bench.dispatcher.lease_seconds = 0.01  # it runs out many times over: that is for the Dispatcher to say
        async with bench.working():
            await bench.wake(task)
            await until(lambda: task.heartbeats, "a heartbeat")
            bench.dispatcher.away = True
            await until(lambda: bench.dispatcher.refused_while_away["batch"] > 5, "unheard heartbeats")
            assert not operator.cancelled
            bench.dispatcher.away = False
            beats = task.heartbeats
            await until(lambda: task.heartbeats > beats, "a heartbeat after the outage")
            operator.gate.set()
            await bench.until_empty()
        assert (task.status, task.attempt) == ("Completed", 1)
        assert not operator.cancelled

    asyncio.run(main())


def test_the_final_word_is_repeated_until_it_is_heard(bench: Bench) -> None:
    async def main() -> None:
        operator = Gated(bench)
        tasks = [bench.dispatcher.add("sleep", FOR_EVER) for _ in range(4)]
        async with bench.working(heartbeat_seconds=3600):
            await bench.wake(*tasks)
            await until(lambda: bench.signals["claimed"] == 4, "all claims")
            bench.dispatcher.away = True
            operator.gate.set()
            await until(lambda: bench.dispatcher.refused_while_away["batch"] > 5, "unheard final words")
            assert (await bench.depth()).in_flight == 4, "nothing is acked before it is final"
            bench.dispatcher.away = False
            await bench.until_empty()
        assert {(task.status, task.attempt) for task in tasks} == {("Completed", 1)}

    asyncio.run(main())


def test_store_errors_are_repeated_too(bench: Bench) -> None:
    async def main() -> None:
        task = bench.dispatcher.add(refuse=[TraceError("store_unavailable"), TraceError("internal")])
        async with bench.working():
            await bench.wake(task)
            await bench.until_empty()
        assert task.status == "Completed"
        assert bench.dispatcher.calls["complete"] == 3

    asyncio.run(main())


def test_the_lease_is_kept_while_the_result_cannot_be_taken(bench: Bench) -> None:
    """The object store is away for longer than a lease: what was computed is not computed again."""

    async def main() -> None:
        away = [TraceError("store_unavailable")] * 10_000
        task = bench.dispatcher.add(refuse=away)
        async with bench.working():
            await bench.wake(task)
            await until(lambda: bench.dispatcher.calls["complete"] > 1, "a final word that was refused")
            beats = task.heartbeats
            await until(lambda: task.heartbeats > beats + 2, "heartbeats meanwhile")
            away.clear()
            await bench.until_empty()
        assert (task.status, task.attempt) == ("Completed", 1)

    asyncio.run(main())


def test_lost_answers_cost_nothing(bench: Bench) -> None:
    """Claims and final words are done, but their answers never arrive."""

    async def main() -> None:
        task = bench.dispatcher.add()
        async with bench.working():
            bench.dispatcher.lose_answers = True
            await bench.wake(task)
            await until(lambda: bench.dispatcher.calls["claim"] > 2, "claims")
            assert (task.status, task.attempt, len(task.claim_ids)) == ("Running", 1, 1)
            bench.dispatcher.lose_answers = False
            await bench.until_empty()
            second = bench.dispatcher.add(refuse=[TraceError("store_unavailable")] * 50)
            await bench.wake(second)
            await until(lambda: len(second.refuse) < 49, "final words")
            bench.dispatcher.lose_answers = True
            await until(lambda: second.final, "the final word")
            completes = bench.dispatcher.calls["complete"]
            await until(lambda: bench.dispatcher.calls["complete"] > completes + 2, "more of it")
            bench.dispatcher.lose_answers = False
            await bench.until_empty()
        assert (task.status, second.status) == ("Completed", "Completed")
        assert (task.attempt, second.attempt) == (1, 1)

    asyncio.run(main())


def test_claims_wait_for_the_dispatcher(bench: Bench) -> None:
    async def main() -> None:
        bench.dispatcher.away = True
        tasks = [bench.dispatcher.add() for _ in range(5)]
        async with bench.working():
            await bench.wake(*tasks)
            await until(lambda: bench.dispatcher.refused_while_away["claim"] > 3, "unheard claims")
            bench.dispatcher.away = False
            await bench.until_empty()
        assert {task.status for task in tasks} == {"Completed"}

    asyncio.run(main())


def test_an_expired_token_is_replaced_at_a_heartbeat(bench: Bench) -> None:
    async def main() -> None:
        task = bench.dispatcher.add("sleep", FOR_EVER)
        async with bench.working():
            await bench.wake(task)
            await until(lambda: task.heartbeats, "a heartbeat")
            bench.dispatcher.expire_tokens()
            await until(lambda: bench.dispatcher.calls["token"], "a fresh token")
            beats = task.heartbeats
            await until(lambda: task.heartbeats > beats, "a heartbeat with it")
            assert bench.dispatcher.calls["token"] == 1
            task.cancel = True
            await bench.until_empty()
        assert task.status == "Canceled"

    asyncio.run(main())


def test_an_expired_token_is_replaced_at_the_end(bench: Bench) -> None:
    async def main() -> None:
        operator = Gated(bench)
        task = bench.dispatcher.add("sleep", FOR_EVER)
        async with bench.working(heartbeat_seconds=3600):
            await bench.wake(task)
            await until(operator.running.is_set, "the operator")
            bench.dispatcher.expire_tokens()
            operator.gate.set()
            await bench.until_empty()
        assert task.status == "Completed"
        assert bench.dispatcher.calls["token"] == 1

    asyncio.run(main())


def test_no_fresh_token_for_a_fenced_attempt(bench: Bench) -> None:
    async def main() -> None:
        operator = Gated(bench)
        task = bench.dispatcher.add("sleep", FOR_EVER)
        async with bench.working(heartbeat_seconds=3600):
            await bench.wake(task)
            await until(operator.running.is_set, "the operator")
            task.refuse.append(TraceError("credential_expired"))
            lease, task.lease_token = task.lease_token, None
            del lease
            operator.gate.set()
            await bench.until_empty()
        assert task.final is None

    asyncio.run(main())


def test_a_token_that_comes_with_a_heartbeat_is_used(bench: Bench) -> None:
    async def main() -> None:
        bench.dispatcher.new_token_at_heartbeat = True
        task = bench.dispatcher.add("sleep", FOR_EVER)
        async with bench.working():
            await bench.wake(task)
            await until(lambda: task.heartbeats > 3, "heartbeats")
            task.cancel = True
            await bench.until_empty()
        assert task.status == "Canceled"
        assert bench.dispatcher.calls["token"] == 0

    asyncio.run(main())


def test_the_queue_goes_away_and_comes_back(bench: Bench) -> None:
    async def main() -> None:
        operator = Gated(bench)
        before = bench.dispatcher.add("sleep", FOR_EVER)
        after = bench.dispatcher.add("noop")
        async with bench.working(visibility_seconds=60):
            await bench.wake(before)
            await until(operator.running.is_set, "the operator")
            await bench.admin(f'ALTER DATABASE "{bench.database}" ALLOW_CONNECTIONS false')
            await bench.admin(
                f"SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = '{bench.database}'"
            )
            operator.gate.set()
            await until(lambda: before.status == "Completed", "the result, which needs no queue")
            await bench.admin(f'ALTER DATABASE "{bench.database}" ALLOW_CONNECTIONS true')
            await bench.wake(after)
            await until(lambda: after.status == "Completed", "the next task")

    asyncio.run(main())
