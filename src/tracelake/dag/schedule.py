"""Cron schedules: five fields, or six with seconds, by the clock of the time zone that goes with them.

`[second] minute hour day-of-month month day-of-week`, each `*`, numbers, ranges (`1-5`), steps (`*/15`, `10-50/20`) and
lists of these. Months and days have names (`jan`, `mon`); Sunday is 0 or 7. As in cron, when both days are restricted
one of them is enough. Five fields are due at the full minute: they mean the same as six of which the first is `0`.
"""

import re
from dataclasses import dataclass
from datetime import datetime

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_LONGEST_MONTH = {2: 29, 4: 30, 6: 30, 9: 30, 11: 30}
_PART = re.compile(r"(?:(\*)|(\w{1,3})(?:-(\w{1,3}))?)(?:/([0-9]{1,3}))?", re.ASCII)
_MAX_LENGTH = 500


@dataclass(frozen=True, slots=True)
class _FieldKind:
    name: str
    low: int
    high: int
    names: tuple[str, ...] = ()


_FIELDS = (
    _FieldKind("second", 0, 59),
    _FieldKind("minute", 0, 59),
    _FieldKind("hour", 0, 23),
    _FieldKind("day of month", 1, 31),
    _FieldKind("month", 1, 12, _MONTHS),
    _FieldKind("day of week", 0, 7, _DAYS),
)


class ScheduleError(ValueError):
    """An invalid schedule; the message is a full sentence."""


@dataclass(frozen=True, slots=True)
class Schedule:
    seconds: frozenset[int]
    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    """0 is Sunday."""
    any_day: bool
    any_weekday: bool

    def matches(self, time: datetime) -> bool:
        """Whether the schedule is due in the second that a clock shows as `time`."""
        return (
            time.second in self.seconds
            and time.minute in self.minutes
            and time.hour in self.hours
            and self.matches_day(time)
        )

    def matches_day(self, time: datetime) -> bool:
        if time.month not in self.months:
            return False
        day, weekday = time.day in self.days, time.isoweekday() % 7 in self.weekdays
        return (day and weekday) if self.any_day or self.any_weekday else (day or weekday)


def parse_schedule(text: str) -> Schedule:
    """Raises ScheduleError, also for a schedule that is never due."""
    if len(text) > _MAX_LENGTH:
        raise ScheduleError("The schedule is too long.")
    if text.startswith("@"):
        raise ScheduleError("Names like @daily are not supported; write the fields.")
    parts = text.split()
    if len(parts) not in (len(_FIELDS) - 1, len(_FIELDS)):
        raise ScheduleError(
            "A schedule has 5 fields (minute hour day month weekday), or 6 with seconds before them; "
            f"this has {len(parts)}."
        )
    if len(parts) < len(_FIELDS):
        parts = ["0", *parts]
    seconds, minutes, hours, days, months, weekdays = (
        _values(part, kind) for part, kind in zip(parts, _FIELDS, strict=True)
    )
    schedule = Schedule(
        seconds=seconds,
        minutes=minutes,
        hours=hours,
        days=days,
        months=months,
        weekdays=frozenset(day % 7 for day in weekdays),
        any_day=parts[3].startswith("*"),
        any_weekday=parts[5].startswith("*"),
    )
    if schedule.any_weekday and all(min(days) > _LONGEST_MONTH.get(month, 31) for month in months):
        raise ScheduleError("No month that it names has such a day: it would never come due.")
    return schedule


def has_seconds(text: str) -> bool:
    """Whether a schedule has a field of seconds."""
    return len(text.split()) == len(_FIELDS)


def normal_schedule(text: str) -> str:
    """The normal spelling of schedules that differ only in spaces and case."""
    return " ".join(text.lower().split())


def _values(text: str, kind: _FieldKind) -> frozenset[int]:
    values: set[int] = set()
    for part in text.split(","):
        match = _PART.fullmatch(part)
        if match is None:
            raise ScheduleError(f"`{part[:20]}` is not a value, range or step of the field {kind.name}.")
        star, first, last, step = match.groups()
        low = kind.low if star else _number(first, kind)
        high = kind.high if star else _number(last, kind) if last else low
        if low > high:
            raise ScheduleError(f"The range `{part}` of the field {kind.name} runs backwards.")
        if step is not None:
            if not star and not last:
                raise ScheduleError(f"The step of `{part}` needs a range or `*` before it.")
            if not 1 <= int(step) <= kind.high:
                raise ScheduleError(f"The step of `{part}` must be 1 to {kind.high}.")
        values.update(range(low, high + 1, int(step or 1)))
    return frozenset(values)


def _number(text: str, kind: _FieldKind) -> int:
    if text.lower() in kind.names:
        return kind.names.index(text.lower()) + kind.low
    if not text.isdecimal() or not kind.low <= int(text) <= kind.high:
        names = f" or {kind.names[0]} to {kind.names[-1]}" if kind.names else ""
        raise ScheduleError(f"`{text}` is not a {kind.name}: {kind.low} to {kind.high}{names}.")
    return int(text)
