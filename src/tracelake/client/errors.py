"""Maps every failure of a call to one `TraceError`.

- No reply, or an unreadable one: `DispatcherUnavailableError`; repeating the call is safe by contract.
- The stack has stopped: `StackDownError`, a subclass of that.
- An error body with a code of our catalogue: a `TraceError` of that code, with its message and details.
- An error body with another code, or none: `RemoteError` with the status as sent.
- What the client finds out by itself, like a column that a dataset does not have: `ClientError`.
"""

from typing import Any, TypeVar

import msgspec

from tracelake.errors import CATALOGUE, ErrorKind, TraceError
from tracelake.wire.base import Answer, ErrorBody

T = TypeVar("T")
R = TypeVar("R", bound=msgspec.Struct)

_error_decoder = msgspec.json.Decoder(ErrorBody)
_RETRYABLE_STATUSES = frozenset({429, 502, 503, 504})
_UNREADABLE = "reply_unreadable"


class DispatcherUnavailableError(TraceError):
    """The Dispatcher did not reply, or its reply is unreadable; the same call may be repeated."""

    def __init__(self, message: str) -> None:
        super().__init__("store_unavailable", message)


class StackDownError(DispatcherUnavailableError):
    """The stack does not run; a caller that waits for it may keep waiting."""


class RemoteError(TraceError):
    """An error that is not in this version's catalogue; `code`, `status` and `details` are as sent."""

    def __init__(self, code: str, status: int, message: str) -> None:
        self.kind = ErrorKind(code, status, message, "", retryable=status in _RETRYABLE_STATUSES)
        self.message = message
        self.details = {}
        Exception.__init__(self, f"{code} ({status}): {message}")


class ClientError(TraceError):
    """An error that the client itself found; no server sent it. `code` is stable, and not in the catalogue."""

    def __init__(self, code: str, message: str, **details: Any) -> None:
        self.kind = ErrorKind(code, 422, message, "")
        self.message = message
        self.details = details
        Exception.__init__(self, f"{code}: {message}")


class WaitTimeoutError(ClientError, TimeoutError):
    """The work has not ended within the time that the caller gave it; it goes on."""

    def __init__(self, message: str) -> None:
        super().__init__("wait_timeout", message)


def error_from(status: int, body: bytes | msgspec.Raw) -> TraceError:
    try:
        info = _error_decoder.decode(body).error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        if status in _RETRYABLE_STATUSES:
            return DispatcherUnavailableError(f"status {status} without an error body")
        return RemoteError(_UNREADABLE, status, "The answer is an error that cannot be read.")
    error: TraceError
    if info.code in CATALOGUE and CATALOGUE[info.code].status == status:
        error = TraceError(info.code, info.message)
    else:
        error = RemoteError(info.code, status, info.message)
    error.details = info.details  # not by keyword: a sender may use any name
    return error


def decode(decoder: "msgspec.json.Decoder[T]", body: bytes | msgspec.Raw) -> T:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DispatcherUnavailableError("the answer cannot be read") from error


def answer_or_error(decoder: "msgspec.json.Decoder[R]", answer: Answer) -> "R | TraceError":
    """The reply of one item of a batch; its error is returned, not raised, since it does not affect the others."""
    if not 200 <= answer.status < 300:
        return error_from(answer.status, answer.body)
    try:
        return decode(decoder, answer.body)
    except DispatcherUnavailableError as error:
        return error
