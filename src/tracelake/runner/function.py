"""One run of a user's function in a sandbox, from its start to its end. It never raises for what the function does."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from tracelake.errors import TraceError
from tracelake.runner.exchange import ExchangeLimits, ExchangeServer, Handler
from tracelake.runner.languages import FunctionPlan, make_call, make_spec
from tracelake.runner.launch import PreparedFunction, prepare_function
from tracelake.runner.memory import MemoryLimiter, MemoryUse
from tracelake.runner.outcome import RunEnding, RunResult, read_response
from tracelake.runner.output import MOST_BYTES, RunOutput
from tracelake.runner.runtime_api import MAX_RESPONSE_BYTES, RuntimeApi
from tracelake.sandbox.server import SandboxServer
from tracelake.sandbox.spec import MIB, Ending, SandboxReport

INSIDE = "tracelake.runner.inside"
"""The module that the sandboxes of a `FunctionRunner` run."""
_AFTER_ANSWER_SECONDS = 1.0
"""For what is printed last; a runtime that asks for its next event, or exits, is ended at once."""
_REQUESTS = 100_000
_EGRESS_BODY_BYTES = 17 * 1024 * 1024
"""An artifact of the largest size, with what an object store's protocol adds."""


@dataclass(eq=False)
class StopSignal:
    """Ends a run from outside; the first reason is the one that is reported."""

    reason: RunEnding | None = None
    event: asyncio.Event = field(default_factory=asyncio.Event)

    def stop(self, reason: RunEnding) -> None:
        if self.reason is None:
            self.reason = reason
            self.event.set()


@dataclass(frozen=True, slots=True, kw_only=True)
class Egress:
    """The way out of one run."""

    handler: Handler
    count_refusal: "CountRefusal"


class CountRefusal:
    """Counts requests that were refused, by reason."""

    def __init__(self) -> None:
        self.reasons: dict[str, int] = {}

    def __call__(self, reason: str) -> None:
        self.reasons[reason] = self.reasons.get(reason, 0) + 1


class FunctionRunner:
    def __init__(self, sandboxes: SandboxServer, limiter: MemoryLimiter) -> None:
        """`sandboxes` is a server of the module `INSIDE`."""
        self._sandboxes = sandboxes
        self._limiter = limiter

    async def run(
        self,
        plan: FunctionPlan,
        api: RuntimeApi,
        egress: Egress,
        stop: StopSignal,
        secrets: Sequence[str] = (),
        output: RunOutput | None = None,
    ) -> RunResult:
        """`output`: for whoever wants to see what is printed while it runs; it has the secrets then."""
        began = time.monotonic()
        output = output or RunOutput(secrets)
        try:
            async with (
                self._limiter.open_group(plan.memory_bytes) as group,
                prepare_function(self._sandboxes, make_spec(plan), make_call(plan), group) as function,
            ):
                limit = self._limiter.limit(group, function.pid, plan.memory_bytes, lambda: stop.stop(RunEnding.MEMORY))
                async with limit as memory:
                    return await self._run(
                        function, plan, api, egress, stop, output or RunOutput(secrets), memory, began
                    )
        except TraceError as error:
            retryable = error.code != "runner_refused"
            return RunResult(ending=RunEnding.SANDBOX, message=error.message, retryable=retryable)

    async def _run(
        self,
        function: PreparedFunction,
        plan: FunctionPlan,
        api: RuntimeApi,
        egress: Egress,
        stop: StopSignal,
        output: RunOutput,
        memory: MemoryUse,
        began: float,
    ) -> RunResult:
        runtime = ExchangeServer(
            api.handle,
            ExchangeLimits(body_bytes=MAX_RESPONSE_BYTES, requests=_REQUESTS, on_refusal=api.refuse_body),
        )
        way_out = ExchangeServer(
            egress.handler,
            ExchangeLimits(body_bytes=_EGRESS_BODY_BYTES, requests=_REQUESTS, on_refusal=egress.count_refusal),
        )
        streams = ((output.stdout, function.output), (output.stderr, function.errors))
        sandbox = function.sandbox
        # The servers get sockets of their own: closing one must not close what the block still owns.
        await runtime.start(function.runtime.dup())
        await way_out.start(function.egress.dup())
        flood = partial(stop.stop, RunEnding.OUTPUT)
        reading = [asyncio.create_task(tail.read(pipe, flood)) for tail, pipe in streams]
        try:
            function.start()
            await _wait_for_end(function, api, stop)
        finally:
            memory.read()
            await sandbox.kill()
            await asyncio.gather(runtime.close(), way_out.close())
            await _finish_reading(reading)
        memory.read()
        report = await sandbox.wait()
        result = judge(report, memory, plan, api, stop)
        output.finish()
        return RunResult(
            ending=result.ending,
            message=result.message,
            error=result.error,
            response=result.response,
            retryable=result.retryable,
            seconds=time.monotonic() - began,
            cpu_seconds=report.cpu_seconds,
            peak_bytes=memory.peak_bytes,
            warm=report.warm,
            stdout=output.stdout.piece().text,
            stderr=output.stderr.piece().text,
        )


def judge(report: SandboxReport, memory: MemoryUse, plan: FunctionPlan, api: RuntimeApi, stop: StopSignal) -> RunResult:
    """How it ended. A process that was killed for memory fails the run, whatever another one has answered."""
    if stop.reason not in (None, RunEnding.MEMORY, RunEnding.OUTPUT):
        assert stop.reason is not None
        return RunResult(ending=stop.reason, message="the run was ended from outside")
    if memory.exceeded:
        limit = plan.memory_bytes // MIB
        message = f"expected at most {limit} MiB of memory, the function took more: raise memory_mb, or use less"
        return RunResult(ending=RunEnding.MEMORY, message=message)
    if stop.reason is RunEnding.OUTPUT:
        message = f"expected at most {MOST_BYTES // MIB} MiB of output, the function printed more: print less"
        return RunResult(ending=RunEnding.OUTPUT, message=message)
    if api.too_large:
        limit = MAX_RESPONSE_BYTES // MIB
        message = f"expected an answer of at most {limit} MiB: publish the rows, and return a summary"
        return RunResult(ending=RunEnding.OUTPUT, message=message, retryable=False)
    if api.error is not None:
        return RunResult(ending=RunEnding.ERROR, error=api.error, retryable=not api.error.is_final)
    if api.response is not None:
        try:
            read_response(api.response)
        except ValueError as error:
            return RunResult(ending=RunEnding.RESPONSE, message=str(error), retryable=False)
        return RunResult(ending=RunEnding.COMPLETED, response=api.response)
    if report.ending is Ending.DEADLINE:
        message = f"the function did not end within {plan.timeout_seconds:g} s: raise timeout_seconds, or do less"
        return RunResult(ending=RunEnding.TIMEOUT, message=message)
    if report.ending is Ending.SIGNALLED:
        return RunResult(ending=RunEnding.SIGNAL, message=f"the program was ended by signal {report.status}")
    message = f"the program ended with status {report.status} and without an answer"
    return RunResult(ending=RunEnding.EXIT, message=message)


async def _wait_for_end(function: PreparedFunction, api: RuntimeApi, stop: StopSignal) -> None:
    """Until the program has ended, has answered, or is to be ended."""
    end = asyncio.ensure_future(function.sandbox.wait())
    stop_event = asyncio.ensure_future(stop.event.wait())
    answer = asyncio.ensure_future(api.answered.wait())
    next_request = asyncio.ensure_future(api.done.wait())
    try:
        await asyncio.wait({end, stop_event, answer}, return_when=asyncio.FIRST_COMPLETED)
        if answer.done() and not (end.done() or stop_event.done()):
            first = asyncio.FIRST_COMPLETED
            await asyncio.wait({end, stop_event, next_request}, timeout=_AFTER_ANSWER_SECONDS, return_when=first)
    finally:
        for waiting in (end, stop_event, answer, next_request):
            waiting.cancel()


async def _finish_reading(reading: Sequence[asyncio.Task[None]]) -> None:
    """The pipes end with the sandbox."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_AFTER_ANSWER_SECONDS):
            await asyncio.gather(*reading)
    for task in reading:
        task.cancel()
