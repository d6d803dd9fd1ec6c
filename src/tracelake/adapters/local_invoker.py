"""Hands invoked attempts over to the runner of this stack.

`invoke` returns when the runner has taken the attempt. A call whose reply was lost is repeated: the runner knows the
attempts that it has, so that nothing starts twice. `noop`, which is the platform's own and runs no code of a user, is
reported from here, over TLS to the task listener and with the token from the invocation, as a runner does.
"""

import asyncio
import logging
import time
from pathlib import Path

import msgspec

from tracelake.catalogue.announce import announce
from tracelake.client import HttpClient, InternalClient, TaskClient
from tracelake.errors import TraceError
from tracelake.model.backoff import Backoff
from tracelake.ports import InvokeError
from tracelake.wire import routes
from tracelake.wire.claims import Invocation, InvokeRequest
from tracelake.wire.task_calls import CompleteRequest

logger = logging.getLogger(__name__)

_AGAIN = Backoff(0.1, 5.0)
_TRIES = 20
_HAND_OVER_SECONDS = 30.0
"""How long a runner may be away or busy. The task is then tried again, which costs none of its attempts."""


class LocalInvoker:
    """One instance serves one event loop. `task_url` is the task listener's; `runner` has the service token."""

    def __init__(self, task_url: str, ca_file: Path, runner: InternalClient | None = None) -> None:
        self._tasks = TaskClient(HttpClient(task_url, ca_file))
        self._runner = runner
        self._running: set[asyncio.Task[None]] = set()
        self._closed = False

    async def invoke(self, invocation: Invocation) -> None:
        if self._closed:
            raise InvokeError("the local invoker is closed")
        if invocation.operator != "noop":
            await self._hand_over(invocation)
            return
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
        if self._runner is not None:
            await self._runner.close()

    async def _hand_over(self, invocation: Invocation) -> None:
        if self._runner is None:
            message = "this stack has no runner of users' functions: set `runner`, or `runner_url` to one, and retry"
            raise InvokeError(message, retryable=False)
        request = InvokeRequest(**msgspec.structs.asdict(invocation))
        deadline, tries = time.monotonic() + _HAND_OVER_SECONDS, 0
        while True:
            try:
                await self._runner.call(routes.INVOKE_FUNCTION, request)
            except TraceError as error:
                if not error.retryable:
                    refusal = f"the runner refused the function ({error.code}): {error.message}"
                    raise InvokeError(refusal, retryable=error.code == "fenced") from error
                if time.monotonic() > deadline:
                    refusal = f"the runner did not take the function: {error.message}"
                    raise InvokeError(refusal, unavailable=True) from error
            else:
                return
            tries += 1
            await asyncio.sleep(_AGAIN.seconds(tries))

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
