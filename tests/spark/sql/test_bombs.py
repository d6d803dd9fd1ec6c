"""Bombs that pass the gate because their cost is bounded: they end on Spark, and a neighbour's queries run beside."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.security.bombs import BOMBS, INPUTS
from tracelake.catalogue.sql.gate import gate
from tracelake.spark.plan_gate import check_analysed, check_parsed

DEADLINE_SECONDS = 60
VIEWS = {"t": "bombs_t", "u": "bombs_u"}
ROWS = """
SELECT id AS k, repeat('a', 2000) AS s, sequence(id, id + 49) AS xs, timestamp_seconds(id) AS ts FROM range(200)
"""
BOUNDED = [bomb for bomb in BOMBS if "ends" in bomb]


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> SparkSession:
    for view in VIEWS.values():
        spark.sql(ROWS).createOrReplaceTempView(view)
    return spark


def explode(session: SparkSession, bomb: dict[str, Any]) -> None:
    written = gate(bomb["query"], INPUTS).sql(VIEWS)
    check_parsed(session, written, VIEWS.values())
    frame = session.sql(written)
    check_analysed(frame, VIEWS.values())
    frame.write.format("noop").mode("overwrite").save()


def test_bounded_bombs_end_beside_a_neighbour(session: SparkSession) -> None:
    failed = set()
    with ThreadPoolExecutor(1) as pool:
        for bomb in BOUNDED:
            running = pool.submit(explode, session, bomb)
            assert session.sql("SELECT sum(k) AS x FROM bombs_u").collect()[0].x == 19_900
            try:
                running.result(DEADLINE_SECONDS)
            except PySparkException:
                failed.add(bomb["name"])
    assert failed == {"an error in the engine"}
    assert session.sql("SELECT count(*) AS x FROM bombs_t").collect()[0].x == 200
