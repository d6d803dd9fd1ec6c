"""Text for people: names without control characters, ages, times, units of work.

A name from a server may hold anything: an escape sequence could rewrite what the terminal shows, and an invisible or
right-to-left character could make one name look like another. `clean` makes such characters visible.
"""

import json
import re
from datetime import UTC, datetime
from typing import Any

from tracelake.wire.units import Unit

# Control characters, and format characters that are not seen or that reorder what is seen.
_TRICKS = re.compile("[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]")
_TRICKS_IN_LINES = re.compile(_TRICKS.pattern.replace("\x00-\x1f", "\x00-\x08\x0b-\x1f"))
_EXACT_BELOW = 600
_AGES = ((60, "m", 60), (3600, "h", 24))
"""A unit, its letter, and from how many of it on the next one is used."""
_SIZES = ("B", "KiB", "MiB", "GiB", "TiB")


def clean(text: str) -> str:
    """The text in one line, with control and invisible characters spelled out, like `\\x1b`."""
    return _TRICKS.sub(_spelled, text)


def clean_lines(text: str) -> str:
    """Like `clean`, but line ends and tabs stay."""
    return _TRICKS_IN_LINES.sub(_spelled, text)


def _spelled(match: re.Match[str]) -> str:
    return {"\n": " ", "\t": " "}.get(match[0]) or match[0].encode("unicode_escape").decode("ascii")


def escape_json(text: str) -> str:
    """The same JSON, with such characters as escapes: they occur in strings alone, and mean the same there.

    Line ends and tabs stay: in JSON they occur between values alone.
    """
    return _TRICKS_IN_LINES.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"


def storage_text(storage: str) -> str:
    """The storage of a dataset for people: `none` would read as if something were missing."""
    return "events only" if storage == "none" else storage


def shortened(text: str, length: int = 80) -> str:
    """The first line of the text, cut to a length that fits a column."""
    line = clean(text.strip().split("\n", 1)[0])
    return line if len(line) <= length else line[: length - 3] + "..."


def current_time() -> datetime:
    return datetime.now(UTC)


def ago(at: datetime | None, now: datetime | None = None) -> str:
    """`3m5s ago`, `in 20s`, `2h ago`, `now`; empty for None."""
    if at is None:
        return ""
    seconds = ((now or current_time()) - at).total_seconds()
    amount = span(abs(seconds))
    if not amount:
        return "now"
    return f"{amount} ago" if seconds > 0 else f"in {amount}"


def span(seconds: float) -> str:
    """A duration, rounded to the second below ten minutes, else to the largest unit; empty for less than a second."""
    whole = round(seconds)
    if whole < _EXACT_BELOW:
        minutes, rest = divmod(whole, 60)
        return (f"{minutes}m" if minutes else "") + (f"{rest}s" if rest else "")
    for size, letter, below in _AGES:
        if round(seconds / size) < below:
            return f"{round(seconds / size)}{letter}"
    return f"{round(seconds / 86400)}d"


def moment(at: datetime | None) -> str:
    """An exact time, and how long ago it is."""
    return "" if at is None else f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z ({ago(at)})"


def clock(at: datetime) -> str:
    return f"{at.astimezone(UTC):%H:%M:%S}Z"


def unit_text(unit: Unit | None, window: str | None = None) -> str:
    """`window`: the date of a window of time, which people read instead of its seconds."""
    if window is not None:
        return clean(window)
    if unit is None:
        return ""
    if unit.cursor is not None:
        return f"({unit.cursor.after}, {unit.cursor.to}]"
    return clean(unit.partition_key or "")


def count(number: int, noun: str) -> str:
    """`1 task`, `2 tasks`, `2 batches`."""
    ending = "" if number == 1 else "es" if noun.endswith("ch") else "s"
    return f"{number} {noun}{ending}"


def grouped(number: Any) -> str:
    """`12,345`; empty for anything but a number."""
    return f"{number:,}" if isinstance(number, int) else ""


def size_text(number: float) -> str:
    """`512 B`, `1.4 MiB`, `366 KiB`."""
    for unit in _SIZES[:-1]:
        if number < 1024:
            return f"{number:,.0f} {unit}" if unit == "B" or number >= 100 else f"{number:,.1f} {unit}"
        number /= 1024
    return f"{number:,.1f} {_SIZES[-1]}"


def compact(value: Any) -> str:
    """Any JSON value in one line."""
    if value is None:
        return ""
    return clean(json.dumps(value, ensure_ascii=False, default=str))
