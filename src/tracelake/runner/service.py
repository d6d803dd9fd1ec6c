"""Takes attempts over from Dispatchers, at most one of a task at a time, and runs them.

A Dispatcher that repeats a call, because the reply was lost or it was restarted, gets the same answer and starts
nothing more. A newer attempt of a task ends the older one before it starts. Nothing of this is kept on disk: a runner
that dies takes its sandboxes along, and their leases expire.
"""

import asyncio
import logging
from collections import OrderedDict
from contextlib import suppress
from uuid import UUID

from tracelake.errors import TraceError
from tracelake.runner.attempt import AttemptTools, FunctionAttempt
from tracelake.runner.metrics import RunnerMetrics
from tracelake.runner.outcome import RunEnding, RunResult
from tracelake.runner.slots import FunctionSlots
from tracelake.wire.claims import BundleRef, Invocation, InvokeReply

logger = logging.getLogger(__name__)

_MOST_FINISHED = 10_000
_STOP_SECONDS = 10.0


class RunnerService:
    def __init__(
        self,
        tools: AttemptTools,
        metrics: RunnerMetrics,
        *,
        slots: int,
        wait_seconds: float,
        problem: str | None = None,
    ) -> None:
        """`problem` tells why this machine cannot isolate functions: then it takes none."""
        self._tools = tools
        self._metrics = metrics
        self._slots = FunctionSlots(slots)
        self._wait_seconds = wait_seconds
        self._problem = problem
        self._current: dict[UUID, tuple[FunctionAttempt, asyncio.Task[None]]] = {}
        self._latest: OrderedDict[UUID, int] = OrderedDict()
        """The newest attempt that was taken, by task; also of tasks that have ended."""
        self._admissions: dict[tuple[UUID, int], asyncio.Task[InvokeReply]] = {}
        self._stopping = False

    async def take(self, invocation: Invocation) -> InvokeReply:
        """Returns when the attempt runs. Raises if it surely does not."""
        if self._problem is not None:
            raise TraceError("sandbox_unavailable", self._problem)
        if self._stopping:
            raise _stops()
        if invocation.bundle is None:
            raise TraceError("runner_refused", f"the operator {invocation.operator} is not a user's function")
        key = (invocation.task_id, invocation.attempt)
        admission = self._admissions.get(key)
        if admission is None:
            if self._latest.get(key[0]) == key[1]:
                return InvokeReply(duplicate=True)
            admission = self._admissions[key] = asyncio.create_task(self._admit(invocation, invocation.bundle))
            admission.add_done_callback(lambda _: self._admissions.pop(key, None))
        return await asyncio.shield(admission)  # whoever repeats the call waits for the same answer

    async def _admit(self, invocation: Invocation, bundle: BundleRef) -> InvokeReply:
        task_id, attempt = invocation.task_id, invocation.attempt
        latest = self._latest.get(task_id, 0)
        if attempt < latest:
            raise TraceError("fenced", attempt=latest, status="Running")
        await self._end_older(task_id)
        group = await self._slots.acquire(invocation.org, self._wait_seconds)
        latest = self._latest.get(task_id, 0)
        if attempt < latest or self._stopping:  # a newer one came while this one waited
            self._slots.release(group)
            raise TraceError("fenced", attempt=latest, status="Running") if attempt < latest else _stops()
        await self._end_older(task_id)
        self._note(task_id, attempt)
        run = FunctionAttempt(invocation=invocation, bundle=bundle, tools=self._tools)
        self._current[task_id] = (run, asyncio.create_task(self._run(run, group), name=f"function {task_id}"))
        return InvokeReply()

    async def close(self) -> None:
        """Ends what runs, and reports it: the Dispatcher need not wait for the leases."""
        self._stopping = True
        running = list(self._current.values())
        for run, _ in running:
            run.stop(RunEnding.STOPPED)
        if running:
            await asyncio.wait([task for _, task in running], timeout=_STOP_SECONDS)
        for _, task in running:
            task.cancel()
        await asyncio.gather(*(task for _, task in running), return_exceptions=True)

    async def settle(self) -> None:
        """Waits until nothing runs."""
        while self._current:
            await asyncio.wait([task for _, task in self._current.values()])

    def _note(self, task_id: UUID, attempt: int) -> None:
        self._latest[task_id] = attempt
        self._latest.move_to_end(task_id)
        while len(self._latest) > _MOST_FINISHED:
            oldest = next(iter(self._latest))
            if oldest in self._current:
                self._latest.move_to_end(oldest)
                continue
            del self._latest[oldest]

    async def _end_older(self, task_id: UUID) -> None:
        older = self._current.get(task_id)
        if older is not None:
            older[0].stop(RunEnding.FENCED)
            await asyncio.wait({older[1]})

    async def _run(self, run: FunctionAttempt, group: str) -> None:
        task_id, org, bundle = run.invocation.task_id, run.invocation.org, run.bundle
        self._metrics.running.inc()
        result: RunResult | None = None
        try:
            with suppress(asyncio.CancelledError):
                result = await run.run()
        except Exception:
            logger.exception("an attempt broke", extra={"task_id": str(task_id)})
        finally:
            name = "" if org is None else org.name
            self._metrics.count_run(name, str(bundle.bundle_id), bundle.language, result, run.refusals.reasons)
            self._metrics.running.dec()
            self._slots.release(group)
            if self._current.get(task_id, (None,))[0] is run:
                del self._current[task_id]


def _stops() -> TraceError:
    return TraceError("runner_busy", "the runner stops", retry_after_seconds=1)
