import pytest

from tracelake.query.gate.check import QueryGate


@pytest.fixture(scope="package")
def gate() -> QueryGate:
    return QueryGate()
