"""Which rows of a unit that reaches over midnight belong to a day, also one on which the clock changes."""

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from pyspark.sql import SparkSession

from tracelake.model.dag import UnitGrid
from tracelake.model.windows import window_at
from tracelake.spark.reader import Selection, select

BERLIN = UnitGrid(by="time", grain="day", time_zone="Europe/Berlin")


@pytest.mark.parametrize(("day", "hours"), [("2026-03-28", 24), ("2026-03-29", 23), ("2026-10-25", 25)])
@pytest.mark.parametrize("column", ["timestamp", "moment"])
def test_the_rows_of_a_day(spark: SparkSession, day: str, hours: int, column: str) -> None:
    """Rows at each half hour of three days, and one second before and at both midnights."""
    begin = int(datetime.fromisoformat(day).replace(tzinfo=ZoneInfo("Europe/Berlin")).timestamp())
    end = begin + hours * 3_600
    times = sorted({*range(begin - 86_400, end + 86_400, 1_800), begin - 1, begin, end - 1, end})
    frame = spark.createDataFrame([(time,) for time in times], "timestamp long")
    frame = frame.selectExpr("timestamp", "timestamp_seconds(timestamp) AS moment")
    window = window_at(BERLIN, begin + 12 * 3_600)
    selection = Selection(column=column, first=window.start, last=window.end)
    rows = [row["timestamp"] for row in select(frame, "blocks", selection).collect()]
    assert sorted(rows) == [time for time in times if begin <= time < end]
    assert len(rows) == 2 * hours + 1
