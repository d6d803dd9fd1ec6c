"""A Spark session for all tests, as a worker has it, and a trial for each."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tracelake.spark.testing import Trial, local_session


@pytest.fixture(scope="session")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    with local_session(tmp_path_factory.mktemp("spark")) as session:
        yield session


@pytest.fixture
def trial(session: SparkSession, tmp_path: Path) -> Trial:
    return Trial(session, tmp_path)
