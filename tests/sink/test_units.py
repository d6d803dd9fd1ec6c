"""Rows of units: what a unit no longer has disappears, and what it hid comes back. Against a model in plain Python."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

import msgspec
import pyarrow as pa
import pytest

from tests.sink.flow import BufferFlow
from tests.sink.support import Publisher, dataset, lines
from tests.sink.test_store import VERSIONED, ask, direct, rows_of, staged
from tests.support.postgres import TestCluster
from tracelake.model.buffered import hidden_name, quoted
from tracelake.model.dag import OnConflict
from tracelake.sink.outcomes import Loaded
from tracelake.sink.store import TableStore
from tracelake.wire.buffers import BatchUnit, Producer

Place = tuple[UUID, str]
Row = tuple[int, int, int, str, int]
"""Number of the batch, line, key, value, version."""


@pytest.fixture(scope="module")
def dsn(cluster: TestCluster) -> str:
    return cluster.fresh("data")


@pytest.fixture
def store(dsn: str) -> Iterator[TableStore]:
    opened = TableStore(dsn)
    yield opened
    opened.close()


@dataclass
class Contribution:
    """The batches of one attempt. Their numbers are those of the release: later ones are newer."""

    place: Place | None
    batches: dict[int, tuple[Loaded, pa.RecordBatch]] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    delivered: set[int] = field(default_factory=set)

    @property
    def complete(self) -> bool:
        return self.delivered == self.batches.keys()


@dataclass
class Model:
    on_conflict: OnConflict
    contributions: list[Contribution] = field(default_factory=list)
    writers: set[UUID] | None = None

    def visible(self) -> list[Row]:
        current: dict[Place, Contribution] = {}
        rows: list[Row] = []
        for item in self.contributions:  # in the order of their release
            if item.place is None:
                rows += [row for row in item.rows if row[0] in item.delivered]
            elif item.complete:
                current[item.place] = item
        for (node_id, _), item in current.items():
            if self.writers is None or node_id in self.writers:
                rows += item.rows
        best: dict[int, Row] = {}
        for row in sorted(rows, key=self._order, reverse=self.on_conflict == "nothing"):
            best[row[2]] = row
        return sorted(best.values())

    def _order(self, row: Row) -> tuple[int, ...]:
        return (row[4], *row[:2]) if self.on_conflict == "newest" else row[:2]


class Writers:
    """Units of two jobs, and a source without units, that write the same few keys."""

    def __init__(self, publisher: Publisher, chance: random.Random) -> None:
        self.publisher, self.chance = publisher, chance
        self.nodes = [uuid4(), uuid4()]

    def contribute(self, *, unitless: bool = False) -> Contribution:
        chance, count = self.chance, 1 if unitless else self.chance.choice([1, 1, 1, 2, 3])
        place = None if unitless else (chance.choice(self.nodes), f"0:{chance.randrange(3)}")
        unit = None if place is None else BatchUnit(node_id=place[0], unit=place[1], batches=count)
        producer, made = Producer(task_id=uuid4(), attempt=1), Contribution(place)
        for _ in range(count):
            rows: list[Any] = [
                {"key": chance.randrange(6), "value": chance.choice("abc"), "version": chance.randrange(3)}
                for _ in range(chance.randrange(4))
            ]
            data = lines(rows)
            batch = self.publisher.batch(data, producer=producer, unit=unit)
            if not rows:
                batch = msgspec.structs.replace(batch, batch_uri="")
            made.batches[batch.publish_seq] = self.publisher.read(batch, data)
            made.rows += [
                (batch.publish_seq, line, row["key"], row["value"], row["version"]) for line, row in enumerate(rows, 1)
            ]
        return made


def visible(dsn: str, publisher: Publisher) -> list[Row]:
    return sorted(
        (seq, line, key, value, int(number)) for _, seq, line, key, value, number in rows_of(dsn, publisher.dataset)
    )


@pytest.mark.parametrize("on_conflict", ["update", "nothing", "newest"])
@pytest.mark.parametrize("seed", range(8))
def test_a_table_is_what_its_units_consist_of(dsn: str, store: TableStore, on_conflict: OnConflict, seed: int) -> None:
    chance = random.Random(f"{seed} {on_conflict}")
    of = dataset(VERSIONED, on_conflict)
    store.follow(of)
    publisher = Publisher(of)
    writers, model = Writers(publisher, chance), Model(on_conflict)
    late: list[tuple[Contribution, int]] = []
    for _ in range(25):
        made = writers.contribute(unitless=chance.random() < 0.2)
        model.contributions.append(made)
        late += [(made, number) for number in made.batches]
        chance.shuffle(late)
        count = chance.randrange(len(late) + 1)
        now, late = late[:count], late[count:]
        again = [(item, number) for item in model.contributions for number in item.delivered if chance.random() < 0.05]
        parts = []
        for item, number in [*now, *again]:
            parts.append(item.batches[number])
            item.delivered.add(number)
        if parts:
            chance.choice([direct, staged])(store, of, parts)
        assert visible(dsn, publisher) == model.visible()
    if late:
        direct(store, of, [item.batches[number] for item, number in late])
        for item, number in late:
            item.delivered.add(number)
    assert visible(dsn, publisher) == model.visible()
    hidden = ask(dsn, f"SELECT count(*) FROM {quoted(hidden_name(of.dataset_uuid))} WHERE NOT _counts")
    assert hidden == [(0,)], "nothing waits any more"
