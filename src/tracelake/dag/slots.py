"""The slots of a schedule in a time zone: the instants at which a source fires, in UTC. Pure arithmetic.

Usually a schedule's times and its slots are the same. When clocks change, one rule applies to schedules that name
hours, another to those that run in every hour:

- **Named hours** (`30 2 * * *`, `0 */6 * * *`) are local times. Times that the clock skips become one slot at the first
  instant after the gap, however many there are. A time that the clock shows twice is a slot only the first time.
- **Every hour** (`0 * * * *`, `*/15 * * * *`, `*/5 * * * * *`) is a period. Every instant at which the clock shows a
  matching time is a slot, also around skipped and repeated hours, so that the period continues without a gap. (Where
  clocks change by less than an hour, the step over the change may be shorter or longer by that much.)

Seconds do not matter for this: `*/5 * 2 * * *` names an hour, so it has 720 slots in the first of two repeated hours
and one slot for a skipped hour. No function iterates over the seconds, minutes or hours between two slots.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from functools import lru_cache

from tracelake.dag.schedule import Schedule, parse_schedule
from tracelake.model.time_zones import time_zone as load_zone

_HORIZON_DAYS = 41 * 366
"""29 February on a given weekday may be 40 years away; no slot is further."""
_PROBE = timedelta(hours=6)
"""No time zone changes its clock twice within this time."""
_SECOND = timedelta(seconds=1)
_ZERO = timedelta()


@dataclass(frozen=True, slots=True)
class ScheduleSlots:
    """The slots of a schedule in a time zone. `of` raises ScheduleError or ZoneInfoNotFoundError."""

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
        return ScheduleSlots(parse_schedule(schedule), load_zone(time_zone))

    @property
    def every_hour(self) -> bool:
        return len(self._hours) == 24

    def after(self, instant: datetime) -> datetime | None:
        """The first slot after an instant; None only at the end of the calendar."""
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
        """Slots after `after` up to and including `until`, in order."""
        slot = self.after(after)
        while slot is not None and slot <= until:
            yield slot
            slot = self.after(slot)

    def last(self, after: datetime, until: datetime) -> datetime | None:
        """The newest slot after `after` up to and including `until`, by bisection."""
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
        """The first instant after `start` up to and including `end` at which the UTC offset changes."""
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
        """The end of the hour that the clock repeats; None if the offset changes again before that."""
        first_offset = instant.astimezone(self.zone).replace(fold=0).utcoffset() or _ZERO
        set_back = first_offset - offset
        change = self._first_change(instant - set_back, instant)
        if change is None or self._first_change(instant, change + set_back) is not None:
            return None
        return change + set_back

    def _next_on_wall(self, wall: datetime, *, inclusive: bool) -> datetime | None:
        """The first matching time on a clock without changes: after `wall`, or at it if `inclusive`."""
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
        """The first matching time of a matching day, from this time on."""
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
        """The first matching time of an hour, or of a minute."""
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
    """The local time at an instant."""
    return instant.replace(tzinfo=None) + offset


def _from(numbers: tuple[int, ...], low: int) -> int | None:
    """The first of the sorted numbers that is at least `low`."""
    place = bisect_left(numbers, low)
    return numbers[place] if place < len(numbers) else None
