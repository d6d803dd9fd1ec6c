"""The worker's loops: receive and claim, heartbeat, keep messages hidden; and stopping without losing anything.

A slot is taken by a message from its receive until its task is final here; several queues divide the slots, so
that a busy one leaves the others theirs. An always_on source never ends, so it keeps its slot for as long as it runs.
Orgs share the slots fairly, because the queue hands out its messages so. Reserved slots are only for orgs that have no
message in flight: an org whose tasks are long cannot take them all.
`on_signal` names what happens, for tests to wait on: received, claimed, not_claimed, heartbeat, fenced, abandoned,
final, acked.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

import msgspec

from tracelake.errors import TraceError
from tracelake.model.backoff import Backoff
from tracelake.ports import SecretProvider
from tracelake.ports.direct_tables import DirectTables
from tracelake.ports.queue import Delivery, Queue, QueueUnavailableError
from tracelake.wire.claims import MAX_BATCH, ClaimReply, ClaimRequest
from tracelake.wire.task_calls import CompleteRequest
from tracelake.worker.attempt import Attempt
from tracelake.worker.calls import ClaimCalls, Reporter, TaskCalls, may_pass
from tracelake.worker.log_text import describe_end, describe_start
from tracelake.worker.log_uploads import AttemptLogs, LogCalls
from tracelake.worker.operators import OPERATORS, Operator
from tracelake.worker.slots import WorkerSlots
from tracelake.worker.wrapper import NO_SECRETS, run_operator

logger = logging.getLogger(__name__)

_SHORTEST_INTERVAL = 0.2
_LONG_POLL_SECONDS = 20.0
_RESERVED_AFTER_SECONDS = 0.25


class WakeUp(msgspec.Struct, frozen=True):
    task_id: UUID


_wake_up = msgspec.json.Decoder(WakeUp)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    worker_id: str
    queues: Sequence[str]
    slots: int
    reserved_slots: int
    """Of them, for each queue: how many are kept for orgs that have nothing in flight."""
    heartbeat_seconds: float
    visibility_seconds: float
    grace_seconds: float = 10.0
    """How long what runs may go on when the worker is told to stop."""
    last_word_seconds: float = 1.5
    """After that: how long operators have to stop, and again how long the words for those that do not may take."""
    abandon_seconds: float
    """How long an operator that was told to stop may keep its slot. A thread cannot be ended, only left alone."""
    backoff: Backoff = field(default_factory=lambda: Backoff(0.2, 10.0))


class Worker:
    def __init__(
        self,
        config: WorkerConfig,
        *,
        queue: Queue,
        claims: ClaimCalls,
        tasks: TaskCalls,
        operators: Mapping[str, Operator] = OPERATORS,
        secrets: SecretProvider = NO_SECRETS,
        tables: DirectTables | None = None,
        log_calls: LogCalls | None = None,
        on_signal: Callable[[str, UUID | None], None] = lambda _name, _task_id: None,
    ) -> None:
        self._config = config
        self._queue = queue
        self._claims = claims
        self._reporter = Reporter(claims, tasks, config.backoff)
        self._operators = operators
        self._secrets = secrets
        self._tables = tables
        self._logs = None if log_calls is None else AttemptLogs(config.worker_id, log_calls, config.backoff)
        self._signal = on_signal
        self._deliveries: dict[tuple[str, str], tuple[Delivery, WorkerSlots]] = {}
        self._attempts: set[Attempt] = set()
        self._claimed = asyncio.Event()
        self._work: set[asyncio.Task[None]] = set()
        self._ending = False
        """Told to stop: no source is begun any more."""
        self._leaving = False
        """The grace period is over: nothing is."""

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop` is set; then finishes what runs, or says that somebody else should after the grace period."""
        if self._logs is None:
            await self._serve(stop)
            return
        with self._logs.capturing():
            reports = asyncio.create_task(self._logs.run())
            try:
                await self._serve(stop)
            finally:
                await _cancel([reports])
                await self._logs.report_last()

    async def _serve(self, stop: asyncio.Event) -> None:
        receivers = [
            asyncio.create_task(self._receive(name, WorkerSlots(count), idle_after))
            for name in self._config.queues
            for count, idle_after in self._divide_slots()
        ]
        keepers = [asyncio.create_task(self._beat()), asyncio.create_task(self._keep_hidden())]
        stopping = asyncio.create_task(stop.wait())
        try:
            done, _ = await asyncio.wait([stopping, *receivers, *keepers], return_when=asyncio.FIRST_COMPLETED)
            for task in done - {stopping}:
                task.result()  # a loop ended by a bug: let the process end and be started afresh
            await _cancel(receivers)
            await self._drain()
        finally:
            await _cancel([stopping, *receivers, *keepers])
            await self._give_up()

    async def _drain(self) -> None:
        """What runs gets the grace period. Sources would never end by themselves: they are told at once.

        Whoever has not ended then is told to stop, and at last spoken for. Each of them says that it was the worker, so
        that the next attempt begins at once, wherever there is a worker; only what nobody hears is left to the lease.
        """
        self._ending = True
        for attempt in self._attempts:
            if attempt.always_on:
                attempt.leave()
        if await self._settles(self._config.grace_seconds):
            return
        self._leaving = True
        for attempt in self._attempts:
            attempt.leave()
        if await self._settles(self._config.last_word_seconds):
            return
        for attempt in self._attempts:
            attempt.give_up()
        await self._settles(self._config.last_word_seconds)

    async def _settles(self, seconds: float) -> bool:
        """Whether everything has ended before so long."""
        deadline = asyncio.get_running_loop().time() + seconds
        while self._work:
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                return False
            await asyncio.wait(self._work, timeout=left)
        return True

    async def _give_up(self) -> None:
        """What was not heard is not acked either: the lease runs out and the task is tried again."""
        if self._attempts:
            logger.warning("giving up running tasks", extra={"tasks": len(self._attempts)})
        for attempt in self._attempts:
            attempt.stop()
        await _cancel(list(self._work))

    # --- receive and claim

    def _divide_slots(self) -> list[tuple[int, float | None]]:
        """The slots of each queue: those for everybody, and those that are reserved.

        A message that a free slot is there for is taken at once: what has waited a moment found none.
        """
        slots = max(1, self._config.slots // len(self._config.queues))
        reserved = min(self._config.reserved_slots, slots - 1)
        return [(slots - reserved, None), *([(reserved, _RESERVED_AFTER_SECONDS)] if reserved else [])]

    async def _receive(self, name: str, slots: WorkerSlots, idle_after: float | None) -> None:
        tries = 0
        while True:
            free = await slots.take_all()
            try:
                deliveries = await self._queue.receive(
                    name, free, self._config.visibility_seconds, _LONG_POLL_SECONDS, idle_after=idle_after
                )
            except QueueUnavailableError as error:
                slots.release(free)
                tries += 1
                if tries == 1 or tries % 10 == 0:
                    logger.warning("the queue is away", extra={"queue": name, "error": str(error)})
                await asyncio.sleep(self._config.backoff.seconds(tries))
                continue
            tries = 0
            slots.release(free - len(deliveries))
            for delivery in deliveries:
                self._deliveries[_name(delivery)] = (delivery, slots)
            for start in range(0, len(deliveries), MAX_BATCH):
                self._spawn(self._take_in(deliveries[start : start + MAX_BATCH]))

    async def _take_in(self, deliveries: Sequence[Delivery]) -> None:
        """Claims until every message has its answer. The same claim_id again gets the same lease."""
        pending: list[tuple[Delivery, ClaimRequest]] = []
        for delivery in deliveries:
            self._signal("received", None)
            try:
                task_id = _wake_up.decode(delivery.body).task_id
            except (msgspec.DecodeError, UnicodeDecodeError):
                # Not acked: it ends as a dead letter, where a person can see it.
                logger.error("unreadable wake-up", extra={"message_id": delivery.message_id})
                self._let_go(delivery)
                continue
            claim_id = f"{self._config.worker_id}:{uuid4().hex}"
            request = ClaimRequest(task_id=task_id, worker_id=self._config.worker_id, claim_id=claim_id)
            pending.append((delivery, request))
        tries = 0
        while pending:
            pending = await self._claim(pending)
            if pending:
                tries += 1
                await asyncio.sleep(self._config.backoff.seconds(tries))

    async def _claim(self, pending: list[tuple[Delivery, ClaimRequest]]) -> list[tuple[Delivery, ClaimRequest]]:
        """Answers what must be claimed again."""
        try:
            answers = await self._claims.claim_batch([request for _, request in pending])
        except TraceError as error:
            logger.warning("claim not heard", extra={"code": error.code, "tasks": len(pending)})
            return pending
        again: list[tuple[Delivery, ClaimRequest]] = []
        done: list[Delivery] = []
        for (delivery, request), answer in zip(pending, answers, strict=True):
            if isinstance(answer, ClaimReply):
                attempt = Attempt.from_claim(delivery, answer)
                if answer.status != "Claimed":
                    self._signal("not_claimed", request.task_id)
                    done.append(delivery)
                elif attempt is None:
                    again.append((delivery, request))
                else:
                    self._start(attempt)
            elif may_pass(answer):
                again.append((delivery, request))
            else:
                logger.error("claim refused", extra={"task_id": str(request.task_id), "code": answer.code})
                self._let_go(delivery)
        if done:
            self._spawn(self._finish_with(done))
        return again

    def _start(self, attempt: Attempt) -> None:
        self._signal("claimed", attempt.task_id)
        if self._leaving or (self._ending and attempt.always_on):
            attempt.leave()
        self._attempts.add(attempt)
        self._claimed.set()
        self._spawn(self._run(attempt))

    # --- one attempt

    async def _run(self, attempt: Attempt) -> None:
        if self._logs is not None:
            attempt.log = self._logs.open(attempt.task_id, attempt.number, lambda text: attempt.secrets.hide(text))
            describe_start(attempt, self._config.worker_id)
        try:
            operator = asyncio.ensure_future(
                run_operator(attempt, self._operators, self._reporter, self._secrets, self._tables)
            )
            overdue = asyncio.ensure_future(self._wait_overdue(attempt))
            try:
                either: list[asyncio.Future[Any]] = [operator, attempt.fenced, attempt.given_up, overdue]
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                if attempt.fenced.done():
                    self._signal("fenced", attempt.task_id)
                    await self._ack([attempt.delivery])
                    # The slot stays taken until the operator has stopped, or will not.
                    await asyncio.wait([operator, overdue], return_when=asyncio.FIRST_COMPLETED)
                    self._tell_abandoned(attempt, operator)
                    return
                if attempt.progress is not None and not attempt.given_up.done():
                    # It may have failed long before the next heartbeat, and its progress says how.
                    await self._reporter.heartbeat([attempt])
                attempt.finishing = True
                self._tell_abandoned(attempt, operator)
                final = await self._reporter.finish(attempt, self._last_word(attempt, operator))
            finally:
                operator.cancel()
                overdue.cancel()
            if final:
                self._signal("final", attempt.task_id)
                await self._ack([attempt.delivery])
        finally:
            self._attempts.discard(attempt)
            self._let_go(attempt.delivery)
            self._close_log(attempt)

    def _close_log(self, attempt: Attempt) -> None:
        if self._logs is None or attempt.log is None:
            return
        ending = describe_end(attempt)
        entry = self._operators.get(attempt.task.operator)
        # What an operator did that ends at once is told by its task.
        is_short = entry is not None and entry.inline and ending == "completed"
        self._logs.close_log(attempt.log, ending, keep=not is_short)

    async def _wait_overdue(self, attempt: Attempt) -> None:
        """Until the operator should have stopped long ago."""
        await attempt.stopping.wait()
        await asyncio.sleep(self._config.abandon_seconds)

    def _tell_abandoned(self, attempt: Attempt, operator: "asyncio.Future[CompleteRequest]") -> None:
        if not operator.done() and not attempt.given_up.done():
            logger.error("an operator does not stop; its thread is left alone", extra=attempt.log_fields)
            self._signal("abandoned", attempt.task_id)

    @staticmethod
    def _last_word(attempt: Attempt, operator: "asyncio.Future[CompleteRequest]") -> CompleteRequest:
        if operator.done():
            return operator.result()
        return attempt.final("Canceled") if attempt.cancel_requested else attempt.final_when_leaving()

    async def _finish_with(self, deliveries: Sequence[Delivery]) -> None:
        await self._ack(deliveries)
        for delivery in deliveries:
            self._let_go(delivery)

    async def _ack(self, deliveries: Sequence[Delivery]) -> None:
        try:
            await self._queue.ack(deliveries)
        except QueueUnavailableError as error:
            # It will be delivered again, found finished, and acked then.
            logger.warning("ack not heard", extra={"messages": len(deliveries), "error": str(error)})
            return
        self._signal("acked", None)

    # --- while tasks run

    async def _beat(self) -> None:
        """One call per interval for every running attempt; sooner again after one that was not heard."""
        loop = asyncio.get_running_loop()
        last = loop.time()
        tries = 0
        while True:
            self._claimed.clear()
            live_attempts = [attempt for attempt in self._attempts if not attempt.fenced.done()]
            if not live_attempts:
                await self._claimed.wait()
                last = loop.time()
                continue
            interval = min(map(self._interval, live_attempts))
            if tries:
                interval = min(interval, self._config.backoff.seconds(tries))
            if await _happens(self._claimed, last + interval - loop.time()):
                continue  # a new attempt may need a shorter interval
            last = loop.time()
            running = [attempt for attempt in live_attempts if not attempt.finishing or attempt.unheard]
            if not await self._reporter.heartbeat(running):
                tries += 1
                continue
            tries = 0
            for attempt in running:
                self._signal("heartbeat", attempt.task_id)

    def _interval(self, attempt: Attempt) -> float:
        # A clock that is ahead of the Dispatcher's makes a lease look short, or over: that is no reason to hurry.
        return min(self._config.heartbeat_seconds, max(attempt.lease_seconds / 3, _SHORTEST_INTERVAL))

    async def _keep_hidden(self) -> None:
        """Messages stay hidden while their task is in hand; one that comes back all the same is harmless."""
        interval = self._config.visibility_seconds / 3
        tries = 0
        while True:
            await asyncio.sleep(interval if not tries else min(interval, self._config.backoff.seconds(tries)))
            if not self._deliveries:
                continue
            try:
                deliveries = [delivery for delivery, _ in self._deliveries.values()]
                await self._queue.extend(deliveries, self._config.visibility_seconds)
                tries = 0
            except QueueUnavailableError as error:
                tries += 1
                logger.warning("extend not heard", extra={"messages": len(self._deliveries), "error": str(error)})

    # --- slots

    def _let_go(self, delivery: Delivery) -> None:
        entry = self._deliveries.pop(_name(delivery), None)
        if entry is not None:
            entry[1].release(1)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._work.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._work.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("a task's wrapper failed", exc_info=task.exception())


def _name(delivery: Delivery) -> tuple[str, str]:
    return (delivery.message_id, delivery.receipt)


async def _happens(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(max(seconds, 0)):
            await event.wait()
    except TimeoutError:
        return False
    return True


async def _cancel(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
