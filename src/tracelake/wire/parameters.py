"""Parameters of paths and queries: each has one spelling, one reader, and the schema that the documents show."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, get_args
from uuid import UUID

from msgspec import Meta

from tracelake.errors import TraceError
from tracelake.wire.base import Cursor, Name
from tracelake.wire.webhooks import DELIVERY_PATTERN

_UUID = re.compile(r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}")
_NAME = re.compile(r"[a-z][a-z0-9_]{0,127}")
_DIGITS = re.compile(r"0|[1-9][0-9]{0,18}")
_DELIVERY_ID = re.compile(DELIVERY_PATTERN)
# RFC 3339 with its zone; the letters in capitals, as everybody writes them.
_TIME = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(?:\.\d{1,9})?(?:Z|[+-]\d{2}:\d{2})", re.ASCII)


@dataclass(frozen=True)
class Parameter:
    name: str
    kind: Any
    """What msgspec can make a schema of."""
    parse: Callable[[str], Any]
    """The typed value; raises ValueError, with what is expected, for anything else."""
    required: bool = False
    default: Any = None
    description: str = ""
    has_slashes: bool = False
    """Of a path: it may go on over the next slash."""
    missing: str | None = None
    """The code of the error for a value that names nothing."""

    def read(self, text: str | None) -> Any:
        """The typed value, its default when there is none, or 422."""
        if text is None and not self.required:
            return self.default
        try:
            return self.parse(text or "")
        except ValueError as error:
            raise TraceError("body_invalid", f"{self.name} is {error}.", field=self.name) from error

    def check(self, text: str) -> str:
        """Returns the text; raises the error of a value that names nothing if nothing can have that name."""
        try:
            self.parse(text)
        except ValueError as error:
            raise TraceError(self.missing or "body_invalid") from error
        return text


def parse_uuid(text: str | None) -> UUID | None:
    """The hyphenated form alone: `UUID` itself also reads braces, urn:, underscores and foreign digits."""
    return UUID(text) if text and _UUID.fullmatch(text) else None


def _uuid(text: str) -> UUID:
    value = parse_uuid(text)
    if value is None:
        raise ValueError("a UUID")
    return value


def _name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise ValueError("a name: a lower-case letter, then up to 127 lower-case letters, digits or '_'")
    return text


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
        # Python reads six digits of a second; the rest is below what anything here tells apart.
        value = datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", text))
        return value.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise ValueError("a time like 2026-01-31T12:00:00Z") from error


def _unit(text: str) -> str:
    if not text or len(text.encode("utf-8", "replace")) > 512 or "\0" in text:
        raise ValueError("a cursor, a block range like 10-19, or a partition key")
    return text


def _delivery_id(text: str) -> str:
    if not _DELIVERY_ID.fullmatch(text):
        raise ValueError("the id of a delivery: 1 to 200 visible ASCII characters without a dot")
    return text


def uuid(name: str, description: str = "", *, required: bool = False, missing: str | None = None) -> Parameter:
    return Parameter(name, UUID, _uuid, required=required, description=description, missing=missing)


def name(text: str, description: str, *, missing: str) -> Parameter:
    return Parameter(text, Name, _name, description=description, missing=missing)


def flag(name: str, description: str) -> Parameter:
    def parse(text: str) -> bool:
        return _word(("true", "false"))(text) == "true"

    return Parameter(name, bool, parse, default=False, description=description)


def word(name: str, kind: Any, description: str, *, required: bool = False) -> Parameter:
    """One of the words of a `Literal`."""
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


def cursor_uuid() -> Parameter:
    return uuid("cursor", "`next` of the page before.")


def cursor_number() -> Parameter:
    return block("cursor", "`next` of the page before.")


def after_uuid() -> Parameter:
    return uuid("after", "Those above this id, oldest first.")


def after_number() -> Parameter:
    return block("after", "Those above this id, oldest first; none is missed that becomes visible late.")


UNIT = Parameter(
    "unit",
    Annotated[str, Meta(min_length=1, max_length=512)],
    _unit,
    description="This unit alone: a cursor, a block range like `10-19`, or a partition key.",
)

WEBHOOK_PATH = Parameter(
    "path",
    Annotated[str, Meta(min_length=1, max_length=200)],
    str,  # which ones there are is the webhooks' to say: a bad one is as little there as an unknown one
    description="The webhook's path.",
    has_slashes=True,
    missing="webhook_not_found",
)

DELIVERY_ID = Parameter(
    "delivery_id",
    Annotated[str, Meta(pattern=rf"^{DELIVERY_PATTERN}\Z")],
    _delivery_id,
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
        name("dag", "The DAG's name.", missing="dag_not_found"),
        name("job", "The job's name within its DAG.", missing="job_not_found"),
        name("name", "The dataset's name.", missing="dataset_not_found"),
        number("number", "The version's number.", least=1, missing="dag_version_not_found"),
        WEBHOOK_PATH,
        DELIVERY_ID,
    )
}
