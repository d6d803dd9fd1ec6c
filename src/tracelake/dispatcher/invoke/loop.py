"""The invoke loop: takes outbox rows of kind `task_invoke`, claims their tasks, starts the attempts.

Taking a row hides it for a short time in a transaction of its own, so that Dispatchers share the work and no lock is
held while a claim waits for its commit. The claim decides who runs the task; the row goes once its answer is known.
Whatever gets lost in between is repaired: a row that was not deleted comes back and finds its task taken, and an
attempt that was claimed and never started runs into its lease.

The row of an attempt that is handed to the Invoker stays, hidden, until the other side has taken it over. If this
Dispatcher dies before that, the row comes back to another one, whose claim has the same id and so gets the same
attempt: it is handed over again, and whoever has it already starts nothing.

Each runtime has slots of its own, so that an invoker that hangs never holds up control operators; orgs share them
fairly (`model/fair_share.py`). Rows of runtimes that this Dispatcher does not know stay for one that does.
"""

import asyncio
import logging
import os
import secrets
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from uuid import UUID

import asyncpg

from tracelake.db.transaction import Store
from tracelake.dispatcher.clock import StoreClock
from tracelake.dispatcher.config import DispatcherConfig
from tracelake.dispatcher.engine.calls.claim import ClaimAnswer, ClaimCall, ClaimedAttempt
from tracelake.dispatcher.engine.group_commit import GroupCommit
from tracelake.dispatcher.invoke.attempt import LeftError, OwnAttempt
from tracelake.dispatcher.invoke.bundle_refs import make_bundle_ref
from tracelake.dispatcher.invoke.in_process import run_in_process
from tracelake.dispatcher.invoke.operators.context import MAX_UNITS
from tracelake.dispatcher.job_definitions import Definitions
from tracelake.dispatcher.metrics import Metrics
from tracelake.dispatcher.mint import TokenMint
from tracelake.dispatcher.payload import build_payload
from tracelake.dispatcher.quotas.book import QuotaBook
from tracelake.dispatcher.run_logs.rows import note_refusal, open_log
from tracelake.errors import StoreUnavailableError, TraceError
from tracelake.model.fair_share import FairShares, OrgBacklog, reserved_slots
from tracelake.model.lifecycle import NotClaimed
from tracelake.model.runtime import RuntimeKind
from tracelake.ports import InvokeError, Invoker, ObjectUrls
from tracelake.wire.claims import BundleRef, ClaimRequest, Invocation, InvokingOrg, LogAddresses

logger = logging.getLogger(__name__)

HIDE_SECONDS = 10
"""How soon a row comes back whose claim was never answered. Too soon is harmless."""
_MAX_UNANSWERED = 4096

# From one org to the next along the index; those that have something due.
_DUE_ORGS = """
    WITH RECURSIVE orgs_waiting AS (
        (SELECT org_id FROM outbox WHERE kind = 'task_invoke' AND status = 'Pending' AND queue = $1
         ORDER BY org_id LIMIT 1)
        UNION ALL
        SELECT (SELECT o.org_id FROM outbox o
                WHERE o.kind = 'task_invoke' AND o.status = 'Pending' AND o.queue = $1 AND o.org_id > w.org_id
                ORDER BY o.org_id LIMIT 1)
        FROM orgs_waiting w WHERE w.org_id IS NOT NULL)
    SELECT w.org_id FROM orgs_waiting w
    WHERE EXISTS (SELECT FROM outbox o WHERE o.kind = 'task_invoke' AND o.status = 'Pending' AND o.queue = $1
                  AND o.org_id = w.org_id AND o.next_try_at <= trace_now())"""

# By an array, not by a join: the plan must not depend on how many rows the planner expects of a backlog.
_TAKE = """
    UPDATE outbox SET next_try_at = trace_now() + make_interval(secs => $4)
    WHERE outbox_id = ANY(ARRAY(
        SELECT l.outbox_id FROM unnest($2::uuid[], $3::int[]) AS a(org_id, most) CROSS JOIN LATERAL (
            SELECT outbox_id FROM outbox
            WHERE kind = 'task_invoke' AND status = 'Pending' AND queue = $1 AND outbox.org_id = a.org_id
              AND next_try_at <= trace_now()
            ORDER BY next_try_at, outbox_id LIMIT a.most FOR UPDATE SKIP LOCKED) l))
    RETURNING outbox_id, key, tries, org_id"""

_HIDE = "UPDATE outbox SET next_try_at = trace_now() + make_interval(secs => $2) WHERE outbox_id = $1"

_DONE = "DELETE FROM outbox WHERE outbox_id = ANY($1)"

_REJECTED = """
    UPDATE outbox SET tries = tries + 1, last_error = $2, next_try_at = trace_now() + make_interval(secs => $3),
        status = CASE WHEN tries + 1 >= $4 THEN 'Failed' ELSE 'Pending' END
    WHERE outbox_id = $1 RETURNING status"""


class _Slots:
    """The attempts of one runtime that run here, and whether rows wait for one of them to end."""

    def __init__(self, runtime: str) -> None:
        self.runtime = runtime
        self.running: set[asyncio.Task[None]] = set()
        self.orgs: Counter[str] = Counter()
        """How many of them are of each org."""
        self.shares = FairShares()
        self.rows_wait = False


@dataclass(eq=False, kw_only=True)
class Invocations:
    store: Store
    group: GroupCommit
    definitions: Definitions
    mint: TokenMint
    clock: StoreClock
    invoker: Invoker
    config: DispatcherConfig
    metrics: Metrics
    on_free: Callable[[], None] = lambda: None
    """Called when a slot is free again that rows wait for."""
    quotas: QuotaBook = field(default_factory=QuotaBook)
    urls: ObjectUrls | None = None
    """For the addresses of bundles."""

    def __post_init__(self) -> None:
        self._slots = [_Slots(runtime) for runtime in self.config.runtimes.started_here()]
        self._worker_id = f"dispatcher:{socket.gethostname()[:100]}:{os.getpid()}:{secrets.token_hex(4)}"
        runtimes = self.config.runtimes
        self._invoked = {name for name in runtimes.started_here() if runtimes[name].kind is RuntimeKind.INVOKE}
        self._unanswered: dict[int, str] = {}
        """claim_id by outbox_id, where nobody knows whether the claim was committed: the next try uses it again."""
        self._stopping = asyncio.Event()
        self._round = asyncio.Lock()

    async def run_once(self) -> int:
        """Start what there are rows and slots for. Raises StoreUnavailableError while the store is away."""
        async with self._round:
            if self._stopping.is_set():
                return 0
            claims = [(slots, row) for slots in self._slots for row in await self._take(slots)]
            if claims:
                await self._start(claims)
            return len(claims)

    async def settle(self) -> None:
        """Wait until no attempt runs here."""
        while running := self._running():
            await asyncio.wait(running)

    async def close(self, patience: float = 5.0) -> None:
        """Take no more, let attempts finish for a moment, leave the rest to their leases."""
        self._stopping.set()
        try:
            async with asyncio.timeout(patience):
                async with self._round:
                    pass
                await self.settle()
        except TimeoutError:
            logger.warning("attempts are left to their leases", extra={"attempts": len(self._running())})
        running = self._running()
        for attempt in running:
            attempt.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _running(self) -> list[asyncio.Task[None]]:
        return [attempt for slots in self._slots for attempt in slots.running]

    async def _take(self, slots: _Slots) -> list[asyncpg.Record]:
        free = self.config.invoke_slots - len(slots.running)
        if free <= 0:
            return []
        async with self.store.connection() as connection:
            orgs = [str(row["org_id"]) for row in await connection.fetch(_DUE_ORGS, slots.runtime)]
            if not orgs:
                slots.rows_wait = False
                return []
            backlogs = [OrgBacklog(org, slots.orgs[org], self.quotas.weight_of(UUID(org))) for org in orgs]
            most = slots.shares.allot(backlogs, free, reserved_slots(self.config.invoke_slots))
            rows = await connection.fetch(
                _TAKE, slots.runtime, [UUID(org) for org in most], list(most.values()), float(HIDE_SECONDS)
            )
        slots.shares.charge(Counter(str(row["org_id"]) for row in rows), {item.group: item.weight for item in backlogs})
        # An org may have more than its share of this round, or wait while the last slots are kept for others.
        slots.rows_wait = bool(rows) or not most
        return sorted(rows, key=lambda row: row["outbox_id"])

    async def _start(self, claims: Sequence[tuple[_Slots, asyncpg.Record]]) -> None:
        answers = await asyncio.gather(*(self._claim(slots, row) for slots, row in claims), return_exceptions=True)
        done: list[int] = []
        refused: list[tuple[asyncpg.Record, BaseException]] = []
        away: StoreUnavailableError | None = None
        for (slots, row), answer in zip(claims, answers, strict=True):
            if isinstance(answer, StoreUnavailableError):
                away = answer
                continue
            self._unanswered.pop(row["outbox_id"], None)
            if isinstance(answer, BaseException):
                refused.append((row, answer))
                continue
            if isinstance(answer, NotClaimed):
                done.append(row["outbox_id"])
                self.metrics.claims.labels(answer.value).inc()
                continue
            kept_row = row["outbox_id"] if slots.runtime in self._invoked else None
            if kept_row is None:
                done.append(row["outbox_id"])
            self.metrics.claims.labels("Claimed").inc()
            if answer.waited_seconds is not None:
                self.metrics.task_wait.observe(answer.waited_seconds)
            self._supervise(answer, slots, kept_row)
        if done:
            async with self.store.connection() as connection:
                await connection.execute(_DONE, done)
        for row, error in refused:
            await self._reject(row, error)
        if away is not None:
            raise away

    def _claim(self, slots: _Slots, row: asyncpg.Record) -> "asyncio.Future[ClaimAnswer]":
        claim_id = self._unanswered.get(row["outbox_id"]) or secrets.token_hex(16)
        if slots.runtime in self._invoked:
            claim_id = f"outbox:{row['outbox_id']}"
        if len(self._unanswered) >= _MAX_UNANSWERED:  # rows that another Dispatcher took meanwhile
            self._unanswered.clear()
        self._unanswered[row["outbox_id"]] = claim_id
        body = ClaimRequest(task_id=row["key"], worker_id=self._worker_id, claim_id=claim_id)
        return self.group.enqueue(ClaimCall(body))

    async def _reject(self, row: asyncpg.Record, error: BaseException) -> None:
        """A row whose claim itself fails must not hold up others for ever: it is tried less and less, then shown."""
        wait = self.config.outbox_retry.seconds(row["tries"] + 1)
        async with self.store.connection() as connection:
            status = await connection.fetchval(
                _REJECTED, row["outbox_id"], "the claim failed", wait, self.config.outbox_max_tries
            )
        logger.error("a task cannot be claimed", exc_info=error, extra={"task_id": str(row["key"]), "status": status})

    def _supervise(self, claimed: ClaimedAttempt, slots: _Slots, kept_row: int | None) -> None:
        attempt = asyncio.create_task(self._run(claimed, kept_row), name=f"attempt {claimed.task.task_id}")
        slots.running.add(attempt)
        org = str(claimed.task.org_id)
        slots.orgs[org] += 1
        attempt.add_done_callback(partial(self._freed, slots, org))

    def _freed(self, slots: _Slots, org: str, attempt: "asyncio.Task[None]") -> None:
        slots.running.discard(attempt)
        slots.orgs[org] -= 1
        if not slots.orgs[org]:
            del slots.orgs[org]
        if slots.rows_wait:
            self.on_free()

    async def _run(self, claimed: ClaimedAttempt, kept_row: int | None) -> None:
        """One attempt, whatever happens to it."""
        runtime = claimed.job.runtime
        attempt = OwnAttempt(claimed, self.group, self.metrics, self._stopping)
        fields = {"task_id": str(claimed.task.task_id), "attempt": claimed.task.attempt}
        try:
            if kept_row is None:
                outcome = await self._outcome(attempt)
            else:
                outcome = await self._hand_over(attempt, kept_row)
        except asyncio.CancelledError:
            outcome = "Left"
            raise
        except (LeftError, TraceError) as reason:
            logger.info("an attempt ends without a word", extra={**fields, "reason": str(reason)})
            outcome = "Left"
        except Exception:
            logger.exception("an attempt broke", extra=fields)
            outcome = "Unknown"
        finally:
            self.metrics.invocations.labels(runtime, outcome).inc()

    async def _hand_over(self, attempt: OwnAttempt, kept_row: int) -> str:
        """Keeps the row hidden while the attempt is handed over, and deletes it then."""
        keeping = asyncio.create_task(self._keep_hidden(kept_row))
        try:
            outcome = await self._outcome(attempt)
        finally:
            keeping.cancel()
        await attempt.repeated(lambda: self._delete(kept_row))
        return outcome

    async def _keep_hidden(self, outbox_id: int) -> None:
        while True:
            await asyncio.sleep(HIDE_SECONDS / 3)
            with suppress(StoreUnavailableError):  # another Dispatcher may take it then, which is harmless
                async with self.store.connection() as connection:
                    await connection.execute(_HIDE, outbox_id, float(HIDE_SECONDS))

    async def _delete(self, outbox_id: int) -> None:
        async with self.store.connection() as connection:
            await connection.execute(_DONE, [outbox_id])

    async def _outcome(self, attempt: OwnAttempt) -> str:
        runtime = self.config.runtimes.get(attempt.job.runtime)
        payload = build_payload(
            attempt.task, attempt.job, attempt.inputs, self.config.layout, self.definitions.dataset_name
        )
        if runtime is None or runtime.kind is RuntimeKind.QUEUE:
            return await attempt.finish("Failed", error=f"the Dispatcher does not start tasks of {attempt.job.runtime}")
        if runtime.kind is RuntimeKind.IN_PROCESS:
            quota = self.quotas.of(attempt.task.org_id).units_per_range
            return await run_in_process(attempt, payload, self.store, max_units=quota or MAX_UNITS)
        try:
            bundle, log = await attempt.repeated(lambda: self._find_bundle(attempt))
        except InvokeError as error:
            await attempt.finish("Failed", error=str(error), retryable=error.retryable)
            return "Refused"
        assert attempt.task.lease_expires_at is not None
        invocation = Invocation(
            task_id=payload.task_id,
            attempt=payload.attempt,
            lease_token=attempt.lease_token,
            lease_expires_at=attempt.task.lease_expires_at,
            capability_token=self.mint.mint(attempt.task, attempt.job, attempt.inputs, self.clock.now()),
            bundle_url=None if bundle is None else bundle.url,
            bundle=bundle,
            log=log,
            job=payload.job,
            operator=payload.operator,
            config=payload.config,
            inputs=payload.inputs,
            outputs=payload.outputs,
            traceparent=payload.traceparent,
            org=InvokingOrg(
                org_id=attempt.job.org_id,
                name=attempt.job.org,
                weight=self.quotas.weight_of(attempt.job.org_id),
            ),
        )
        try:
            # After that time its lease has run out, and whatever it starts will not count.
            async with asyncio.timeout(attempt.job.lease_seconds):
                await self.invoker.invoke(invocation)
        except InvokeError as error:
            await attempt.finish(
                "Failed", error=str(error), retryable=error.retryable, not_started=error.unavailable and error.retryable
            )
            if log is not None:
                async with self.store.connection() as connection:
                    await note_refusal(connection, attempt.task)
            return "Refused"
        return "Started"

    async def _find_bundle(self, attempt: OwnAttempt) -> tuple[BundleRef | None, LogAddresses | None]:
        """The code of the attempt, and where its log goes."""
        async with self.store.connection() as connection:
            bundle = await make_bundle_ref(connection, self.urls, self.config, attempt.job)
            if bundle is None or self.urls is None:
                return bundle, None
            return bundle, await open_log(connection, self.urls, self.config, attempt.task, attempt.job, bundle)
