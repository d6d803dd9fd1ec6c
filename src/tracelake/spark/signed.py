"""Objects by signed addresses, for executors elsewhere: they hold no key, and reach nothing but what they were lent.

`lend` is how an operator's driver hands work with objects to Spark's Python processes. A transfer that may go there as
it is stays what it is; one that may not (`LendingTransfer`) is asked for a transfer with exactly the files and names
that the work needs. Names of new objects are then chosen before the work begins, with some to spare: a Spark task that
is tried again finds its name taken, and takes the next one.
"""

import errno
import hashlib
import http.client
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable
from urllib.parse import urlsplit

from tracelake.errors import StoreUnavailableError
from tracelake.model.backoff import Backoff
from tracelake.ports import (
    FileTransfer,
    ObjectChangedError,
    ObjectExistsError,
    ObjectMeta,
    content_mismatch,
    hash_file,
)

_CHUNK = 2**20
_BACKOFF = Backoff(0.2, 5.0)
_REQUEST_SECONDS = 60.0
_RETRY_SECONDS = 60.0
_FAILURES = (OSError, http.client.HTTPException)
_OF_DISKS = (errno.ENOSPC, errno.EDQUOT)


@runtime_checkable
class LendingTransfer(Protocol):
    """The transfer of an attempt that stays with the driver."""

    def lend(self, files: Sequence[ObjectMeta] = (), names: Sequence[str] = ()) -> FileTransfer:
        """One that can be pickled, reads these files, and creates objects of these names."""
        ...


def lend_files(transfer: FileTransfer, files: Sequence[ObjectMeta]) -> FileTransfer:
    return transfer.lend(files=files) if isinstance(transfer, LendingTransfer) else transfer


def upload_first(transfer: FileTransfer, path: Path, names: Iterable[str]) -> ObjectMeta:
    """As a new object, by the first of these names that is not taken."""
    exhausted = ObjectExistsError("no name is left for another file of this attempt")
    for name in names:
        try:
            return transfer.upload(path, name)
        except ObjectExistsError as error:
            exhausted = error
    raise exhausted


@dataclass(frozen=True, slots=True)
class SignedTransfer:
    """The FileTransfer port by signed addresses. An upload whose answer was lost finds its name taken."""

    reading: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Of objects, by `s3://` address."""
    creating: Mapping[str, str] = field(default_factory=dict, repr=False)
    retry_seconds: float = _RETRY_SECONDS

    def download(self, meta: ObjectMeta, path: Path) -> None:
        url = self.reading.get(meta.uri)
        if url is None:
            raise ValueError("the task has no signed address for a file that it reads")
        aside = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
        try:
            digest = self._repeat(lambda: _get(url, meta, aside))
            if meta.sha256 not in (None, digest):
                raise content_mismatch(_name(meta.uri))
            aside.replace(path)
        finally:
            aside.unlink(missing_ok=True)

    def upload(self, path: Path, uri: str) -> ObjectMeta:
        url = self.creating.get(uri)
        if url is None:
            raise ValueError("the task has no signed address for a file that it writes")
        size, digest = path.stat().st_size, hash_file(path)
        return ObjectMeta(uri, size, self._repeat(lambda: _put(url, path, size, _name(uri))), digest)

    def _repeat(self, call: Callable[[], str]) -> str:
        """Again and again while the store does not answer, or fails."""
        deadline = time.monotonic() + self.retry_seconds
        tries = 0
        while True:
            tries += 1
            try:
                return call()
            except _FAILURES as error:
                if isinstance(error, OSError) and error.errno in _OF_DISKS:
                    raise
                wait = _BACKOFF.seconds(tries)
                if time.monotonic() + wait > deadline:
                    # Of what a client says nothing is repeated: it may contain the address.
                    raise StoreUnavailableError("The object store is not available right now.") from error
                time.sleep(wait)


class _FailedError(OSError):
    """The store answered that it cannot now."""


def _get(url: str, meta: ObjectMeta, path: Path) -> str:
    """The hash of what was read."""
    with closing(_connect(url)) as connection, path.open("wb") as target:
        connection.request("GET", _target(url), headers={"If-Match": meta.etag} if meta.etag else {})
        answer = connection.getresponse()
        _check(answer.status, _name(meta.uri))
        content, size = hashlib.sha256(), 0
        while chunk := answer.read(_CHUNK):
            content.update(chunk)
            target.write(chunk)
            size += len(chunk)
    if size < int(answer.headers.get("Content-Length") or 0):
        raise _FailedError("the connection was cut")
    if size != meta.size:
        raise ObjectChangedError(f"{_name(meta.uri)} has {size} bytes instead of {meta.size}")
    return content.hexdigest()


def _put(url: str, path: Path, size: int, name: str) -> str:
    """The ETag of the new object."""
    with closing(_connect(url)) as connection, path.open("rb") as source:
        headers = {"If-None-Match": "*", "Content-Length": str(size)}
        try:
            connection.request("PUT", _target(url), body=source, headers=headers)
        except (BrokenPipeError, ConnectionResetError):
            if connection.sock is None:
                raise
            # A store that refuses may say so before it has read everything.
        answer = connection.getresponse()
        answer.read()
        if answer.status in (409, 412):
            raise ObjectExistsError(f"{name} is there already")
        _check(answer.status, name)
        return answer.headers.get("ETag") or ""


def _check(status: int, name: str) -> None:
    if status in (404, 412):
        raise ObjectChangedError(f"{name} is not the file that was committed")
    if status == 403:
        raise StoreUnavailableError(
            "The object store refuses a signed address with status 403: it has expired, or the clocks of the worker and"
            " the store differ."
        )
    if status >= 500:
        raise _FailedError(f"status {status}")
    if status != 200:
        raise StoreUnavailableError(f"The object store refuses a signed address with status {status}.")


def _connect(url: str) -> http.client.HTTPConnection:
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    return kind(parts.netloc, timeout=_REQUEST_SECONDS, blocksize=_CHUNK)


def _target(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.path}?{parts.query}"


def _name(uri: str) -> str:
    return uri.rpartition("/")[2]
