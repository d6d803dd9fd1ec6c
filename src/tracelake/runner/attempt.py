"""One attempt of a user's function: its bundle, its run, its heartbeats, its log, and its final report.

The attempt is the Dispatcher's. A heartbeat that is answered with 409 ends the run at once and without a report; what
cannot be reported is repeated until the Dispatcher answers. Nothing is tried a second time here.
"""

import asyncio
import logging
import time
from dataclasses import dataclass, field, replace

from tracelake.client import TaskClient
from tracelake.errors import TraceError
from tracelake.model.backoff import Backoff
from tracelake.runner.bundles import BundleCache, BundleRejected, BundleUnavailable
from tracelake.runner.egress import Destinations
from tracelake.runner.function import CountRefusal, FunctionRunner, StopSignal
from tracelake.runner.outcome import RunEnding, RunResult, final_report
from tracelake.runner.output import RunOutput
from tracelake.runner.preparation import decode_grant, make_egress, make_runtime_api, plan_function
from tracelake.runner.run_log import UPLOAD_SECONDS, LogUploads, RunLogWriter
from tracelake.wire import routes
from tracelake.wire.claims import BundleRef, Invocation
from tracelake.wire.task_calls import CompleteRequest, HeartbeatRequest

logger = logging.getLogger(__name__)

_AGAIN = Backoff(0.2, 5.0)
_REPORT_SECONDS = 900.0
"""How long a final report is repeated; by then the lease has expired and another attempt has begun."""
_STOPPED_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptTools:
    """What all attempts of a runner share."""

    functions: FunctionRunner
    bundles: BundleCache
    tasks: TaskClient
    destinations: Destinations
    scratch_bytes: int
    heartbeat_seconds: float
    logs: LogUploads
    log_seconds: float = UPLOAD_SECONDS
    """Between two uploads of the log of a function that has just begun."""


@dataclass(eq=False, kw_only=True)
class FunctionAttempt:
    invocation: Invocation
    bundle: BundleRef
    tools: AttemptTools
    signal: StopSignal = field(default_factory=StopSignal)
    refusals: CountRefusal = field(default_factory=CountRefusal)

    def __post_init__(self) -> None:
        self._token = self.invocation.capability_token
        self._secrets = [self._token, str(self.invocation.lease_token), self.bundle.url]
        self._output = RunOutput(self._secrets)
        self._log: RunLogWriter | None = None
        addresses = self.invocation.log
        if addresses is not None:
            self._secrets += [addresses.running_url, addresses.final_url]
            tools = self.tools
            self._log = RunLogWriter(addresses, self._output, self._secrets, tools.logs, tools.log_seconds)

    def stop(self, reason: RunEnding) -> None:
        self.signal.stop(reason)

    async def run(self) -> RunResult:
        beside = [asyncio.create_task(self._beat())]
        if self._log is not None:
            beside.append(asyncio.create_task(self._log.follow()))
        try:
            result = await self._execute()
        finally:
            for task in beside:
                task.cancel()
        logger.info(
            "a function ended",
            extra={
                "task_id": str(self.invocation.task_id),
                "attempt": self.invocation.attempt,
                "bundle_id": str(self.bundle.bundle_id),
                "ending": result.ending.value,
                "seconds": round(result.seconds, 3),
                "peak_bytes": result.peak_bytes,
                "refused": self.refusals.reasons,
            },
        )
        if self._log is not None:
            await self._log.finish(result, self.refusals.reasons)
        await self._report(result)
        return result

    async def _execute(self) -> RunResult:
        try:
            grant = decode_grant(self._token)
            async with self.tools.bundles.open(self.bundle) as directory:
                if self.signal.reason is not None:
                    return RunResult(ending=self.signal.reason, message="the run was ended before it began")
                return await self.tools.functions.run(
                    plan_function(self.invocation, self.bundle, directory, self.tools.scratch_bytes),
                    make_runtime_api(self.invocation, self.bundle.timeout_seconds),
                    make_egress(self.invocation, grant, self.tools.destinations, self.refusals),
                    self.signal,
                    self._secrets,
                    self._output,
                )
        except BundleRejected as error:
            return RunResult(ending=RunEnding.BUNDLE, message=str(error), retryable=False)
        except BundleUnavailable as error:
            return RunResult(ending=RunEnding.BUNDLE, message=str(error))
        except Exception:
            logger.exception("an attempt broke", extra={"task_id": str(self.invocation.task_id)})
            return RunResult(ending=RunEnding.SANDBOX, message="the runner failed; its log says why")

    async def _beat(self) -> None:
        fence = HeartbeatRequest(
            task_id=self.invocation.task_id,
            attempt=self.invocation.attempt,
            lease_token=self.invocation.lease_token,
        )
        while True:
            await asyncio.sleep(self.tools.heartbeat_seconds)
            try:
                reply = await self.tools.tasks.call(routes.HEARTBEAT, self._token, fence)
            except TraceError as error:
                if error.status == 409:
                    self.signal.stop(RunEnding.FENCED)
                    return
                continue  # the Dispatcher is away, and the attempt goes on
            if reply.cancel:
                self.signal.stop(RunEnding.CANCELED)
                return
            if reply.capability_token is not None:
                self._token = reply.capability_token
                self._secrets.append(self._token)

    async def _report(self, result: RunResult) -> None:
        if result.ending is RunEnding.FENCED:
            return
        report = final_report(self.invocation, result, self._secrets)
        patience = _STOPPED_SECONDS if result.ending is RunEnding.STOPPED else _REPORT_SECONDS
        deadline, tries = time.monotonic() + patience, 0
        while time.monotonic() < deadline:
            try:
                await self.tools.tasks.complete(self._token, report)
            except TraceError as error:
                if not error.retryable:
                    next_report = self._after_refusal(report, result, error)
                    if next_report is None:
                        return
                    report = next_report
                    continue
            else:
                return
            tries += 1
            await asyncio.sleep(_AGAIN.seconds(tries))
        logger.warning("an attempt is left to its lease", extra={"task_id": str(self.invocation.task_id)})

    def _after_refusal(self, report: CompleteRequest, result: RunResult, error: TraceError) -> CompleteRequest | None:
        """What to report after the Dispatcher refused a report: that the function's answer was not accepted."""
        fields = {"task_id": str(self.invocation.task_id), "code": error.code}
        if error.code == "cancel_requested" and report.status == "Completed":
            return final_report(self.invocation, replace(result, ending=RunEnding.CANCELED), self._secrets)
        if report.status != "Completed" or error.status in (401, 403, 404, 409):
            logger.info("a final report was refused", extra=fields)
            return None
        message = f"the handler's answer was not accepted ({error.code}): {error.message}"
        rejection = replace(result, ending=RunEnding.RESPONSE, message=message, retryable=False)
        return final_report(self.invocation, rejection, self._secrets)
