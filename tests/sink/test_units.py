"""Rows of units: what a unit no longer has disappears, and what it hid comes back. Against a model in plain Python."""

import random
from collections.abc import Iterator, Sequence
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
from tracelake.model.dag import OnChange, OnConflict
from tracelake.sink.outcomes import Loaded
from tracelake.sink.store import TableStore
from tracelake.wire.buffers import BatchUnit, BufferedDataset, Producer

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


def declare(of: BufferedDataset, writers: Sequence[UUID], *, keep: bool = False) -> BufferedDataset:
    """A newer declaration of the table."""
    rule: OnChange = "keep" if keep else "rebuild"
    return msgspec.structs.replace(of, writers=sorted(writers), on_change=rule, revision=of.revision + 1)


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
        if chance.random() < 0.3:
            keep = chance.random() < 0.3
            of = declare(of, chance.sample(writers.nodes, chance.choice([1, 1, 2])), keep=keep)
            before = {item.place[0] for item in model.contributions if item.place and item.delivered}
            kept = (before if model.writers is None else model.writers) if keep else set()
            model.writers = {*of.writers, *kept}
            store.follow(of)
            assert visible(dsn, publisher) == model.visible()
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
    store.follow(declare(of, writers.nodes))
    model.writers = None
    assert visible(dsn, publisher) == model.visible()
    hidden = ask(dsn, f"SELECT count(*) FROM {quoted(hidden_name(of.dataset_uuid))} WHERE NOT _counts")
    assert hidden == [(0,)], "nothing waits any more"


def test_a_sink_that_heard_of_it_late_does_not_undo_a_change_of_writers(dsn: str, store: TableStore) -> None:
    old, new = uuid4(), uuid4()
    first = declare(dataset(), [old])
    second, third = declare(first, [new]), declare(declare(first, [new]), [old, new])
    store.follow(first)
    publisher = Publisher(first)
    for node_id, key in ((old, 1), (new, 2)):
        data = lines([{"key": key, "value": "x"}])
        batch = publisher.batch(data, unit=BatchUnit(node_id=node_id, unit="0:p:1-1", batches=1))
        direct(store, first, [publisher.read(batch, data)])
    assert [row[3] for row in rows_of(dsn, first)] == [1], "what is built is not visible"
    assert store.follow(third)
    assert [row[3] for row in rows_of(dsn, first)] == [1, 2]
    late = TableStore(dsn)
    assert not late.follow(second)
    assert not late.follow(first)
    late.close()
    assert [row[3] for row in rows_of(dsn, first)] == [1, 2]
    store.follow(declare(third, []))
    assert [row[3] for row in rows_of(dsn, first)] == [1, 2], "who writes it no more leaves its rows"


def test_rows_of_a_retired_writer_are_deleted_and_never_those_that_are_visible(dsn: str, store: TableStore) -> None:
    old, new = uuid4(), uuid4()
    of = declare(dataset(), [old])
    publisher = Publisher(of)
    for node_id, key in ((old, 1), (new, 2)):
        store.follow(of)
        data = lines([{"key": key, "value": "x"}])
        batch = publisher.batch(data, unit=BatchUnit(node_id=node_id, unit="0:p:1-1", batches=1))
        direct(store, of, [publisher.read(batch, data)])
        of = declare(of, [new])
    of = msgspec.structs.replace(of, revision=of.revision + 1, retired=[old, new])
    hidden = f"SELECT key FROM {quoted(hidden_name(of.dataset_uuid))}"
    assert ask(dsn, hidden) == [(1,)]
    store.follow(of)
    assert (ask(dsn, hidden), [row[3] for row in rows_of(dsn, of)]) == ([], [2])
    parts = f"SELECT node_id::text FROM buffer_parts WHERE dataset_uuid = '{of.dataset_uuid}'"
    assert ask(dsn, parts) == [(str(new),)]


# --- with a Dispatcher, which says what belongs together


def test_a_unit_that_is_computed_again_keeps_nothing_of_before(flow: BufferFlow) -> None:
    flow.write([{"key": 1, "value": "other"}, {"key": 2, "value": "other"}], job="right")
    flow.write([{"key": 2, "value": "old"}, {"key": 3, "value": "old"}], block=101)
    flow.write([{"key": 4, "value": "next"}], block=102)
    flow.sink()
    assert flow.rows() == [(1, "other"), (2, "old"), (3, "old"), (4, "next")]
    before = max(flow.commits().values())
    flow.write([{"key": 5, "value": "new"}], block=101)
    flow.sink()
    assert flow.rows() == [(1, "other"), (2, "other"), (4, "next"), (5, "new")]
    changed = flow.data_sql(f"SELECT key FROM {flow.table} WHERE _commit_seq > {before} ORDER BY key")
    assert changed == [(2,), (5,)], "who follows the commits sees what became visible"
    flow.write(block=101)
    flow.sink()
    assert flow.rows() == [(1, "other"), (2, "other"), (4, "next")], "it has no rows any more"
    flow.write(block=102)
    assert flow.sink() == 1
    assert flow.rows() == [(1, "other"), (2, "other")]
    flow.write(block=103)
    assert flow.sink() == 0, "it never had any: nobody needs to know"


@pytest.mark.parametrize("end", ["replay", "drop"])
def test_batches_of_a_unit_become_visible_together(flow: BufferFlow, end: str) -> None:
    flow.write([{"key": 1, "value": "old"}], block=101)
    flow.sink()
    flow.write([{"key": 2, "value": "new"}], [{"key": 3, "memo": "new"}], [{"key": 4, "value": "new"}], block=101)
    flow.write([{"key": 9, "value": "next"}], block=102)
    flow.batches = 1
    flow.sink()
    assert len(flow.letters()) == 1
    assert flow.rows() == [(1, "old"), (9, "next")], "as long as one is a dead letter"
    flow.deploy("name: memo, type: text")
    assert (flow.replay if end == "replay" else flow.drop)() == 1
    assert flow.rows() == [(1, "old"), (9, "next")]
    flow.sink()
    rest = [(3, None)] if end == "replay" else []
    assert flow.rows() == [(2, "new"), *rest, (4, "new"), (9, "next")]
    assert (flow.letters(), flow.open_batches()) == ([], 0)


def test_a_newer_run_does_not_wait_for_a_dead_letter_of_an_older_one(flow: BufferFlow) -> None:
    flow.write([{"key": 1, "value": "a"}], [{"key": "bad"}], block=101)
    flow.sink()
    assert flow.rows() == []
    flow.write([{"key": 2, "value": "b"}], block=101)
    flow.sink()
    assert flow.rows() == [(2, "b")]
    flow.drop()
    flow.sink()
    assert flow.rows() == [(2, "b")], "what it was part of is outdated"
    assert flow.data_sql(f"SELECT count(*) FROM {quoted(hidden_name(flow.dataset.dataset_uuid))}") == [(0,)]


def test_the_run_that_completed_last_is_the_unit_whatever_was_published_first(flow: BufferFlow) -> None:
    first, first_lease = flow.attempt("left", 101)
    second, second_lease = flow.attempt("left", 101)
    flow.publish_by(second, second_lease, [{"key": 2, "value": "second"}])
    flow.publish_by(first, first_lease, [{"key": 1, "value": "first"}])
    flow.flow.complete(first, first_lease)
    flow.flow.complete(second, second_lease)
    flow.sink()
    assert flow.rows() == [(2, "second")]


DEATHS = ("received", "fetched", "committing", "staged", "merged", "committed", "announced", "acked")


@pytest.mark.parametrize("moment", DEATHS)
def test_a_sink_that_dies_anywhere_shows_all_of_a_unit_or_nothing(flow: BufferFlow, moment: str) -> None:
    flow.write([{"key": 1, "value": "old"}], [{"key": 2, "value": "old"}], block=101)
    flow.sink()
    flow.write([{"key": 2, "value": "new"}], [{"key": 3, "value": "new"}], [{"key": 4, "value": "new"}], block=101)
    old, new = [(1, "old"), (2, "old")], [(2, "new"), (3, "new"), (4, "new")]
    flow.batches = 1
    for _ in range(3):  # in each of the three transactions
        flow.deaths.append(moment)
        flow.sink()
        flow.deaths.clear()
        assert flow.rows() in (old, new)
        flow.come_back()
    flow.sinks_at_once(2)
    flow.come_back()
    flow.sink()
    assert flow.rows() == new
    assert flow.open_batches() == 0
