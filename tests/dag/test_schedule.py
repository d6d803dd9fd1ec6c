"""Cron schedules: fields, ranges, and those that never come due."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelake.dag import Schedule, ScheduleError, parse_schedule


@pytest.mark.parametrize(
    ("text", "due", "not_due"),
    [
        ("* * * * *", ["2024-01-01T00:00", "2024-12-31T23:59"], []),
        ("*/15 * * * *", ["2024-01-01T00:45"], ["2024-01-01T00:46"]),
        ("10-50/20 * * * *", ["2024-01-01T00:30"], ["2024-01-01T00:20", "2024-01-01T00:40"]),
        ("0 0,12 * * *", ["2024-01-01T12:00"], ["2024-01-01T11:00"]),
        ("0 0 29 2 *", ["2024-02-29T00:00"], ["2024-02-28T00:00"]),
        ("0 0 * JAN-mar *", ["2024-03-01T00:00"], ["2024-04-01T00:00"]),
        ("0 0 * * mon-FRI", ["2024-01-05T00:00"], ["2024-01-06T00:00"]),
        ("0 0 * * 0", ["2024-01-07T00:00"], ["2024-01-08T00:00"]),
        ("0 0 * * 5-7", ["2024-01-05T00:00", "2024-01-07T00:00"], ["2024-01-04T00:00"]),
        # Both days are restricted: one of them is enough.
        ("0 0 13 * 5", ["2024-01-13T00:00", "2024-01-05T00:00"], ["2024-01-06T00:00"]),
        ("0 0 31 2 1", ["2024-02-05T00:00"], ["2024-02-06T00:00"]),
        # Five fields are due at the full minute, six when they say.
        ("* * * * *", ["2024-01-01T00:01:00"], ["2024-01-01T00:01:01", "2024-01-01T00:01:59"]),
        ("* * * * * *", ["2024-01-01T00:00:00", "2024-12-31T23:59:59"], []),
        ("*/5 * * * * *", ["2024-01-01T00:00:55"], ["2024-01-01T00:00:56"]),
        ("10-50/20,59 * * * * *", ["2024-01-01T00:01:30", "2024-01-01T00:01:59"], ["2024-01-01T00:01:20"]),
        ("7 30 2 1 jan Mon", ["2024-01-01T02:30:07"], ["2024-01-01T02:30:00", "2024-01-02T02:30:07"]),
        ("0 0 0 13 * 5", ["2024-01-13T00:00", "2024-01-05T00:00"], ["2024-01-05T00:00:01"]),
    ],
)
def test_when_it_is_due(text: str, due: list[str], not_due: list[str]) -> None:
    schedule = parse_schedule(text)
    for times, expected in ((due, True), (not_due, False)):
        for time in times:
            assert schedule.matches(datetime.fromisoformat(time).replace(tzinfo=UTC)) is expected, time


@pytest.mark.parametrize(
    "text",
    [
        "",
        "*",
        "* * * *",
        "* * * * * * *",
        "60 * * * *",
        "60 * * * * *",
        "-1 * * * * *",
        "*/60 * * * * *",
        "*/0 * * * * *",
        "5/10 * * * * *",
        "9-1 * * * * *",
        "1,,2 * * * * *",
        "a * * * * *",
        "0.5 * * * * *",
        "mon * * * * *",
        "0 60 * * * *",
        "0 0 24 * * *",
        "0 0 0 30 2 *",
        "0 0 0 * * 8",
        "* 24 * * *",
        "* * 0 * *",
        "* * 32 * *",
        "* * * 0 *",
        "* * * 13 *",
        "* * * * 8",
        "-1 * * * *",
        "5-1 * * * *",
        "*/0 * * * *",
        "*/60 * * * *",
        "5/10 * * * *",
        "1,,2 * * * *",
        ", * * * *",
        "a * * * *",
        "* * * january *",
        "* * * * fri-mon",
        "@daily",
        "1.5 * * * *",
        "* * * * *;",
        "0 0 30 2 *",
        "0 0 31 4,6 *",
        "\u0663 * * * *",
        "*-5 * * * *",
        "1- * * * *",
        "0x1 * * * *",
        "L * * * *",
        "? * * * *",
        "* " * 300,
        "* * * * " + "1," * 400,
    ],
)
def test_what_is_no_schedule(text: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        parse_schedule(text)
    assert str(caught.value).endswith(".")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("* * * *", "5 fields (minute hour day month weekday), or 6 with seconds before them; this has 4"),
        ("* * * * * * *", "this has 7"),
        ("60 * * * * *", "`60` is not a second: 0 to 59"),
        ("x-5 * * * * *", "`x` is not a second"),
        ("9-5 * * * * *", "`9-5` of the field second runs backwards"),
        ("1.5 * * * * *", "`1.5` is not a value, range or step of the field second"),
        ("0 60 * * * *", "`60` is not a minute"),
        ("60 * * * *", "`60` is not a minute"),
    ],
)
def test_an_error_names_the_field(text: str, words: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        parse_schedule(text)
    assert words in str(caught.value)


@given(st.text(st.sampled_from("0123456789*/,- abcjanmonsufri@"), max_size=20))
def test_seconds_are_read_as_minutes_are(field: str) -> None:
    def read(text: str) -> Schedule | str:
        try:
            return parse_schedule(text)
        except ScheduleError as error:
            return str(error)

    if len(field.split()) != 1:
        return
    minute, second = read(f"{field} * * * *"), read(f"{field} * * * * *")
    if isinstance(minute, str):
        assert second == minute.replace("minute", "second")
    else:
        assert isinstance(second, Schedule)
        assert second.seconds == minute.minutes
        assert second == replace(minute, seconds=minute.minutes, minutes=frozenset(range(60)))


@given(st.text(st.sampled_from("0123456789*/,- abcjanmonsufri@"), max_size=20))
def test_any_text_is_a_schedule_or_not(text: str) -> None:
    try:
        schedule = parse_schedule(text)
    except ScheduleError:
        return
    start = datetime(2024, 1, 1, tzinfo=UTC)
    assert any(schedule.matches_day(start + timedelta(days=day)) for day in range(366))
