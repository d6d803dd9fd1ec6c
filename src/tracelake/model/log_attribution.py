"""To which attempt a line of a log belongs: a key that follows the work of an attempt from thread to thread.

A thread starts without a key. Whoever starts one for an attempt hands the key on (`carry_key`); what is logged in a
thread without a key belongs to no attempt.
"""

import contextvars
from collections.abc import Callable
from typing import ParamSpec, TypeVar
from uuid import UUID

P = ParamSpec("P")
T = TypeVar("T")

ATTEMPT_KEY: contextvars.ContextVar[str | None] = contextvars.ContextVar("attempt_key", default=None)
"""Of the attempt that the current thread or coroutine works for."""
RECORD_FIELD = "attempt_key"
"""The attribute of a log record that names its attempt, for lines that another process wrote."""


def attempt_key(task_id: UUID, attempt: int) -> str:
    return f"{task_id}#{attempt}"


def carry_key(function: Callable[P, T]) -> Callable[P, T]:
    """The function, which runs with the current key whatever thread calls it."""
    key = ATTEMPT_KEY.get()

    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        token = ATTEMPT_KEY.set(key)
        try:
            return function(*args, **kwargs)
        finally:
            ATTEMPT_KEY.reset(token)

    return run
