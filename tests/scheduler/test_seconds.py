"""Schedules with seconds: slots against a walk over every second, and what they cost."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import islice, pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.scheduler.test_slots import SCHEDULES, field, utc
from tracelake.dag import parse_schedule
from tracelake.dag.slots import ScheduleSlots
from tracelake.model.time_zones import time_zone

SECOND = timedelta(seconds=1)

CHANGES = {
    "Europe/Berlin": ["2026-03-29T01:00", "2026-10-25T01:00"],
    "America/New_York": ["2026-03-08T07:00", "2026-11-01T06:00"],
    "Australia/Adelaide": ["2026-04-04T16:30", "2026-10-03T16:30"],
    "Australia/Lord_Howe": ["2026-04-04T15:00", "2026-10-03T15:30"],
    "America/St_Johns": ["2010-03-14T03:31", "2010-11-07T02:31"],
    "Pacific/Chatham": ["2026-04-04T14:00", "2026-09-26T14:00"],
    "Pacific/Apia": ["2011-12-30T10:00"],
    "Africa/Monrovia": ["1972-01-07T00:44:30"],
    "Europe/Amsterdam": ["1937-06-30T23:40:28"],
    "Asia/Kathmandu": ["2026-06-01T00:00"],
    "Asia/Kolkata": ["2026-06-01T00:00"],
    "UTC": ["2026-01-01T00:00"],
}
"""When (UTC) the clocks of a zone change. Those of Lord Howe move by half an hour, those of Apia by a day, those of
Monrovia by 44 minutes and 30 seconds, those of Amsterdam by 28 seconds (where a zone has its old times), and the last
three never."""


def walk(schedule: str, zone: str, after: datetime, until: datetime) -> Iterator[datetime]:
    """The rule, second by second: it looks at what the clock shows now, and at what it showed a second ago."""
    read, clock = parse_schedule(schedule), time_zone(zone)
    every_hour = len(read.hours) == 24
    second = after.replace(microsecond=0)
    last = second.astimezone(clock).replace(tzinfo=None, fold=0)
    while (second := second + SECOND) <= until:
        now = second.astimezone(clock)
        shown = now.replace(tzinfo=None, fold=0)
        skipped = (last + SECOND * step for step in range(1, int((shown - last) / SECOND)))
        if every_hour:
            due = read.matches(shown)
        else:
            due = (now.fold == 0 and read.matches(shown)) or any(read.matches(time) for time in skipped)
        if due:
            yield second
        last = shown


@st.composite
def cases(draw: st.DrawFn) -> tuple[str, str, datetime]:
    """A schedule, a zone, and a time at most three hours before a change of its clock.

    The hours that the schedule names are mostly those that the clock shows, or should, at the change.
    """
    zone = draw(st.sampled_from(sorted(CHANGES)))
    change = utc(draw(st.sampled_from(CHANGES[zone])))
    shown = [
        (change + timedelta(minutes=shift)).astimezone(time_zone(zone)).hour for shift in (-90, -30, -1, 0, 30, 90)
    ]
    near = st.lists(st.sampled_from(shown), min_size=1, max_size=3).map(lambda hours: ",".join(map(str, hours)))
    parts = [
        draw(field(0, 59)),
        draw(st.one_of(st.just("*"), field(0, 59))),
        draw(st.one_of(st.just("*"), near, near, field(0, 23), st.just("0-22"))),
        draw(st.one_of(st.just("*"), st.just("*"), field(1, 28))),
        "*",
        draw(st.one_of(st.just("*"), st.just("*"), field(0, 6))),
    ]
    return " ".join(parts), zone, change - draw(st.integers(0, 3 * 3600 * 1000)) * timedelta(milliseconds=1)


@given(case=cases())
@example(("* * 2 * * *", "Europe/Berlin", utc("2026-10-24T23:30")))
@example(("*/7 * 2 * * *", "Europe/Berlin", utc("2026-03-29T00:30")))
@example(("*/13 15 1 * * *", "Australia/Lord_Howe", utc("2026-04-04T13:30")))
@example(("15 1-40 0,23 * * *", "America/St_Johns", utc("2010-11-07T01:10")))
@example(("30 44 0 * * *", "Africa/Monrovia", utc("1972-01-07T00:00")))
@example(("29 44 0 * * *", "Africa/Monrovia", utc("1972-01-07T00:00")))
@example(("*/5 * * * * *", "Africa/Monrovia", utc("1972-01-07T00:00")))
@example(("10-20 0 0 * * *", "Europe/Amsterdam", utc("1937-06-30T23:00")))
@settings(deadline=None)
def test_slots_are_those_of_a_walk_over_every_second(case: tuple[str, str, datetime]) -> None:
    schedule, zone, after = case
    until = after + timedelta(hours=3)
    slots = ScheduleSlots.of(schedule, zone)
    expected = list(walk(schedule, zone, after, until))
    assert list(slots.between(after, until)) == expected
    assert slots.last(after, until) == (expected[-1] if expected else None)


@given(schedule=SCHEDULES)
def test_five_fields_are_six_with_a_zero(schedule: str) -> None:
    assert parse_schedule(f"0 {schedule}") == parse_schedule(schedule)


@pytest.mark.parametrize("zone", sorted(set(CHANGES) - {"Africa/Monrovia", "Europe/Amsterdam"}))
@pytest.mark.parametrize(("schedule", "step"), [("* * * * * *", 1), ("*/5 * * * * *", 5), ("0 */10 * * * *", 600)])
def test_every_hour_is_a_rhythm_that_no_change_disturbs(zone: str, schedule: str, step: int) -> None:
    """Not even one of half an hour, or where the clock is half an hour or a quarter away from UTC."""
    for change in CHANGES[zone]:
        found = list(ScheduleSlots.of(schedule, zone).between(utc(change) - SECOND * 1200, utc(change) + SECOND * 1200))
        assert {later - earlier for earlier, later in pairwise(found)} == {SECOND * step}


@pytest.mark.parametrize(
    ("day", "number", "first", "last"),
    [
        ("2026-06-01", 720, "02:00:00+0200", "02:59:55+0200"),
        ("2026-03-29", 1, "03:00:00+0200", "03:00:00+0200"),
        ("2026-10-25", 720, "02:00:00+0200", "02:59:55+0200"),
    ],
)
def test_a_named_hour_that_is_skipped_or_there_twice(day: str, number: int, first: str, last: str) -> None:
    berlin = time_zone("Europe/Berlin")
    start = datetime.fromisoformat(day).replace(tzinfo=berlin).astimezone(UTC)
    found = list(ScheduleSlots.of("*/5 * 2 * * *", "Europe/Berlin").between(start, start + timedelta(hours=20)))
    assert len(found) == number
    assert [f"{slot.astimezone(berlin):%H:%M:%S%z}" for slot in (found[0], found[-1])] == [first, last]


@pytest.mark.parametrize(
    ("schedule", "after", "expected"),
    [
        ("* * * * * *", "2026-01-01T00:00:00", "2026-01-01T00:00:01"),
        ("* * * * * *", "2026-01-01T00:00:00.000001", "2026-01-01T00:00:01"),
        ("* * * * * *", "2026-12-31T23:59:59.999999", "2027-01-01T00:00:00"),
        ("59 59 23 31 12 *", "2026-12-31T23:59:59", "2027-12-31T23:59:59"),
        ("30 * * * * *", "2026-01-01T00:00:30", "2026-01-01T00:01:30"),
        ("0 0 0 29 2 *", "2024-02-29T00:00:00", "2028-02-29T00:00:00"),
        ("1 0 0 29 2 */7", "2088-03-01T00:00:00", "2128-02-29T00:00:01"),
    ],
)
def test_far_and_near(schedule: str, after: str, expected: str) -> None:
    assert ScheduleSlots.of(schedule, "UTC").after(utc(after)) == utc(expected)


def test_time_ends() -> None:
    for schedule in ("* * * * * *", "0 0 0 29 2 *"):
        assert ScheduleSlots.of(schedule, "UTC").after(utc("9999-12-31T23:59:59")) is None


class Counting(tzinfo):
    """Berlin, and how often somebody looked at its clock."""

    def __init__(self) -> None:
        self.looks = 0
        self._berlin = time_zone("Europe/Berlin")

    def utcoffset(self, when: datetime | None) -> timedelta | None:
        self.looks += 1
        return self._berlin.utcoffset(when)

    def dst(self, when: datetime | None) -> timedelta | None:
        return self._berlin.dst(when)

    def tzname(self, when: datetime | None) -> str | None:
        return self._berlin.tzname(when)

    def fromutc(self, when: datetime) -> datetime:
        self.looks += 1
        return self._berlin.fromutc(when.replace(tzinfo=self._berlin)).replace(tzinfo=self)


def test_what_is_far_away_is_not_walked_to() -> None:
    """Looks at the clock are what a slot costs: a few for each day that is passed over, and not one a second."""
    zone = Counting()
    assert ScheduleSlots(parse_schedule("0 0 0 29 2 *"), zone).after(utc("2024-03-01T00:00")) == utc("2028-02-28T23:00")
    assert zone.looks < 4 * 366 * 10


def test_the_hour_that_comes_twice_is_passed_over_in_one_step() -> None:
    zone = Counting()
    slots = ScheduleSlots(parse_schedule("* * 2 * * *"), zone)
    assert slots.after(utc("2026-10-25T00:59:59")) == utc("2026-10-26T01:00:00")
    assert zone.looks < 500


def test_of_a_year_of_seconds_only_what_is_asked_for_is_worked_out() -> None:
    zone = Counting()
    slots = ScheduleSlots(parse_schedule("* * * * * *"), zone)
    start, end = utc("2025-01-01T00:00"), utc("2026-01-01T00:00:00.5")
    assert len(list(islice(slots.between(start, end), 100))) == 100
    assert slots.last(start, end) == utc("2026-01-01T00:00")
    assert zone.looks < 2000
