"""What is kept of units as runs, against a plain set of them: exact for members and for everything that is near one."""

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar
from uuid import UUID, uuid4

import asyncpg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.postgres import TestCluster
from tracelake.dispatcher.engine.plan import Generation
from tracelake.dispatcher.engine.routing import coverage
from tracelake.dispatcher.engine.routing.coverage import GridRange, Presence

T = TypeVar("T")
LAST = 2**63 - 1
Span = tuple[int, int]


class Table:
    """A connection to a state database, and generations to record units of."""

    def __init__(self, dsn: str) -> None:
        self._runner = asyncio.Runner()
        self.connection: Any = self.run(asyncpg.connect(dsn))
        self._org = uuid4()
        self.run(self.connection.execute("INSERT INTO orgs (org_id, name) VALUES ($1, 'acme')", self._org))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    def close(self) -> None:
        self.run(self.connection.close())
        self._runner.close()

    def generation(self) -> Generation:
        dataset, version = uuid4(), uuid4()
        self.run(self._make(dataset, version))
        return dataset, version

    async def _make(self, dataset: UUID, version: UUID) -> None:
        async with self.connection.transaction():
            await self.connection.execute(
                "INSERT INTO datasets (dataset_uuid, org_id, name, storage, current_version) "
                "VALUES ($1, $2, $3, 'none', $4)",
                dataset,
                self._org,
                f"d{dataset.hex}",
                version,
            )
            await self.connection.execute(
                "INSERT INTO dataset_versions (dataset_uuid, dataset_version) VALUES ($1, $2)", dataset, version
            )

    def record(self, units: list[Presence]) -> None:
        self.run(coverage.record(self.connection, units))

    def ask(self, units: list[Presence]) -> dict[int, str]:
        newest = self.run(coverage.read_revisions(self.connection, units))
        return {number: item.revision for number, item in newest.items()}

    def overlapping(self, generation: Generation, span: Span) -> list[Span]:
        """Page by page, each in the order of the last."""
        found: list[GridRange] = []
        while True:
            after = found[-1] if found else coverage.BEFORE_ALL
            page = self.run(coverage.overlapping(self.connection, generation, *span, after=after, limit=3))
            found += page
            if len(page) < 3:
                assert found == sorted(set(found))
                return sorted((place.start, place.end) for place in found)

    def runs(self, generation: Generation) -> set[tuple[int, int, int]]:
        """`(unit_size, start, end)` of every row."""
        rows = self.run(
            self.connection.fetch(
                "SELECT unit_size, range_start, range_end FROM dataset_runs "
                "WHERE dataset_uuid = $1 AND dataset_version = $2",
                *generation,
            )
        )
        return {(int(row["unit_size"]), row["range_start"], row["range_end"]) for row in rows}


@pytest.fixture(scope="module")
def table(cluster: TestCluster) -> Iterator[Table]:
    dsn = cluster.fresh("state")
    made = Table(dsn)
    yield made
    made.close()
    asyncio.run(cluster.drop(dsn))


def block(generation: Generation, span: Span, revision: str = "") -> Presence:
    return Presence(generation, f"p:{span[0]}-{span[1]}", *span, revision)


def maximal(spans: set[Span]) -> set[tuple[int, int, int]]:
    """Runs as they must be: units of one size, each beginning where the one before ends."""
    runs = set()
    for start, end in spans:
        size = end - start + 1
        if (start - size, start - 1) in spans:
            continue
        last = end
        while (last + 1, last + size) in spans:
            last += size
        runs.add((size, start, last))
    return runs


def near(span: Span) -> set[Span]:
    """The unit itself, its neighbours, the same blocks cut otherwise."""
    start, end = span
    size = end - start + 1
    shifts = {0, 1, -1, size, -size}
    around = {(start + shift, end + shift) for shift in shifts}
    around |= {(start, end + 1), (start, end - 1), (start - 1, end), (start + 1, end), (start, end + size)}
    return {(low, high) for low, high in around if 0 <= low <= high <= LAST}


SMALL = st.builds(lambda start, size: (start, start + size - 1), st.integers(0, 24), st.sampled_from([1, 2, 3, 5, 10]))
HUGE = st.builds(
    lambda end, size: (LAST - end - size + 1, LAST - end), st.integers(0, 12), st.sampled_from([1, 2, 5, LAST // 2])
)
WHOLE = st.sampled_from([(0, LAST), (0, LAST - 1), (1, LAST)])
SPANS = st.one_of(SMALL, SMALL, SMALL, HUGE, WHOLE)
CHOSEN = settings(
    max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None
)


@CHOSEN
@given(batches=st.lists(st.lists(SPANS, min_size=1, max_size=8), min_size=1, max_size=5), looks=st.lists(SPANS))
def test_runs_know_every_unit_and_nothing_else(table: Table, batches: list[list[Span]], looks: list[Span]) -> None:
    check_runs(table, batches, looks)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@settings(CHOSEN, max_examples=5000, derandomize=False)
@given(batches=st.lists(st.lists(SPANS, min_size=1, max_size=40), min_size=1, max_size=8), looks=st.lists(SPANS))
def test_runs_with_volume(table: Table, batches: list[list[Span]], looks: list[Span]) -> None:
    check_runs(table, batches, looks)


def check_runs(table: Table, batches: list[list[Span]], looks: list[Span]) -> None:
    generation, other = table.generation(), table.generation()
    known: set[Span] = set()
    for batch in batches:
        table.record([block(generation, span) for span in batch])
        known |= set(batch)
        assert table.runs(generation) == maximal(known)
    asked = sorted({item for span in known | set(looks) for item in near(span)})
    there = table.ask([block(generation, span) for span in asked])
    assert {asked[number] for number in there} == known & set(asked)
    assert set(there.values()) == {""}
    assert table.ask([block(other, span) for span in asked]) == {}
    for low, high in looks:
        wanted = sorted(span for span in known if span[0] <= high and span[1] >= low)
        assert table.overlapping(generation, (low, high)) == wanted


@CHOSEN
@given(
    said=st.lists(
        st.tuples(st.sampled_from(["c:1", "c:2", "p:eu", "p:0-9"]), st.sampled_from(["", "r1", "r2"])), max_size=8
    ),
    cut=st.integers(0, 8),
    usual=st.sampled_from(["", "1"]),
)
def test_a_unit_has_the_revision_that_was_said_last(
    table: Table, said: list[tuple[str, str]], cut: int, usual: str
) -> None:
    """The usual one is not remembered, so it does not take back what was said."""
    generation = table.generation()

    def unit(key: str, revision: str) -> Presence:
        start, end = (0, 9) if key == "p:0-9" else (None, None)
        return Presence(generation, key, start, end, revision or usual, usual)

    for part in (said[:cut], said[cut:]):
        table.record([unit(*item) for item in part])
    known: dict[str, str] = {}
    for key, revision in said:
        known[key] = revision or known.get(key, usual)
    keys = ["c:1", "c:2", "p:eu", "p:0-9", "c:3"]
    there = table.ask([unit(key, "") for key in keys])
    assert {keys[number]: revision for number, revision in there.items()} == known


def test_ten_thousand_partitions_side_by_side_are_one_row(table: Table) -> None:
    generation = table.generation()
    spans = [(start, start + 99) for start in range(0, 1_000_000, 100)]
    for part in (spans[::2], spans[1::4], spans[3::4]):
        table.record([block(generation, span) for span in reversed(part)])
    assert table.runs(generation) == {(100, 0, 999_999)}
    assert len(table.overlapping(generation, (150, 400))) == 4
