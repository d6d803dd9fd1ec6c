"""Invoker: starts an attempt somewhere else (AWS: Lambda; lite: the local runner).

`invoke` returns when the other side has taken the attempt over; how it ends, the attempt says itself by
`/v1/task/complete` with the token in the payload. Nothing retries below this port: attempts are the Dispatcher's.
"""

from typing import Protocol

from tracelake.wire.claims import Invocation


class InvokeError(Exception):
    """The attempt was not taken over; the message is for people and holds no secret."""

    def __init__(self, message: str, *, retryable: bool = True, unavailable: bool = False) -> None:
        super().__init__(message)
        self.retryable = retryable
        """False: another attempt would be refused in the same way."""
        self.unavailable = unavailable
        """The other side was away or busy, which says nothing about the attempt: it costs the task none."""


class Invoker(Protocol):
    async def invoke(self, invocation: Invocation) -> None:
        """Hand over one attempt. Raises InvokeError if it surely did not start."""
        ...

    async def close(self) -> None: ...
