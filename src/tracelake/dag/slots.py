"""When a schedule is due, by the clock of a time zone. Pure arithmetic; every answer is in UTC.

A slot is an instant at which a source fires. Most days a schedule's times and its slots are the same thing. When clocks
change, one rule holds for schedules that name hours, another for those that run in every hour:

- **Named hours** (`30 2 * * *`, `0 */6 * * *`) are times on the wall. A time that the clock skips is made up for at the
  first instant after the gap, once, however many times fell into it. A time that the clock shows twice is a slot at its
  first occurrence alone.
- **Every hour** (`0 * * * *`, `*/15 * * * *`, `* * * * *`) is a rhythm. A slot is every instant at which the clock
  shows a matching time, in skipped and repeated hours as in all others: no hour is left out and none counts twice.
  (Where clocks move by less than an hour, the step over the change may be shorter or longer by that much.)
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta, tzinfo
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
class Slots:
    """Raises ScheduleError or ZoneInfoNotFoundError, by `of`, for texts that mean nothing here."""

    schedule: Schedule
    zone: tzinfo
    _hours: tuple[int, ...] = field(init=False)
    _minutes: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hours", tuple(sorted(self.schedule.hours)))
        object.__setattr__(self, "_minutes", tuple(sorted(self.schedule.minutes)))

    @staticmethod
    @lru_cache(maxsize=10_000)
    def of(schedule: str, time_zone: str) -> "Slots":
        return Slots(parse_schedule(schedule), ZoneInfo(time_zone))

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
            found = (wall - offset).replace(tzinfo=UTC)
            change = self._first_change(position, found)
            if change is None:
                if self.every_hour or not found.astimezone(self.zone).fold:
                    return found
                position, inclusive = found, False  # the clock has shown it before
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
            found = self.after(middle)
            if found is not None and found <= empty_from:
                newest = found
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

    def _next_on_wall(self, wall: datetime, *, inclusive: bool) -> datetime | None:
        """The first matching time on a clock that nobody touches: after `wall`, or at it if `inclusive`."""
        try:
            minute = wall.replace(second=0, microsecond=0)
            if minute < wall or not inclusive:
                minute += timedelta(minutes=1)
            if self.schedule.matches_day(minute):
                time = self._next_in_day(minute.hour, minute.minute)
                if time is not None:
                    return minute.replace(hour=time[0], minute=time[1])
            day = self._next_day(minute.date())
        except OverflowError:
            return None
        return None if day is None else datetime(day.year, day.month, day.day, self._hours[0], self._minutes[0])

    def _next_in_day(self, hour: int, minute: int) -> tuple[int, int] | None:
        place = bisect_left(self._hours, hour)
        if place < len(self._hours) and self._hours[place] == hour:
            at = bisect_left(self._minutes, minute)
            if at < len(self._minutes):
                return hour, self._minutes[at]
            place += 1
        return None if place == len(self._hours) else (self._hours[place], self._minutes[0])

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
