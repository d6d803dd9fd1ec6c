"""Slots against a walk over every minute, and the rule for clocks that change, case by case."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tracelake.dag import parse_schedule
from tracelake.dag.slots import ScheduleSlots
from tracelake.model.time_zones import time_zone

MINUTE = timedelta(minutes=1)

CHANGES = {
    "Europe/Berlin": ["2026-03-29T01:00", "2026-10-25T01:00"],
    "America/New_York": ["2026-03-08T07:00", "2026-11-01T06:00"],
    "Australia/Lord_Howe": ["2026-04-04T15:00", "2026-10-03T15:30"],
    "Africa/Casablanca": ["2026-02-15T02:00", "2026-03-22T02:00"],
    "America/Sao_Paulo": ["2018-11-04T03:00", "2019-02-17T02:00"],
    "Pacific/Apia": ["2011-12-30T10:00"],
    "Asia/Kathmandu": ["2026-06-01T00:00"],
    "UTC": ["2026-01-01T00:00"],
}
"""About when (UTC) the clocks of a zone change; Apia left out a whole day, the last two never change."""


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def walk(schedule: str, zone: str, after: datetime, until: datetime) -> Iterator[datetime]:
    """The rule, minute by minute: it looks at what the clock shows now, and at what it showed a minute ago."""
    read, clock = parse_schedule(schedule), time_zone(zone)
    every_hour = len(read.hours) == 24
    minute = after.replace(second=0, microsecond=0) + MINUTE
    while minute <= until:
        now, before = minute.astimezone(clock), (minute - MINUTE).astimezone(clock)
        shown, last = now.replace(tzinfo=None, fold=0), before.replace(tzinfo=None, fold=0)
        skipped = [last + MINUTE * step for step in range(1, int((shown - last) / MINUTE))]
        if every_hour:
            due = read.matches(shown)
        else:
            due = (read.matches(shown) and now.fold == 0) or any(read.matches(time) for time in skipped)
        if due:
            yield minute
        minute += MINUTE


def field(low: int, high: int) -> st.SearchStrategy[str]:
    number = st.integers(low, high)
    return st.one_of(
        st.just("*"),
        number.map(str),
        st.lists(number, min_size=1, max_size=3, unique=True).map(lambda found: ",".join(map(str, found))),
        st.tuples(number, number).map(lambda ends: f"{min(ends)}-{max(ends)}"),
        st.integers(1, max(1, high // 2)).map(lambda step: f"*/{step}"),
    )


# Mostly the hours in which clocks change, on every day, so that the days that are looked at have something to show.
SCHEDULES = st.builds(
    lambda *fields: " ".join(fields),
    field(0, 59),
    st.one_of(st.just("*"), field(0, 3), field(0, 23), st.just("23")),
    st.one_of(st.just("*"), st.just("*"), field(1, 28)),
    st.just("*"),
    st.one_of(st.just("*"), st.just("*"), field(0, 6)),
)
PLACES = st.sampled_from([(zone, change) for zone, changes in CHANGES.items() for change in changes])


@given(schedule=SCHEDULES, place=PLACES, shift=st.integers(-3000, 0), seconds=st.integers(0, 59))
@example("0 9 * * *", ("Pacific/Apia", "2011-12-30T10:00"), -1000, 0)
@example("* 1-3 * * *", ("Europe/Berlin", "2026-10-25T01:00"), -200, 0)
@example("*/7 2 * * *", ("Australia/Lord_Howe", "2026-10-03T15:30"), -200, 1)
def test_slots_are_those_of_a_walk_over_every_minute(
    schedule: str, place: tuple[str, str], shift: int, seconds: int
) -> None:
    zone, change = place
    after = utc(change) + MINUTE * shift + timedelta(seconds=seconds)
    until = after + timedelta(hours=60)
    slots = ScheduleSlots.of(schedule, zone)
    expected = list(walk(schedule, zone, after, until))
    assert list(slots.between(after, until)) == expected
    assert slots.last(after, until) == (expected[-1] if expected else None)


@given(
    schedule=SCHEDULES,
    zone=st.sampled_from(sorted(CHANGES)),
    start=st.datetimes(datetime(1990, 1, 1), datetime(2060, 1, 1)),
)
def test_the_newest_slot_of_a_long_time_is_the_last_one_before_the_next(
    schedule: str, zone: str, start: datetime
) -> None:
    after = start.replace(tzinfo=UTC)
    slots = ScheduleSlots.of(schedule, zone)
    until = after + timedelta(days=500)
    newest = slots.last(after, until)
    first, following = slots.after(after), slots.after(until)
    assert first is not None
    assert following is not None
    if newest is None:
        assert first > until
    else:
        assert first <= newest <= until
        assert slots.after(newest) == following


def shown(schedule: str, zone: str, day: str, hours: int = 24) -> list[str]:
    """Slots of that many hours from the start of the day, as the clock shows them with its distance to UTC."""
    start = datetime.fromisoformat(day).replace(tzinfo=time_zone(zone)).astimezone(UTC)
    found = ScheduleSlots.of(schedule, zone).between(start - MINUTE, start + timedelta(hours=hours) - MINUTE)
    return [f"{slot.astimezone(time_zone(zone)):%d %H:%M%z}" for slot in found]


@pytest.mark.parametrize(
    ("schedule", "zone", "day", "expected"),
    [
        # A time that does not exist: the first instant after the gap, once.
        ("30 2 * * *", "Europe/Berlin", "2026-03-29", ["29 03:00+0200"]),
        ("*/10 2 * * *", "Europe/Berlin", "2026-03-29", ["29 03:00+0200"]),
        ("0,30 2,3 * * *", "Europe/Berlin", "2026-03-29", ["29 03:00+0200", "29 03:30+0200"]),
        ("15 2 * * *", "Australia/Lord_Howe", "2026-10-04", ["04 02:30+1100"]),
        ("0 0 * * *", "America/Sao_Paulo", "2018-11-04", ["04 01:00-0200"]),
        # A time that is there twice: the first one.
        ("30 2 * * *", "Europe/Berlin", "2026-10-25", ["25 02:30+0200"]),
        ("30 1 * * *", "America/New_York", "2026-11-01", ["01 01:30-0400"]),
        ("45 1 * * *", "Australia/Lord_Howe", "2026-04-05", ["05 01:45+1100"]),
        # Beside the change nothing happens.
        ("59 1 * * *", "Europe/Berlin", "2026-03-29", ["29 01:59+0100"]),
        ("0 3 * * *", "Europe/Berlin", "2026-10-25", ["25 03:00+0100"]),
    ],
)
def test_named_hours_when_clocks_change(schedule: str, zone: str, day: str, expected: list[str]) -> None:
    assert shown(schedule, zone, day, 23) == expected


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York"])
@pytest.mark.parametrize(("schedule", "step"), [("17 * * * *", 60), ("*/15 * * * *", 15), ("* * * * *", 1)])
def test_every_hour_is_a_rhythm_that_no_change_disturbs(zone: str, schedule: str, step: int) -> None:
    for change in CHANGES[zone]:
        found = list(
            ScheduleSlots.of(schedule, zone).between(utc(change) - timedelta(days=1), utc(change) + timedelta(days=1))
        )
        assert {later - earlier for earlier, later in pairwise(found)} == {MINUTE * step}


def test_half_an_hour_more_or_less() -> None:
    assert shown("0 * * * *", "Australia/Lord_Howe", "2026-04-05", 4) == [
        "05 00:00+1100", "05 01:00+1100", "05 02:00+1030", "05 03:00+1030",
    ]  # fmt: skip
    assert shown("30 * * * *", "Australia/Lord_Howe", "2026-10-04", 4) == [
        "04 00:30+1030", "04 01:30+1030", "04 02:30+1100", "04 03:30+1100",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("schedule", "after", "expected"),
    [
        ("0 0 29 2 *", "2024-02-29T00:00", "2028-02-29T00:00"),
        ("0 0 29 2 */7", "2088-03-01T00:00", "2128-02-29T00:00"),  # on a Sunday, and 2100 has none
        ("0 0 31 * *", "2026-04-01T00:00", "2026-05-31T00:00"),
        ("59 23 31 12 *", "2026-12-31T23:59", "2027-12-31T23:59"),
        ("* * * * *", "2026-01-01T00:00:00.000001", "2026-01-01T00:01"),
        ("* * * * *", "2026-01-01T00:00:59.999999", "2026-01-01T00:01"),
    ],
)
def test_far_and_near(schedule: str, after: str, expected: str) -> None:
    assert ScheduleSlots.of(schedule, "UTC").after(utc(after)) == utc(expected)


def test_time_ends() -> None:
    assert ScheduleSlots.of("0 0 29 2 *", "UTC").after(utc("9999-12-30T00:00")) is None
