"""A stand-in for the runner of invoked attempts, until the sandboxed one exists.

It can do nothing but `noop`: it says that attempt's final word over TLS to the task listener, with the capability token
from the invocation, as a real runner does. Every other operator is refused with `InvokeError`: the attempt fails with a
text that says so, and nothing pretends to have run.
"""

import asyncio
import logging
from pathlib import Path

from tracelake.catalogue.announce import announce
from tracelake.client import HttpClient, TaskClient
from tracelake.errors import TraceError
from tracelake.model.backoff import Backoff
from tracelake.ports import InvokeError
from tracelake.wire.claims import Invocation
from tracelake.wire.task_calls import CompleteRequest

logger = logging.getLogger(__name__)

_AGAIN = Backoff(0.1, 5.0)
_TRIES = 20


class LocalInvoker:
    """One instance serves one event loop. `task_url` is the task listener's."""

    def __init__(self, task_url: str, ca_file: Path) -> None:
        self._tasks = TaskClient(HttpClient(task_url, ca_file))
        self._running: set[asyncio.Task[None]] = set()
        self._closed = False

    async def invoke(self, invocation: Invocation) -> None:
        if self._closed:
            raise InvokeError("the local invoker is closed")
        if invocation.operator != "noop":
            raise InvokeError(
                f"the UDF runner is not installed: this stack can start noop attempts alone, not {invocation.operator}",
                retryable=False,
            )
        attempt = asyncio.create_task(self._run(invocation), name=f"noop {invocation.task_id}")
        self._running.add(attempt)
        attempt.add_done_callback(self._running.discard)

    async def close(self) -> None:
        """Attempts that still run are left to their lease."""
        self._closed = True
        running = list(self._running)
        for attempt in running:
            attempt.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await self._tasks.close()

    async def _run(self, invocation: Invocation) -> None:
        final = CompleteRequest(
            task_id=invocation.task_id,
            attempt=invocation.attempt,
            lease_token=invocation.lease_token,
            status="Completed",
            events=announce(invocation.inputs, invocation.outputs),
        )
        for tries in range(1, _TRIES + 1):
            try:
                await self._tasks.complete(invocation.capability_token, final)
            except TraceError as error:
                if not error.retryable:
                    logger.info("a noop was refused", extra={"task_id": str(final.task_id), "code": error.code})
                    return
            else:
                return
            await asyncio.sleep(_AGAIN.seconds(tries))
