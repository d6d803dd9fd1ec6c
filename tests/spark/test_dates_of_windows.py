"""`by` on a column of dates: the dates whose days, by the clock of the grid's zone, are in what is read."""

from datetime import date, timedelta

import pytest
from pyspark.sql import DataFrame, SparkSession

from tracelake.model.dag import UnitGrid
from tracelake.model.windows import parse_range, shift_window
from tracelake.spark.reader import Selection, select

FIRST = date(2026, 2, 1)
ZONES = ("UTC", "America/New_York", "Pacific/Honolulu", "Asia/Kolkata", "Pacific/Kiritimati")


@pytest.fixture(scope="module")
def days(spark: SparkSession) -> DataFrame:
    """One row for each day of three months, in which some clocks change."""
    return spark.createDataFrame([(FIRST + timedelta(days=number),) for number in range(90)], "day date")


def read(days: DataFrame, first: int, last: int, zone: str) -> list[date]:
    selection = Selection(column="day", first=first, last=last, time_zone=zone)
    return sorted(row["day"] for row in select(days, "daily", selection).collect())


@pytest.mark.parametrize("zone", ZONES)
def test_dates_are_those_of_the_zone(days: DataFrame, zone: str) -> None:
    daily = UnitGrid(by="time", grain="day", time_zone=zone)
    for day in (date(2026, 3, 3), date(2026, 3, 8), date(2026, 3, 9)):
        window = parse_range(daily, day.isoformat())
        assert read(days, *window, zone) == [day]
        before = shift_window(daily, window, -2)
        assert read(days, before.start, window.end, zone) == [day - timedelta(days=2), day - timedelta(days=1), day]
    week = parse_range(UnitGrid(by="time", grain="week", time_zone=zone), "2026-W10")
    assert read(days, *week, zone) == [date(2026, 3, 2) + timedelta(days=number) for number in range(7)]
    history = read(days, 0, week.end, zone)
    assert (history[0], history[-1]) == (FIRST, date(2026, 3, 8))


def test_a_date_is_in_the_hour_in_which_it_begins(days: DataFrame) -> None:
    hours = UnitGrid(by="time", grain="hour")
    assert read(days, *parse_range(hours, "2026-03-03 00:00"), "UTC") == [date(2026, 3, 3)]
    assert read(days, *parse_range(hours, "2026-03-03 01:00"), "UTC") == []
