"""Runs the process of one feed from the worker's side: starts it, listens, ends it when it should stop."""

import logging
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import IO, Any

import msgspec

from tracelake.catalogue.context import CanceledError, NonRetryableError
from tracelake.feeds.process.messages import (
    MOST_BYTES,
    FeedDone,
    FeedFailed,
    FeedMessage,
    FeedProgress,
    FeedTask,
    frame,
    read_message,
)

logger = logging.getLogger(__name__)

_ENVIRONMENT = ("PATH", "PYTHONPATH", "PYTHONHOME", "LANG", "LC_ALL", "TZ", "SSL_CERT_FILE", "SSL_CERT_DIR")
_CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR")
_OURS = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",  # others reserve memory that nobody uses, which the limit counts
    "OMP_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "2",
}
_LOOK_SECONDS = 0.2
_PIECE = 256 * 1024
_MOST_ERRORS = 4_000


class FeedFailedError(Exception):
    """A feed that could not be read; another attempt may find it better."""


def run_process(
    task: FeedTask,
    *,
    network: bool,
    seconds: float,
    cancel: threading.Event,
    progress: Callable[[str], None],
    log_fields: dict[str, Any],
) -> FeedDone:
    """Raises CanceledError, NonRetryableError and FeedFailedError."""
    environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
    readable = [environment[name] for name in _CERTIFICATES if name in environment]
    command = [sys.executable, "-P", "-m", "tracelake.feeds.process", "shared" if network else "own", *readable]
    with tempfile.TemporaryFile(prefix="trace-feed-errors-") as errors:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env={"PATH": os.defpath, "LANG": "C.UTF-8", **environment, **_OURS},
            cwd="/",
            pass_fds=[output.descriptor for output in task.outputs],
            start_new_session=True,
        )
        try:
            final = _Conversation(process, frame(task), time.monotonic() + seconds, cancel, progress).hold()
        finally:
            _end(process)
        if final is None:
            errors.seek(max(0, errors.seek(0, os.SEEK_END) - _MOST_ERRORS))
            text = errors.read().decode("utf-8", "replace")
            fields = {**log_fields, "status": process.returncode, "errors": text}
            logger.error("the process of a feed ended without a word", extra=fields)
            raise FeedFailedError("the process that reads the feed ended early; see the worker's log")
    return _judge(final, log_fields)


def _judge(final: FeedMessage, log_fields: dict[str, Any]) -> FeedDone:
    if isinstance(final, FeedDone):
        return final
    assert isinstance(final, FeedFailed)
    if final.bug:
        logger.error("the process of a feed failed", extra={**log_fields, "errors": final.text})
        raise FeedFailedError("the feed could not be read; see the worker's log")
    raise NonRetryableError(final.text) if final.final else FeedFailedError(final.text)


class _Conversation:
    """Sends the task and receives messages, without waiting for either side."""

    def __init__(
        self,
        process: "subprocess.Popen[bytes]",
        request: bytes,
        until: float,
        cancel: threading.Event,
        progress: Callable[[str], None],
    ) -> None:
        self._process = process
        self._request = memoryview(request)
        self._until, self._cancel, self._progress = until, cancel, progress
        self._received = bytearray()
        self._final: FeedMessage | None = None

    def hold(self) -> FeedMessage | None:
        """The last message; None if the process ended without one."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        with selectors.DefaultSelector() as selector:
            for stream, event in ((stdin, selectors.EVENT_WRITE), (stdout, selectors.EVENT_READ)):
                os.set_blocking(stream.fileno(), False)
                selector.register(stream, event)
            while self._final is None:
                if self._cancel.is_set():
                    raise CanceledError
                if time.monotonic() > self._until:
                    raise FeedFailedError("the feed was not read in time: ask for less, or raise `total_seconds`")
                for key, _ in selector.select(_LOOK_SECONDS):
                    if key.fileobj is stdin:
                        self._send(stdin, selector)
                    elif not self._receive(stdout):
                        return self._final
        return self._final

    def _send(self, stdin: IO[bytes], selector: selectors.BaseSelector) -> None:
        try:
            self._request = self._request[os.write(stdin.fileno(), self._request[:_PIECE]) :]
        except BlockingIOError:
            return
        except BrokenPipeError:
            self._request = self._request[:0]
        if not self._request:
            selector.unregister(stdin)
            with suppress(OSError):
                stdin.close()

    def _receive(self, stdout: IO[bytes]) -> bool:
        """False at the end."""
        data = os.read(stdout.fileno(), _PIECE)
        self._received += data
        while len(self._received) >= 4:
            size = int.from_bytes(self._received[:4], "big")
            if size > MOST_BYTES:
                return False
            if len(self._received) < 4 + size:
                break
            body = bytes(self._received[4 : 4 + size])
            del self._received[: 4 + size]
            try:
                message = read_message(body)
            except msgspec.MsgspecError:
                return False
            if isinstance(message, FeedProgress):
                self._progress(message.text)
            else:
                self._final = message
        return bool(data)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """The process, what it started, and the ends of its pipes."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with suppress(OSError):
                stream.close()
