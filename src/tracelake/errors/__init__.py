"""Errors as data: one catalogue of stable codes, and `TraceError`, the one exception that crosses layers.

Handlers and domain functions raise it; `dispatcher.http` turns it into a status and a body, and the client turns such
a body back into it. `details` must hold only what the caller may know.
"""

from typing import Any

from tracelake.errors.catalogue import CATALOGUE, ErrorKind

__all__ = [
    "CATALOGUE",
    "BoundaryMovedError",
    "ErrorKind",
    "SecretMissingError",
    "SecretsUnavailableError",
    "StoreUnavailableError",
    "TraceError",
]


class TraceError(Exception):
    """A failure with a code from the catalogue."""

    def __init__(self, code: str, message: str | None = None, **details: Any) -> None:
        self.kind: ErrorKind = CATALOGUE[code]
        self.message = message or self.kind.message
        self.details = details
        super().__init__(f"{code}: {self.message}")

    @property
    def code(self) -> str:
        return self.kind.code

    @property
    def status(self) -> int:
        return self.kind.status

    @property
    def retryable(self) -> bool:
        return self.kind.retryable


class StoreUnavailableError(TraceError):
    """A database or object store did not answer; the same call may be repeated."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__("store_unavailable", message)


class BoundaryMovedError(TraceError):
    """Rows of a live dataset were removed from its table after somebody was told where they are; they are in files. Who
    asks again is told so."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__("boundary_moved", message)


class SecretMissingError(TraceError):
    """A job names a secret that its org does not have; another attempt would fail in the same way."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__("secret_missing", message)


class SecretsUnavailableError(TraceError):
    """The store of secrets did not answer; another attempt may succeed."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__("secrets_unavailable", message)
