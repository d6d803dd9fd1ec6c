"""Parameters of paths and queries: each has one spelling, one reader, and the schema that the documents show."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, get_args
from uuid import UUID

from msgspec import Meta

from tracelake.errors import TraceError
from tracelake.wire.base import Cursor, Name, ShortText
from tracelake.wire.webhooks import DELIVERY_PATTERN

_UUID = re.compile(r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}")
_DIGITS = re.compile(r"0|[1-9][0-9]{0,18}")
# RFC 3339 with a zone; only capital letters.
_TIME = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(?:\.\d{1,9})?(?:Z|[+-]\d{2}:\d{2})", re.ASCII)


@dataclass(frozen=True)
class Parameter:
    name: str
    kind: Any
    """A type that msgspec makes the schema from."""
    parse: Callable[[str], Any]
    """Returns the typed value; raises ValueError with what is expected."""
    required: bool = False
    default: Any = None
    description: str = ""
    has_slashes: bool = False
    """The value of a path parameter may contain slashes."""
    missing: str | None = None
    """The error code for a value that names nothing."""

    def read(self, text: str | None) -> Any:
        """Returns the typed value, or the default if there is no text; raises 422."""
        if text is None and not self.required:
            return self.default
        try:
            return self.parse(text or "")
        except ValueError as error:
            raise TraceError("body_invalid", f"{self.name} is {error}.", field=self.name) from error

    def check(self, text: str) -> str:
        """Returns the text; raises the `missing` error if nothing can have such a name."""
        try:
            self.parse(text)
        except ValueError as error:
            raise TraceError(self.missing or "body_invalid") from error
        return text


def parse_uuid(text: str | None) -> UUID | None:
    """Reads the hyphenated form only; `UUID` itself also accepts braces, urn:, underscores and foreign digits."""
    return UUID(text) if text and _UUID.fullmatch(text) else None


def _uuid(text: str) -> UUID:
    value = parse_uuid(text)
    if value is None:
        raise ValueError("a UUID")
    return value


def _matching(pattern: str, expected: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(expected)
        return text

    return parse


_name = _matching(
    "[a-z][a-z0-9_]{0,127}", "a name: a lower-case letter, then up to 127 lower-case letters, digits or '_'"
)


def _number(least: int, most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not _DIGITS.fullmatch(text) or not least <= int(text) <= most:
            raise ValueError(f"a number from {least} to {most}")
        return int(text)

    return parse


def _word(words: tuple[str, ...]) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in words:
            raise ValueError("one of " + ", ".join(words))
        return text

    return parse


def _time(text: str) -> datetime:
    try:
        if not _TIME.fullmatch(text):
            raise ValueError
        # Python reads six digits of a second; nothing here has a finer resolution.
        return datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", text)).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise ValueError("a time like 2026-01-31T12:00:00Z") from error


def _unit(text: str) -> str:
    if not text or len(text.encode("utf-8", "replace")) > 512 or "\0" in text:
        raise ValueError("a cursor, a block range like 10-19, or a partition key")
    return text


def uuid(name: str, description: str = "", *, required: bool = False, missing: str | None = None) -> Parameter:
    return Parameter(name, UUID, _uuid, required=required, description=description, missing=missing)


def name(text: str, description: str, *, missing: str) -> Parameter:
    return Parameter(text, Name, _name, description=description, missing=missing)


def label(text: str, description: str) -> Parameter:
    """A name that need not exist."""
    return Parameter(text, Name, _name, description=description)


def flag(name: str, description: str) -> Parameter:
    def parse(text: str) -> bool:
        return _word(("true", "false"))(text) == "true"

    return Parameter(name, bool, parse, default=False, description=description)


def text(name: str, description: str) -> Parameter:
    """A text that a caller chose, such as an idempotency key."""

    def parse(value: str) -> str:
        if not 1 <= len(value) <= 200 or "\0" in value:
            raise ValueError("a text of 1 to 200 characters")
        return value

    return Parameter(name, ShortText, parse, required=True, description=description)


def word(name: str, kind: Any, description: str, *, required: bool = False) -> Parameter:
    """A parameter that takes one of the words of a `Literal`."""
    return Parameter(name, kind, _word(get_args(kind)), required=required, description=description)


def time(name: str, description: str) -> Parameter:
    return Parameter(name, datetime, _time, description=description)


def number(
    name: str,
    description: str,
    *,
    least: int = 0,
    most: int = 2**31 - 1,
    default: int | None = None,
    required: bool = False,
    missing: str | None = None,
) -> Parameter:
    kind = Annotated[int, Meta(ge=least, le=most)]
    read = _number(least, most)
    return Parameter(name, kind, read, default=default, description=description, required=required, missing=missing)


def block(name: str, description: str, *, default: int | None = None) -> Parameter:
    return Parameter(name, Cursor, _number(0, 2**63 - 1), default=default, description=description)


def limit(most: int = 500, default: int = 50) -> Parameter:
    return number("limit", f"At most this many; {default} without it.", least=1, most=most, default=default)


CURSOR_UUID = uuid("cursor", "`next` of the page before.")
CURSOR_NUMBER = block("cursor", "`next` of the page before.")
AFTER_UUID = uuid("after", "Those above this id, oldest first.")
AFTER_NUMBER = block("after", "Those above this id, oldest first; none is missed that becomes visible late.")

UNIT = Parameter(
    "unit",
    Annotated[str, Meta(min_length=1, max_length=512)],
    _unit,
    description="This unit alone: a cursor, a block range like `10-19`, or a partition key. Of windows of time also "
    "their dates: `2026-03-03`, or several of them, `2026-03-01..2026-03-03`.",
)

WEBHOOK_PATH = Parameter(
    "path",
    Annotated[str, Meta(min_length=1, max_length=200)],
    str,  # an invalid path is answered like an unknown one
    description="The webhook's path.",
    has_slashes=True,
    missing="webhook_not_found",
)

DELIVERY_ID = Parameter(
    "delivery_id",
    Annotated[str, Meta(pattern=rf"^{DELIVERY_PATTERN}\Z")],
    _matching(DELIVERY_PATTERN, "the id of a delivery: 1 to 200 visible ASCII characters without a dot"),
    description="The id that the sender gave it, or its number.",
    has_slashes=True,
    missing="delivery_not_found",
)

TASK_ID = uuid("task_id", "The task's UUID.", required=True, missing="task_not_found")

PATH_PARAMETERS = {
    parameter.name: parameter
    for parameter in (
        TASK_ID,
        uuid("job_id", "The job's UUID.", required=True, missing="source_not_found"),
        uuid("publish_id", "The batch's UUID.", required=True, missing="publish_not_found"),
        uuid("query_id", "The query's UUID.", required=True, missing="query_not_found"),
        uuid("bundle_id", "The bundle's UUID.", required=True, missing="bundle_not_found"),
        uuid("token_id", "The token's UUID.", required=True, missing="token_not_found"),
        uuid("export_id", "`export_id` of the download.", required=True, missing="query_not_found"),
        name("dag", "The DAG's name.", missing="dag_not_found"),
        name("job", "The job's name within its DAG.", missing="job_not_found"),
        name("name", "The dataset's name.", missing="dataset_not_found"),
        number("number", "The version's number.", least=1, missing="dag_version_not_found"),
        WEBHOOK_PATH,
        DELIVERY_ID,
    )
}
