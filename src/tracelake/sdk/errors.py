"""What a function can catch. Whatever it does not catch fails the attempt, which is then retried."""

from typing import Any


class NonRetryable(Exception):  # noqa: N818 - the runner knows it by this name, in every language
    """Raise it to fail the task without a retry: another attempt would fail in the same way."""


class ArgumentError(ValueError):
    """A call has arguments that it cannot take."""


class CallError(Exception):
    """A call was refused. `code` is stable; docs/reference/errors.md lists the codes."""

    def __init__(self, status: int, code: str, message: str, details: dict[str, Any] | None = None) -> None:
        super().__init__(f"{code}: {message}")
        self.status = status
        self.code = code
        self.details = details or {}


class FencedError(CallError):
    """The attempt is no longer current: stop. Nothing that it does counts any more."""


class ResultTooLargeError(Exception):
    """A query has more rows than a reply holds. The whole result is a Parquet file at `output_location`."""

    def __init__(self, row_count: int, output_location: str | None) -> None:
        super().__init__(
            f"expected a result that fits into a reply, received {row_count} rows: add a limit, aggregate in SQL, or"
            " `get` the Parquet file at `output_location`"
        )
        self.row_count = row_count
        self.output_location = output_location


class UnstableKeyError(ValueError):
    """A key would be another one in the next attempt, so the rows of a retried task would be there twice."""
