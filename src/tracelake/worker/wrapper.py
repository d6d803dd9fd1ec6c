"""One attempt: run its operator, and find the final word for what came of it.

An operator's exception becomes `Failed` with its class and message; the traceback stays in this worker's log. The
secrets that its job names are fetched right before it starts, and blanked in whatever text comes back from it.
"""

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import logging
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

import msgspec

from tracelake.catalogue import OperatorConfig, missing_operator, read_config
from tracelake.catalogue.context import (
    AttemptLostError,
    Batch,
    CanceledError,
    LiveInput,
    LiveOutput,
    NonRetryableError,
    OperatorContext,
    OperatorResult,
    StoredDelivery,
    TableInput,
)
from tracelake.errors import BoundaryMovedError, SecretsUnavailableError, TraceError
from tracelake.model.dag import Schema
from tracelake.model.log_attribution import carry_key
from tracelake.ports import NoSecrets, ObjectMeta, SecretProvider, SecretValues
from tracelake.ports.direct_tables import DirectTables
from tracelake.wire.claims import TaskSecrets
from tracelake.wire.direct import DirectTable
from tracelake.wire.task_calls import CheckReport, CompleteRequest
from tracelake.wire.units import EventIn, PayloadInput, TaskOutput
from tracelake.worker.attempt import Attempt
from tracelake.worker.check_text import explain_checks
from tracelake.worker.direct_outputs import open_outputs, remove_rows
from tracelake.worker.log_text import describe_batch, describe_events, describe_files, describe_result
from tracelake.worker.operators import Operator

logger = logging.getLogger(__name__)

SECRETS_SECONDS = 30.0
"""How long a provider may take before the attempt fails; another one may find it better."""

MOVED_AT_ONCE = 3
"""Attempts of a task that may meet a moved boundary and are followed by another one at once. A boundary that has moved
for the next attempt again and again is an error of the stores: from then on attempts wait and count as usual."""

S = TypeVar("S")
T = TypeVar("T")


NO_SECRETS = NoSecrets()
_configs = concurrent.futures.ThreadPoolExecutor(max_workers=1, thread_name_prefix="config")


class Speaker(Protocol):
    """What an operator has the worker say for it."""

    async def emit(self, attempt: Attempt, events: Sequence[EventIn]) -> None: ...

    async def files(self, attempt: Attempt, item: PayloadInput) -> list[ObjectMeta] | TableInput | LiveInput: ...

    async def publish(self, attempt: Attempt, batch: Batch) -> None: ...

    async def schema(self, attempt: Attempt, output: TaskOutput) -> Schema | None: ...

    async def deliveries(self, attempt: Attempt, item: PayloadInput) -> list[StoredDelivery]: ...

    async def direct_table(self, attempt: Attempt, output: TaskOutput) -> DirectTable | None: ...

    async def live_output(self, attempt: Attempt, output: TaskOutput) -> LiveOutput: ...


async def run_operator(
    attempt: Attempt,
    operators: Mapping[str, Operator],
    speaker: Speaker,
    secrets: SecretProvider = NO_SECRETS,
    tables: DirectTables | None = None,
) -> CompleteRequest:
    """The final word on the attempt. Never raises for anything an operator does."""
    operator = operators.get(attempt.task.operator)
    if operator is None:
        reason = f"{missing_operator(attempt.task.operator)} Install its package where workers run, and restart them."
        return attempt.final("Failed", f"this worker cannot run the task: {reason}", retryable=False)
    try:
        config = await _read_config(attempt, operator)
        context = _context(attempt, config, speaker, tables)
    except TraceError as error:
        return attempt.final("Failed", error.message, retryable=False)
    if attempt.wanted_secrets is not None:
        try:
            attempt.secrets = await _fetch_secrets(attempt.wanted_secrets, secrets)
        except TraceError as error:
            logger.warning("no secrets", extra={**attempt.log_fields, "code": error.code, "reason": error.message})
            return attempt.final("Failed", str(error), retryable=error.retryable)
        context = dataclasses.replace(context, secrets=attempt.secrets)
        attempt.note(f"secrets: {', '.join(attempt.wanted_secrets.names)}")
    try:
        if operator.inline:
            result = operator.run(context)
        else:
            result = await _in_thread(carry_key(lambda: operator.run(context)))
        describe_result(attempt, result)
        return _completed(attempt, result)
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        return _failed(attempt, error)


async def _fetch_secrets(requested: TaskSecrets, provider: SecretProvider) -> SecretValues:
    try:
        async with asyncio.timeout(SECRETS_SECONDS):
            return SecretValues(await provider.fetch(requested.org, requested.names))
    except TraceError:
        raise
    except TimeoutError:
        raise SecretsUnavailableError(f"No secret came within {SECRETS_SECONDS:g} seconds.") from None
    except Exception as error:
        # Its words are not ours to repeat: they may hold anything.
        raise SecretsUnavailableError(f"Asking for secrets failed ({type(error).__name__}).") from None


async def _read_config(attempt: Attempt, operator: Operator) -> OperatorConfig:
    """A config may hold a query of 20,000 characters, which takes up to a second to check: heartbeats go on meanwhile.

    One thread for all attempts: the event loop shares the interpreter with that one at most.
    """
    task = attempt.task
    if operator.inline:
        return read_config(task.operator, task.config)
    return await asyncio.get_running_loop().run_in_executor(_configs, read_config, task.operator, task.config)


def _context(
    attempt: Attempt, config: OperatorConfig, speaker: Speaker, tables: DirectTables | None
) -> OperatorContext:
    def progress(text: str) -> None:
        logger.info("progress", extra={**attempt.log_fields, "progress": attempt.secrets.hide(text)})

    async def emit(attempt: Attempt, events: Sequence[EventIn]) -> None:
        _refuse_secrets(attempt, events)
        await speaker.emit(attempt, events)
        if not attempt.always_on:  # a source announces all the time: `trace events` tells it
            describe_events(attempt, events)

    async def files(attempt: Attempt, item: PayloadInput) -> list[ObjectMeta] | TableInput | LiveInput:
        content = await speaker.files(attempt, item)
        describe_files(attempt, item, content)
        return content

    async def publish(attempt: Attempt, batch: Batch) -> None:
        await speaker.publish(attempt, batch)
        describe_batch(attempt, batch)

    blocking_emit = _blocking(attempt, emit)
    direct_table = _blocking(attempt, speaker.direct_table)
    return OperatorContext(
        task_id=attempt.task_id,
        attempt=attempt.number,
        config=config,
        inputs=attempt.task.inputs,
        outputs=attempt.task.outputs,
        progress=progress,
        report=attempt.report,
        cancel=attempt.cancel,
        paused=attempt.paused,
        emit=blocking_emit,
        files=_blocking(attempt, files),
        publish=_blocking(attempt, publish),
        schema=_blocking(attempt, speaker.schema),
        deliveries=_blocking(attempt, speaker.deliveries),
        live_output=_blocking(attempt, speaker.live_output),
        remove_rows=partial(remove_rows, attempt, tables),
        open_tables=partial(open_outputs, attempt, tables, direct_table, blocking_emit),
        org=attempt.org,
        checks=attempt.task.checks,
        references=attempt.task.references,
        traceparent=attempt.task.traceparent,
    )


def _blocking(attempt: Attempt, say: Callable[[Attempt, S], Coroutine[Any, Any, T]]) -> Callable[[S], T]:
    """For the operator's thread, which waits while the event loop speaks."""
    loop = asyncio.get_running_loop()
    loop_thread = threading.get_ident()

    def blocking(what: S) -> T:
        if threading.get_ident() == loop_thread:
            raise RuntimeError("an inline operator returns what it has to say, it cannot wait for an answer")
        if attempt.cancel.is_set():
            raise CanceledError
        speaking = say(attempt, what)
        try:
            return asyncio.run_coroutine_threadsafe(speaking, loop).result()
        except concurrent.futures.CancelledError:
            raise CanceledError from None  # the worker ends
        except RuntimeError as error:
            speaking.close()
            if loop.is_closed():
                raise CanceledError from error
            raise

    return blocking


def _refuse_secrets(attempt: Attempt, events: Sequence[EventIn]) -> None:
    """What names a unit is stored and shown, and cannot be blanked: another name would be another unit."""
    if not attempt.secrets:
        return
    hide = attempt.secrets.hide
    for event in events:
        reason = event.invalidates.reason if event.invalidates else ""
        if hide.finds(f"{event.partition_key}\n{event.revision}\n{reason}"):
            raise NonRetryableError("an event repeats a secret: name units and revisions by something else")


def _completed(attempt: Attempt, result: OperatorResult) -> CompleteRequest:
    _refuse_secrets(attempt, result.events)
    if attempt.cancel_requested:
        return attempt.final("Canceled")
    if attempt.leaving:
        # It was told to stop and may have left something out. What a source announces is whole in itself.
        return _encoded(attempt.final_when_leaving(result.events if attempt.always_on else ()))
    checks = _hide_secrets(attempt, result.checks)
    if any(not report.passed and report.severity == "error" for report in checks):
        return _refused_by_checks(attempt, checks)
    if not (result.outputs or result.events or result.datasets_published or result.spark or checks):
        return attempt.final("Completed")
    return _encoded(
        CompleteRequest(
            task_id=attempt.task_id,
            attempt=attempt.number,
            lease_token=attempt.lease_token,
            status="Completed",
            outputs=result.outputs,
            events=result.events,
            datasets_published=result.datasets_published,
            spark=result.spark,
            checks=checks,
            operator_package=attempt.operator_package,
        )
    )


def _hide_secrets(attempt: Attempt, checks: Sequence[CheckReport]) -> list[CheckReport]:
    hide = attempt.secrets.hide
    if not attempt.secrets:
        return list(checks)
    return [
        msgspec.structs.replace(
            report,
            message=hide(report.message),
            sample=[
                {name: None if text is None else hide(text)[:200] for name, text in row.items()}
                for row in report.sample
            ],
        )
        for report in checks
    ]


def _refused_by_checks(attempt: Attempt, checks: list[CheckReport]) -> CompleteRequest:
    """Nothing of what it wrote is committed, and another attempt would write the same rows."""
    names = {output.output_index: output.name for output in attempt.task.outputs}
    text = explain_checks(names, checks)
    logger.warning("checks failed", extra={**attempt.log_fields, "reason": text})
    final = attempt.final("Failed", text, retryable=False)
    return _encoded(msgspec.structs.replace(final, error_code="check_failed", checks=checks))


def _encoded(final: CompleteRequest) -> CompleteRequest:
    """What cannot be written as JSON is this operator's failure and must not become its neighbours' in a batch."""
    msgspec.json.encode(final)
    return final


def _failed(attempt: Attempt, error: BaseException) -> CompleteRequest:
    if attempt.cancel_requested:
        return attempt.final("Canceled")
    if isinstance(error, CanceledError) and attempt.fenced.done():
        return attempt.final("Failed", "stopped")  # never sent: the attempt is not current
    if isinstance(error, CanceledError) and attempt.leaving:
        return attempt.final_when_leaving()
    if isinstance(error, AttemptLostError):
        logger.warning("attempt lost", extra={**attempt.log_fields, "reason": str(error)})
        return attempt.final_when_leaving(reason=str(error))
    if isinstance(error, BoundaryMovedError) and attempt.number <= MOVED_AT_ONCE:
        logger.info("boundary moved", extra={**attempt.log_fields, "reason": str(error)})
        return attempt.final_when_leaving(reason=str(error))
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if type(error) is NonRetryableError and str(error):
        text = str(error)  # the name says no more than that it is not retried, which the status says
    message = error
    source = _told_a_secret(attempt, error)
    if source is not None:
        text, message = f"{type(error).__name__}: it repeated part of a secret; see the worker's log", source
    logger.warning("operator failed", exc_info=message, extra=attempt.log_fields)
    return attempt.final("Failed", text, retryable=not isinstance(error, NonRetryableError))


def _told_a_secret(attempt: Attempt, error: BaseException) -> BaseException | None:
    """The error that this one was made from, if that one told a secret of which this one still holds a piece.

    Whoever shortens a message (Spark's are) may cut through a value, and pieces are not blanked.
    """
    hide = attempt.secrets.hide
    below = error.__cause__ or error.__context__
    while attempt.secrets and below is not None:
        if hide.finds(str(below)) and hide.finds_piece(hide(str(error))):
            return below
        below = below.__cause__ or below.__context__
    return None


async def _in_thread(function: Callable[[], T]) -> T:
    """On a thread of its own that does not keep the process alive: a stuck operator cannot hold up an exit."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()

    def settle(value: T | None, error: BaseException | None) -> None:
        if outcome.done():
            return
        if error is not None:
            # A future refuses StopIteration, and SystemExit must not end the worker.
            outcome.set_exception(error if isinstance(error, Exception) else RuntimeError(repr(error)))
        else:
            outcome.set_result(value)  # type: ignore[arg-type]

    def target() -> None:
        value: T | None = None
        problem: BaseException | None = None
        try:
            value = function()
        except StopIteration as error:
            problem = RuntimeError(repr(error))
        except BaseException as error:
            problem = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, value, problem)

    threading.Thread(target=target, name="operator", daemon=True).start()
    return await outcome
