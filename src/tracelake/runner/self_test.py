"""Decides whether this machine isolates users' functions: a run that looks for holes must find none."""

from pathlib import Path

import msgspec

from tracelake.errors import TraceError
from tracelake.runner import clients
from tracelake.runner.exchange import SandboxReply, SandboxRequest, refuse
from tracelake.runner.function import CountRefusal, Egress, FunctionRunner, StopSignal
from tracelake.runner.languages import FunctionPlan
from tracelake.runner.outcome import RunEnding
from tracelake.runner.runtime_api import RuntimeApi
from tracelake.sandbox.server import SandboxServer
from tracelake.sandbox.spec import MIB

_SECONDS = 60.0


async def check_isolation(sandboxes: SandboxServer, functions: FunctionRunner) -> str | None:
    """Starts the fork server; tells why this machine cannot isolate functions, if it cannot."""
    try:
        await sandboxes.start()
    except TraceError as error:
        return error.message
    return await find_holes(functions)


async def find_holes(functions: FunctionRunner) -> str | None:
    """Why users' functions may not run here; None: nothing is missing."""
    plan = FunctionPlan(
        language="python",
        entrypoint="probe.handler",
        bundle=Path(clients.__file__).parent,
        timeout_seconds=_SECONDS,
        memory_bytes=128 * MIB,
        scratch_bytes=MIB,
        environment={},
    )
    api = RuntimeApi(request_id="self-test", event=b"null", deadline_ms=0, function_name="self-test")
    result = await functions.run(plan, api, Egress(handler=_refuse, count_refusal=CountRefusal()), StopSignal())
    if result.ending is not RunEnding.COMPLETED:
        reason = result.message or (result.error.error_message if result.error else "")
        return f"the self-test of the sandbox failed ({result.ending.value}): {reason}"
    holes = msgspec.json.decode(result.response, type=list[str])
    return f"the sandbox is not tight: {'; '.join(holes)}" if holes else None


async def _refuse(_request: SandboxRequest) -> SandboxReply:
    return refuse(403, "egress_refused", "nothing is reachable")
