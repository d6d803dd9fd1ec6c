"""Logs of attempts: written to the object store while a function runs, and once more at its end.

The Dispatcher gives an attempt two addresses. The one for the running function is written again and again, at most
every two seconds and ever less often, and only if something new was printed. The final log is an object of its own,
which is created once: nothing that arrives late or out of order replaces it. An upload that fails changes nothing for
the attempt. A final log that could not be stored within a moment is repeated beside the final report.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from tracelake.model.backoff import Backoff
from tracelake.runner.outcome import RunEnding, RunResult
from tracelake.runner.output import OutputPiece, OutputTail, RunOutput, redact
from tracelake.runner.upstream import UpstreamError, UpstreamService
from tracelake.wire.claims import LogAddresses
from tracelake.wire.run_logs import RunError, RunLog, StoredOutput

logger = logging.getLogger(__name__)

UPLOAD_SECONDS = 2.0
"""Between two uploads of a function that has just begun."""
_SLOWEST_SECONDS = 10.0
_SHARE = 0.1
"""Between two uploads passes this share of the time that the function has run."""
_REQUEST_SECONDS = 10.0
_BEFORE_REPORT_SECONDS = 2.0
_PATIENCE_SECONDS = 300.0
"""How long a final log is repeated while the store is away."""
_MOST_WAITING_BYTES = 64 * 1024 * 1024
_AGAIN = Backoff(0.5, 15.0)
_CREATE = (("if-none-match", "*"),)
_STORED = frozenset((200, 201, 204))
_EXISTS = 412
_MAX_TYPE, _MAX_MESSAGE, _MAX_FRAME = 200, 16_000, 2_000
_MAX_FRAMES = 25
"""From each end of the stack."""

Outcome = Literal["stored", "failed"]


class LogUploads:
    """Uploads of all attempts of a runner. `count` gets how each of them ended."""

    def __init__(self, count: Callable[[Outcome], None] = lambda _outcome: None) -> None:
        self._count = count
        self._services: dict[str, UpstreamService] = {}
        self._waiting: dict[asyncio.Task[None], int] = {}

    async def store(self, url: str, body: bytes) -> bool:
        """Replaces the log of a running function, if the store takes it."""
        try:
            stored = await self._put(url, body, ()) in _STORED
        except UpstreamError:
            stored = False
        self._count("stored" if stored else "failed")
        return stored

    async def store_final(self, url: str, body: bytes, *, wait_seconds: float) -> None:
        """Returns when the log is stored, or after this time; the upload then goes on by itself."""
        if sum(self._waiting.values()) + len(body) > _MOST_WAITING_BYTES:
            self._count("failed")  # the store has been away for long: memory is for functions
            return
        upload = asyncio.create_task(self._repeat(url, body), name="log of a run")
        self._waiting[upload] = len(body)
        upload.add_done_callback(lambda task: self._waiting.pop(task, None))
        if wait_seconds:
            await asyncio.wait({upload}, timeout=wait_seconds)

    async def settle(self) -> None:
        """Waits until no final log is waiting."""
        while self._waiting:
            await asyncio.wait(list(self._waiting))

    async def close(self) -> None:
        """Gives what waits a last moment."""
        waiting = list(self._waiting)
        if waiting:
            await asyncio.wait(waiting, timeout=_BEFORE_REPORT_SECONDS)
        for upload in waiting:
            upload.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    async def _repeat(self, url: str, body: bytes) -> None:
        loop = asyncio.get_running_loop()
        deadline, tries = loop.time() + _PATIENCE_SECONDS, 0
        while True:
            try:
                status = await self._put(url, body, _CREATE)
            except UpstreamError:
                status = 0
            if status in _STORED or status == _EXISTS:
                self._count("stored")
                return
            if 400 <= status < 500 and status not in (408, 409, 429):
                break
            tries += 1
            if loop.time() > deadline:
                break
            await asyncio.sleep(_AGAIN.seconds(tries))
        self._count("failed")
        logger.warning("the log of a run could not be stored", extra={"status": status})

    async def _put(self, url: str, body: bytes, headers: Sequence[tuple[str, str]]) -> int:
        """The status. Neither errors nor logs name the address, which is a credential."""
        parts = urlsplit(url)
        base = f"{parts.scheme}://{parts.netloc}"
        service = self._services.get(base)
        if service is None:
            service = self._services[base] = UpstreamService(base)
        all_headers = [("host", parts.netloc), ("content-type", "application/json"), *headers]
        try:
            async with asyncio.timeout(_REQUEST_SECONDS):
                target = f"{parts.path}?{parts.query}"
                reply = await service.request("PUT", target, all_headers, body, seconds=_REQUEST_SECONDS)
                async with aclosing(reply.body) as rest:
                    async for _ in rest:
                        pass
        except (TimeoutError, EOFError) as error:
            raise UpstreamError(type(error).__name__) from None
        return reply.status


class RunLogWriter:
    """The log of one attempt."""

    def __init__(
        self,
        addresses: LogAddresses,
        output: RunOutput,
        secrets: Sequence[str],
        uploads: LogUploads,
        upload_seconds: float = UPLOAD_SECONDS,
    ) -> None:
        """`secrets` may grow while the function runs."""
        self._addresses = addresses
        self._output = output
        self._secrets = secrets
        self._uploads = uploads
        self._least_seconds = upload_seconds

    async def follow(self) -> None:
        """Stores what was printed so far, whenever there is more of it, until it is cancelled."""
        loop = asyncio.get_running_loop()
        began, stored_end = loop.time(), (0, 0)
        while True:
            share = min(_SHARE * (loop.time() - began), _SLOWEST_SECONDS)
            await asyncio.sleep(max(self._least_seconds, share))
            end = self._output.end
            if end == stored_end:
                continue
            stdout, stderr = _stored(self._output.stdout), _stored(self._output.stderr)
            log = RunLog(seconds=loop.time() - began, stdout=stdout, stderr=stderr)
            if await self._uploads.store(self._addresses.running_url, msgspec.json.encode(log)):
                stored_end = end

    async def finish(self, result: RunResult, refused: Mapping[str, int]) -> None:
        """Stores the final log. A newer attempt waits for the end of one that is fenced, and not for its log."""
        log = describe_run(result, refused, self._output, self._secrets)
        seconds = 0.0 if result.ending is RunEnding.FENCED else _BEFORE_REPORT_SECONDS
        await self._uploads.store_final(self._addresses.final_url, msgspec.json.encode(log), wait_seconds=seconds)


def describe_run(result: RunResult, refused: Mapping[str, int], output: RunOutput, secrets: Sequence[str]) -> RunLog:
    error = None
    if result.error is not None:
        error = RunError(
            type=_shorten(result.error.error_type, secrets, _MAX_TYPE),
            message=_shorten(result.error.error_message, secrets, _MAX_MESSAGE),
            frames=[_shorten(frame.rstrip("\n"), secrets, _MAX_FRAME) for frame in _both_ends(result.error.frames)],
        )
    return RunLog(
        ending=result.ending.value,
        message=_shorten(result.message, secrets, _MAX_MESSAGE),
        error=error,
        seconds=result.seconds,
        peak_bytes=result.peak_bytes,
        refused=dict(refused),
        stdout=_stored(output.stdout),
        stderr=_stored(output.stderr),
    )


def _both_ends(frames: list[str]) -> list[str]:
    if len(frames) <= 2 * _MAX_FRAMES:
        return frames
    return [*frames[:_MAX_FRAMES], "...", *frames[-_MAX_FRAMES:]]


def _shorten(text: str, secrets: Sequence[str], most: int) -> str:
    """Redacted first: what is cut must not be a part of a credential."""
    return redact(text, secrets)[:most].encode("utf-8", "replace").decode()


def _stored(tail: OutputTail) -> StoredOutput:
    piece: OutputPiece = tail.piece()
    return StoredOutput(text=piece.text, start=piece.start, end=piece.end)
