"""How an attempt ended, and the final report that says so."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import msgspec

from tracelake.catalogue.announce import announce
from tracelake.runner.output import redact
from tracelake.runner.runtime_api import FunctionError
from tracelake.sandbox.spec import MIB
from tracelake.wire.claims import Invocation
from tracelake.wire.task_calls import CompleteRequest, DatasetPublished, OutputReport
from tracelake.wire.units import EventIn

_MAX_ERROR_CHARACTERS = 20_000
_SHOWN_STDERR = 4_000


class RunEnding(StrEnum):
    COMPLETED = "completed"
    ERROR = "error"
    """The handler raised, or could not be loaded."""
    TIMEOUT = "timeout"
    MEMORY = "memory"
    EXIT = "exit"
    SIGNAL = "signal"
    OUTPUT = "output"
    """It printed or returned more than allowed."""
    RESPONSE = "response"
    """It returned what a final report cannot hold."""
    BUNDLE = "bundle"
    """Its bundle could not be fetched, or is not the one that was named."""
    SANDBOX = "sandbox"
    """The machine could not isolate it."""
    CANCELED = "canceled"
    FENCED = "fenced"
    """The attempt is no longer current: nobody is told."""
    STOPPED = "stopped"
    """The runner stops."""


class FinalFields(msgspec.Struct, frozen=True, kw_only=True):
    """What a handler may return for the final report; other fields of an object are its own."""

    events: list[EventIn] | None = None
    outputs: list[OutputReport] = []
    datasets_published: list[DatasetPublished] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    ending: RunEnding
    message: str = ""
    """For people, with the next step."""
    error: FunctionError | None = None
    response: bytes = b""
    retryable: bool = True
    seconds: float = 0.0
    peak_bytes: int = 0
    cpu_seconds: float = 0.0
    """Of the sandbox and its monitor, from the request on."""
    warm: bool = False
    """The sandbox was ready before the run began."""
    stdout: str = ""
    stderr: str = ""


def read_response(response: bytes) -> FinalFields:
    """Raises ValueError for what a final report cannot hold."""
    try:
        value = msgspec.json.decode(response) if response.strip() else None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise ValueError("the handler's answer is not JSON") from None
    if not isinstance(value, dict):
        return FinalFields()
    try:
        return msgspec.convert(value, FinalFields)
    except (msgspec.ValidationError, RecursionError) as error:
        raise ValueError(f"the handler's answer does not fit a final report: {error}") from None


def final_report(invocation: Invocation, result: RunResult, secrets: Sequence[str]) -> CompleteRequest:
    if result.ending is RunEnding.COMPLETED:
        try:
            fields = read_response(result.response)
        except ValueError as error:  # nested so deep that it could be read on a smaller stack than this one
            result = replace(result, ending=RunEnding.RESPONSE, message=str(error), retryable=False)
        else:
            return CompleteRequest(
                task_id=invocation.task_id,
                attempt=invocation.attempt,
                lease_token=invocation.lease_token,
                status="Completed",
                events=announce(invocation.inputs, invocation.outputs) if fields.events is None else fields.events,
                outputs=fields.outputs,
                datasets_published=fields.datasets_published,
            )
    return CompleteRequest(
        task_id=invocation.task_id,
        attempt=invocation.attempt,
        lease_token=invocation.lease_token,
        status="Canceled" if result.ending is RunEnding.CANCELED else "Failed",
        error_message=describe(result, secrets),
        retryable=result.retryable,
        error_code="worker_stopping" if result.ending is RunEnding.STOPPED else None,
    )


def describe(result: RunResult, secrets: Sequence[str]) -> str:
    lines = [f"{result.ending.value}: {result.message}"]
    if result.error is not None:
        lines = [f"{result.error.error_type}: {result.error.error_message}", *result.error.frames]
    lines.append(f"(after {result.seconds:.1f} s, with at most {result.peak_bytes / MIB:.0f} MiB)")
    if result.stderr.strip():
        lines += ["stderr:", result.stderr.strip()[-_SHOWN_STDERR:]]
    text = redact("\n".join(line.rstrip("\n") for line in lines), secrets)
    return text[:_MAX_ERROR_CHARACTERS].replace("\0", "\ufffd").encode("utf-8", "replace").decode()
