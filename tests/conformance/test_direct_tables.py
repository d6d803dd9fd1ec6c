"""Direct tables in Postgres data keep the port's promises."""

from dataclasses import dataclass

import pytest

from tests.conformance.direct_tables_suite import DirectTablesSuite
from tests.support.postgres import TestCluster
from tracelake.storage.direct_tables import PostgresDirectTables


@dataclass(frozen=True)
class PostgresStore:
    dsn: str

    def connect(self) -> PostgresDirectTables:
        return PostgresDirectTables(lambda: self.dsn, rows_per_removal=2)


@pytest.fixture(scope="module")
def store(cluster: TestCluster) -> PostgresStore:
    return PostgresStore(cluster.fresh("data"))


class TestPostgresDirectTables(DirectTablesSuite):
    pass
