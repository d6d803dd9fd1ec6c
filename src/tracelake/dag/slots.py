"""When a schedule is due, by the clock of a time zone. Pure arithmetic; every answer is in UTC.

A slot is an instant at which a source fires. Most days a schedule's times and its slots are the same thing. When clocks
change, one rule holds for schedules that name hours, another for those that run in every hour:

- **Named hours** (`30 2 * * *`, `0 */6 * * *`) are times on the wall. A time that the clock skips is made up for at the
  first instant after the gap, once, however many times fell into it. A time that the clock shows twice is a slot at its
  first occurrence alone.
- **Every hour** (`0 * * * *`, `*/15 * * * *`, `*/5 * * * * *`) is a rhythm. A slot is every instant at which the clock
  shows a matching time, in skipped and repeated hours as in all others: no hour is left out and none counts twice.
  (Where clocks move by less than an hour, the step over the change may be shorter or longer by that much.)

Seconds change nothing in this: `*/5 * 2 * * *` names an hour, so of an hour that is repeated its 720 slots are the
first ones, and of an hour that is skipped one slot is left. Nothing here walks over the seconds, minutes or hours
between two slots, however far they are apart.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo

from tracelake.dag.schedule import Schedule, parse_schedule

_HORIZON_DAYS = 41 * 366
"""29 February on a given weekday may be 40 years away; nothing is further."""
_PROBE = timedelta(hours=6)
"""No zone changes its clock twice within so short a time."""
_SECOND = timedelta(seconds=1)
_ZERO = timedelta()


@dataclass(frozen=True, slots=True)
class ScheduleSlots:
    """Raises ScheduleError or ZoneInfoNotFoundError, by `of`, for texts that mean nothing here."""

    schedule: Schedule
    zone: tzinfo
    _hours: tuple[int, ...] = field(init=False)
    _minutes: tuple[int, ...] = field(init=False)
    _seconds: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hours", tuple(sorted(self.schedule.hours)))
        object.__setattr__(self, "_minutes", tuple(sorted(self.schedule.minutes)))
        object.__setattr__(self, "_seconds", tuple(sorted(self.schedule.seconds)))

    @staticmethod
    @lru_cache(maxsize=10_000)
    def of(schedule: str, time_zone: str) -> "ScheduleSlots":
        return ScheduleSlots(parse_schedule(schedule), ZoneInfo(time_zone))

    @property
    def every_hour(self) -> bool:
        return len(self._hours) == 24

    def after(self, instant: datetime) -> datetime | None:
        """The first slot after an instant; None only at the end of time."""
        position, offset, inclusive = instant.astimezone(UTC), self._offset(instant), False
        while True:
            wall = self._next_on_wall(_wall(position, offset), inclusive=inclusive)
            if wall is None:
                return None
            slot = (wall - offset).replace(tzinfo=UTC)
            change = self._first_change(position, slot)
            if change is None:
                if self.every_hour or not slot.astimezone(self.zone).fold:
                    return slot
                # The clock has shown it before.
                shown_anew = self._end_of_repeat(slot, offset)
                position, inclusive = (slot, False) if shown_anew is None else (shown_anew, True)
                continue
            # The clock moves before it shows that time.
            new_offset = self._offset(change)
            if not self.every_hour and wall < _wall(change, new_offset):
                return change  # it never shows it: in the gap
            position, offset, inclusive = change, new_offset, True

    def between(self, after: datetime, until: datetime) -> Iterator[datetime]:
        """Slots after `after`, up to and with `until`, in order."""
        slot = self.after(after)
        while slot is not None and slot <= until:
            yield slot
            slot = self.after(slot)

    def last(self, after: datetime, until: datetime) -> datetime | None:
        """The newest slot after `after`, up to and with `until`, without a walk over those before it."""
        newest = self.after(after)
        if newest is None or newest > until:
            return None
        empty_from = until  # there is no slot after this, up to `until`
        while empty_from - newest >= _SECOND:
            middle = newest + (empty_from - newest) / 2
            slot = self.after(middle)
            if slot is not None and slot <= empty_from:
                newest = slot
            else:
                empty_from = middle
        return newest

    def _offset(self, instant: datetime) -> timedelta:
        return instant.astimezone(self.zone).utcoffset() or _ZERO

    def _first_change(self, start: datetime, end: datetime) -> datetime | None:
        """The first instant after `start`, up to and with `end`, at which the clock is set differently."""
        offset = self._offset(start)
        before = start
        while before < end:
            here = min(before + _PROBE, end)
            if self._offset(here) != offset:
                while here - before > _SECOND:
                    middle = before + (here - before) / 2
                    before, here = (before, middle) if self._offset(middle) != offset else (middle, here)
                return here.replace(microsecond=0)
            before = here
        return None

    def _end_of_repeat(self, instant: datetime, offset: timedelta) -> datetime | None:
        """When the clock shows times again that it has not shown before; None where it is set once more until then."""
        first_offset = instant.astimezone(self.zone).replace(fold=0).utcoffset() or _ZERO
        set_back = first_offset - offset
        change = self._first_change(instant - set_back, instant)
        if change is None or self._first_change(instant, change + set_back) is not None:
            return None
        return change + set_back

    def _next_on_wall(self, wall: datetime, *, inclusive: bool) -> datetime | None:
        """The first matching time on a clock that nobody touches: after `wall`, or at it if `inclusive`."""
        try:
            at = wall.replace(microsecond=0)
            if at < wall or not inclusive:
                at += _SECOND
            if self.schedule.matches_day(at):
                time_of_day = self._next_in_day(at.hour, at.minute, at.second)
                if time_of_day is not None:
                    return datetime.combine(at, time_of_day)
            day = self._next_day(at.date())
        except OverflowError:
            return None
        return None if day is None else datetime.combine(day, self._time(self._hours[0]))

    def _next_in_day(self, hour: int, minute: int, second: int) -> time | None:
        """The first time of a matching day, from this one on."""
        if hour in self.schedule.hours:
            if minute in self.schedule.minutes:
                next_second = _from(self._seconds, second)
                if next_second is not None:
                    return time(hour, minute, next_second)
            later = _from(self._minutes, minute + 1)
            if later is not None:
                return self._time(hour, later)
        next_hour = _from(self._hours, hour + 1)
        return None if next_hour is None else self._time(next_hour)

    def _time(self, hour: int, minute: int | None = None) -> time:
        """The first of an hour, or of a minute."""
        return time(hour, self._minutes[0] if minute is None else minute, self._seconds[0])

    def _next_day(self, day: date) -> date | None:
        """The first matching day after this one."""
        end = day + timedelta(days=min(_HORIZON_DAYS, (date.max - day).days - 2))
        while day < end:
            day += timedelta(days=1)
            if day.month not in self.schedule.months:
                day = date(day.year + day.month // 12, day.month % 12 + 1, 1) - timedelta(days=1)
            elif self.schedule.matches_day(datetime(day.year, day.month, day.day)):
                return day
        return None


def _wall(instant: datetime, offset: timedelta) -> datetime:
    """What the clock shows."""
    return instant.replace(tzinfo=None) + offset


def _from(numbers: tuple[int, ...], low: int) -> int | None:
    """The first of sorted numbers that is not below."""
    place = bisect_left(numbers, low)
    return numbers[place] if place < len(numbers) else None
