"""Runs a control operator in this process and says what came of it.

Whatever an operator raises becomes a failed attempt with its text. Events are sent in bounded transactions: those of a
usual task in the one that completes it, those of a very large one before, chunk by chunk. A second attempt says all of
them again, which changes nothing.
"""

import logging
import time
from collections.abc import Mapping
from itertools import islice

import asyncpg

from tracelake.catalogue import read_config
from tracelake.db.transaction import Store
from tracelake.dispatcher.invoke.attempt import LeftError, OwnAttempt
from tracelake.dispatcher.invoke.operators import CONTROL_OPERATORS, ControlOperator
from tracelake.dispatcher.invoke.operators.context import MAX_UNITS, BadInputError, ControlContext
from tracelake.errors import TraceError
from tracelake.wire.units import TaskPayload

logger = logging.getLogger(__name__)

MAX_EVENTS = 2_000
"""Of one transaction: others wait no longer for their turn, and the relay starts on the first of them meanwhile."""


class _CanceledError(Exception):
    pass


async def run_in_process(
    attempt: OwnAttempt,
    payload: TaskPayload,
    store: Store,
    operators: Mapping[str, ControlOperator] = CONTROL_OPERATORS,
    *,
    max_units: int = MAX_UNITS,
) -> str:
    """The recorded status. Raises what `OwnAttempt` raises when there is nothing more to say."""
    try:
        return await _run(attempt, payload, store, operators, max_units)
    except _CanceledError:
        return await attempt.finish("Canceled")
    except BadInputError as error:
        return await attempt.finish("Failed", error=str(error), retryable=False)
    except TraceError as refusal:
        if refusal.code == "cancel_requested":
            return await attempt.finish("Canceled")
        return await attempt.finish("Failed", error=str(refusal), retryable=refusal.code != "job_invalid")
    except LeftError:
        raise
    except Exception as error:
        logger.warning("a control operator failed", exc_info=error, extra={"task_id": str(payload.task_id)})
        return await attempt.finish("Failed", error=_text(error))


async def _run(
    attempt: OwnAttempt, payload: TaskPayload, store: Store, operators: Mapping[str, ControlOperator], max_units: int
) -> str:
    operator = operators.get(payload.operator)
    if operator is None:
        raise BadInputError(f"the Dispatcher has no operator {payload.operator!r}")
    context = ControlContext(
        config=read_config(payload.operator, payload.config),
        inputs=payload.inputs,
        outputs=payload.outputs,
        revision=attempt.task.revision,
        store=store,
        max_units=max_units,
    )
    events = iter(await attempt.repeated(lambda: operator(context)))
    pace = attempt.job.lease_seconds / 3
    beaten_at = time.monotonic()
    chunk = list(islice(events, MAX_EVENTS))
    while following := list(islice(events, MAX_EVENTS)):
        await attempt.say_events(chunk)
        chunk = following
        if time.monotonic() - beaten_at >= pace:
            if await attempt.beat():
                raise _CanceledError
            beaten_at = time.monotonic()
    return await attempt.finish("Completed", events=chunk)


def _text(error: Exception) -> str:
    # What Postgres says of a statement is for the log, not for whoever reads tasks.
    if isinstance(error, asyncpg.PostgresError) or not str(error):
        return type(error).__name__
    return f"{type(error).__name__}: {error}"
