"""One Spark session for the whole run: starting it takes longer than most tests."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.support import Bench
from tracelake.spark.session import SharedSession, SparkConfig


@pytest.fixture(scope="session")
def shared() -> Iterator[SharedSession]:
    with tempfile.TemporaryDirectory(prefix="trace-spark-") as directory:
        shared = SharedSession(SparkConfig(Path(directory), master="local[2]", memory="1g", log_level="error"))
        yield shared
        shared.close()


@pytest.fixture(scope="session")
def spark(shared: SharedSession) -> SparkSession:
    return shared.get()


@pytest.fixture
def bench(spark: SparkSession, tmp_path: Path) -> Bench:
    return Bench(spark, tmp_path)
