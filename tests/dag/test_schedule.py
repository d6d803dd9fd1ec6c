"""Cron schedules: fields, ranges, and those that never come due."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelake.dag import ScheduleError, parse_schedule


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
        "* * * * * *",
        "60 * * * *",
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


@given(st.text(st.sampled_from("0123456789*/,- abcjanmonsufri@"), max_size=20))
def test_any_text_is_a_schedule_or_not(text: str) -> None:
    try:
        schedule = parse_schedule(text)
    except ScheduleError:
        return
    start = datetime(2024, 1, 1, tzinfo=UTC)
    assert any(schedule.matches_day(start + timedelta(days=day)) for day in range(366))
