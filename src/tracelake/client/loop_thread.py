"""An event loop in a thread of its own, for callers that are not asynchronous.

Any thread may call it, also one that runs an event loop itself, as a notebook does: that loop is not used, and stands
still until the call returns. Ctrl-C in the calling thread cancels the call.
"""

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError
from typing import Any, TypeVar

from tracelake.client.errors import ClientError

T = TypeVar("T")


class LoopThread:
    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._closed = False
        self._process = os.getpid()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs the work to its end, beside what other threads run."""
        try:
            loop = self._started()
        except BaseException:
            work.close()
            raise
        future = asyncio.run_coroutine_threadsafe(work, loop)
        try:
            return future.result()
        except CancelledError:
            raise ClientError("client_closed", "the client was closed while the call ran") from None
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """Ends the thread; whatever still runs is cancelled. A second call does nothing."""
        with self._lock:
            loop, thread, self._loop, self._closed = self._loop, self._thread, None, True
        if loop is None or thread is None or self._process != os.getpid():
            return
        loop.call_soon_threadsafe(loop.stop)
        thread.join()

    def _started(self) -> asyncio.AbstractEventLoop:
        if self._process != os.getpid():
            raise ClientError("client_closed", "the client belongs to the process that forked this one: make a new one")
        with self._lock:
            if self._closed:
                raise ClientError("client_closed", "the client is closed: make a new one")
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=_serve, args=(self._loop,), name="tracelake-client", daemon=True)
                self._thread.start()
            return self._loop


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        rest = asyncio.all_tasks(loop)
        for task in rest:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*rest, return_exceptions=True))
    finally:
        loop.close()
