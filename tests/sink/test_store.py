"""Tables and commits of batches, on a real Postgres, against a model in plain Python."""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import adbc_driver_postgresql.dbapi as adbc
import msgspec
import pyarrow as pa
import pytest

from tests.sink.support import EVERY, PLAIN, Publisher, dataset, lines
from tests.support.postgres import TestCluster
from tracelake.model.buffered import quoted, table_name
from tracelake.model.dag import Column, ColumnType, OnConflict, Schema
from tracelake.sink.outcomes import Loaded
from tracelake.sink.store import TableStore
from tracelake.storage import table_ddl
from tracelake.storage.data_connection import RefusedRowsError, StoreAwayError
from tracelake.wire.buffers import BufferedDataset


@pytest.fixture(scope="module")
def dsn(cluster: TestCluster) -> str:
    return cluster.fresh("data")


@pytest.fixture
def store(dsn: str) -> Iterator[TableStore]:
    opened = TableStore(dsn)
    yield opened
    opened.close()


def ask(dsn: str, statement: str) -> list[tuple[Any, ...]]:
    with adbc.connect(dsn) as connection, connection.cursor() as cursor:
        cursor.execute(statement)
        rows: list[tuple[Any, ...]] = cursor.fetchall()
        return rows


def run(dsn: str, *statements: str) -> None:
    with adbc.connect(dsn) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        connection.commit()


def rows_of(dsn: str, of: BufferedDataset) -> list[tuple[Any, ...]]:
    names = ", ".join(quoted(column.name) for column in of.schema.columns)
    table = quoted(table_name(of.dataset_uuid))
    return ask(dsn, f"SELECT org_id, _publish_seq, _line, {names} FROM {table} ORDER BY org_id, key")


Way = Callable[[TableStore, BufferedDataset, list[tuple[Loaded, pa.RecordBatch]]], list[Any]]


def direct(store: TableStore, of: BufferedDataset, parts: list[tuple[Loaded, pa.RecordBatch]]) -> list[Any]:
    return store.commit_direct(of, [loaded for loaded, _ in parts], [rows for _, rows in parts])


def staged(store: TableStore, of: BufferedDataset, parts: list[tuple[Loaded, pa.RecordBatch]]) -> list[Any]:
    staging = store.open_staging(of)
    for _, rows in parts:
        store.load(staging, [rows])
    if parts:  # a Spark task that was tried twice
        store.load(staging, [parts[0][1]])
    commits = store.commit_staged(of, staging, [loaded for loaded, _ in parts])
    store.drop_staging(staging)
    return commits


VERSIONED = Schema(
    columns=(*PLAIN.columns, Column(name="version", type=ColumnType.UINT256, nullable=False)), unique=("key",)
)


@pytest.mark.parametrize("on_conflict", ["update", "nothing", "newest"])
@pytest.mark.parametrize("seed", range(6))
def test_any_order_and_any_repeats_end_in_the_same_table(
    dsn: str, store: TableStore, on_conflict: OnConflict, seed: int
) -> None:
    chance = random.Random(seed)
    of = dataset(VERSIONED, on_conflict)
    store.follow(of)
    publisher, others = Publisher(of), uuid4()
    model: dict[tuple[UUID, int], tuple[int, int, str | None, int]] = {}

    def place_of(row: tuple[int, int, str | None, int]) -> tuple[int, ...]:
        return (row[3], *row[:2]) if on_conflict == "newest" else row[:2]

    batches = []
    for _ in range(12):
        org_id = chance.choice([publisher.org_id, others])
        rows: list[Any] = [
            {
                "key": chance.randrange(6),
                "value": chance.choice([None, "a", "b", "c"]),
                "version": chance.choice([9, 10, 2**255]),  # as text, 9 would be the highest
            }
            for _ in range(chance.randrange(5))
        ]
        batch = publisher.loaded(rows, org_id)
        batches.append(batch)
        for line, row in enumerate(rows, 1):
            place, mine = (org_id, row["key"]), (batch[0].batch.publish_seq, line, row["value"], row["version"])
            held = model.get(place)
            if held is None or (place_of(mine) > place_of(held)) == (on_conflict != "nothing"):
                model[place] = mine
    waiting = [*batches, *chance.choices(batches, k=6)]
    chance.shuffle(waiting)
    done: dict[UUID, int] = {}
    while waiting:
        count = chance.randint(1, 4)
        parts = list({part[0].batch.publish_id: part for part in waiting[:count]}.values())
        waiting = waiting[count:]
        way: Way = chance.choice([direct, staged])
        for commit in way(store, of, parts):
            for publish_id in commit.publish_ids:
                assert done.setdefault(publish_id, commit.commit_seq) == commit.commit_seq
    assert done.keys() == {loaded.batch.publish_id for loaded, _ in batches}
    expected = sorted(
        (org, seq, line, key, value, str(version)) for (org, key), (seq, line, value, version) in model.items()
    )
    assert sorted(rows_of(dsn, of)) == expected
    assert sorted(set(done.values())) == list(range(1, len(set(done.values())) + 1)), "no number is left out"


def test_both_ways_keep_every_type_alike(dsn: str, store: TableStore) -> None:
    row = {
        "flag": True,
        "small": 1,
        "large": -1,
        "signed": -(2**255),
        "unsigned": 2**256 - 1,
        "ratio": 0.1,
        "amount": "1.000001",
        "class": "low",
        "data": "0x00ff",
        "at": "2026-01-31T12:00:00.5Z",
        "day": "2026-01-31",
        "more": {"b": 1.50, "a": "\\u00e4"},
    }
    found = []
    for way in (direct, staged):
        of = dataset(EVERY, name=f"every_{way.__name__}")
        store.follow(of)
        publisher = Publisher(of, org_id=UUID(int=1))
        way(store, of, [publisher.loaded([row | {"key": "a", "number": 1}, {"key": "b", "number": 2}])])
        found.append(rows_of(dsn, of))
        (shown, empty) = ask(dsn, f"SELECT * FROM {table_ddl.view_name(of)} ORDER BY key")
        assert shown[:7] == ("a", 1, True, 1, -1, str(-(2**255)), str(2**256 - 1))
        assert shown[7:10] == (0.1, "1.000001", "low")
        assert empty[2:] == (None,) * 12
    assert found[0] == found[1]


def test_a_table_follows_its_schema_with_rows_in_it(dsn: str, store: TableStore) -> None:
    of = dataset(PLAIN, name="followed")
    assert store.follow(of)
    assert not TableStore(dsn).follow(of), "another sink finds it as it should be"
    publisher = Publisher(of)
    direct(store, of, [publisher.loaded([{"key": 1, "value": "x"}])])
    wider = Schema(
        columns=(
            Column(name="key", type=ColumnType.INT256, nullable=False),
            Column(name="value", type=ColumnType.TEXT, max_length=None),
            Column(name="extra", type=ColumnType.INT16),
        ),
        unique=("key",),
        indexes=(("extra", "value"),),
    )
    after = msgspec.structs.replace(of, schema=wider, name="renamed")
    assert store.follow(after)
    publisher.dataset = after
    direct(store, after, [publisher.loaded([{"key": 2**200, "extra": 5}])])
    shown = ask(dsn, f"SELECT * FROM {table_ddl.view_name(after)} ORDER BY key")
    assert shown == [("1", "x", None), (str(2**200), None, 5)]
    assert ask(dsn, "SELECT count(*) FROM pg_views WHERE viewname = 'followed'") == [(0,)]
    assert ask(dsn, f"SELECT count(*) FROM pg_indexes WHERE tablename = '{table_name(of.dataset_uuid)}'") == [(4,)]
    assert store.follow(msgspec.structs.replace(after, schema=msgspec.structs.replace(wider, indexes=())))


def test_a_view_keeps_its_readers(dsn: str, store: TableStore) -> None:
    of = dataset(PLAIN, name="read_by_many")
    store.follow(of)
    view = table_ddl.view_name(of)
    run(dsn, f"GRANT SELECT ON {view} TO pg_monitor, PUBLIC", f"CREATE VIEW above AS SELECT * FROM {view}")
    key, value = PLAIN.columns
    extra = Column(name="extra", type=ColumnType.INT16)
    wider = msgspec.structs.replace(PLAIN, columns=(key, extra, value), indexes=(("value",),))
    after = msgspec.structs.replace(of, schema=wider, revision=1)
    assert store.follow(after), "what stands on it is not in the way"
    direct(store, after, [Publisher(after).loaded([{"key": 1, "value": "x", "extra": 5}])])
    assert ask(dsn, f"SELECT * FROM {view}") == [(1, "x", 5)], "new columns are the last"
    assert ask(dsn, "SELECT * FROM above") == [(1, "x")]
    larger = msgspec.structs.replace(extra, type=ColumnType.INT32)
    retyped = msgspec.structs.replace(wider, columns=(key, larger, value))
    last = msgspec.structs.replace(of, schema=retyped, revision=2)
    with pytest.raises(StoreAwayError, match="depend") as held_up:
        store.follow(last)
    assert held_up.value.lasting
    run(dsn, "DROP VIEW above")
    assert store.follow(last)
    for reader in ("pg_monitor", "public"):
        assert ask(dsn, f"SELECT has_table_privilege('{reader}', '{view}', 'SELECT')") == [(True,)], reader


def test_a_table_that_the_state_does_not_know_is_left_alone(dsn: str, store: TableStore) -> None:
    """After the state was set back, say, and something else was deployed."""
    of = dataset(EVERY, name="foreign")
    store.follow(of)
    other = msgspec.structs.replace(of, schema=PLAIN, revision=5)
    with pytest.raises(StoreAwayError, match="cannot be changed") as refused:
        store.follow(other)
    assert refused.value.lasting


def test_an_index_that_is_missing_is_made_later(dsn: str, store: TableStore) -> None:
    """A sink died between the table and its indexes."""
    of = dataset(EVERY, name="indexed")
    store.follow(of)
    names = f"SELECT indexname FROM pg_indexes WHERE tablename = '{table_name(of.dataset_uuid)}' ORDER BY 1"
    made = ask(dsn, names)
    ((first, _), *_) = table_ddl.indexes(of)
    run(dsn, f"DROP INDEX {first}", "UPDATE buffer_tables SET indexed = NULL")
    assert len(ask(dsn, names)) == len(made) - 1
    again = TableStore(dsn)
    assert not again.follow(of), "the table itself is as it should be"
    again.close()
    assert ask(dsn, names) == made


def test_a_refusal_leaves_nothing_behind(dsn: str, store: TableStore) -> None:
    of = dataset(name="refusing")
    store.follow(of)
    table = quoted(table_name(of.dataset_uuid))
    with adbc.connect(dsn, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {table} ADD CHECK (key < 100)")
    publisher = Publisher(of)
    good, bad = publisher.loaded([{"key": 1}]), publisher.loaded([{"key": 2}, {"key": 100}])
    with pytest.raises(RefusedRowsError, match="violates check constraint"):
        direct(store, of, [good, bad])
    assert rows_of(dsn, of) == []
    assert store.find(of, [good[0].batch]) == []
    assert len(direct(store, of, [good])) == 1


def test_two_sinks_on_one_batch(dsn: str, store: TableStore) -> None:
    of = dataset(name="twice")
    store.follow(of)
    other = TableStore(dsn)
    part = Publisher(of).loaded([{"key": 1, "value": "x"}])
    first, *again = [direct(store, of, [part]), direct(other, of, [part]), staged(other, of, [part])]
    assert [commit.table_bytes is not None for commit in first] == [True]
    assert again == [[replace(commit, table_bytes=None) for commit in first]] * 2, "only a new commit has a size"
    assert len(rows_of(dsn, of)) == 1
    other.close()


def test_a_store_that_is_away_and_comes_back(cluster: TestCluster) -> None:
    dsn = cluster.fresh("data")
    of, store = dataset(), TableStore(dsn)
    store.follow(of)
    part = Publisher(of).loaded([{"key": 1}])
    (pid,) = ask(dsn, "SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = current_database()")
    ask(dsn, f"SELECT pg_terminate_backend({pid[0]})")
    with pytest.raises(StoreAwayError):
        direct(store, of, [part])
    assert len(direct(store, of, [part])) == 1
    store.close()
    with pytest.raises(StoreAwayError) as away:
        TableStore("postgresql://trace_data:hidden@127.0.0.1:1/data").follow(of)
    assert "hidden" not in str(away.value)


def test_staging_of_a_killed_sink_is_dropped(dsn: str, store: TableStore) -> None:
    of = dataset(name="killed")
    store.follow(of)
    left = store.open_staging(of)
    with adbc.connect(dsn, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute(f"UPDATE buffer_staging SET created_at = created_at - interval '25 hours' WHERE name = '{left}'")
    fresh = store.open_staging(of)
    names = {name for (name,) in ask(dsn, "SELECT tablename FROM pg_tables WHERE schemaname = 'staging'")}
    assert fresh in names
    assert left not in names
    store.drop_staging(fresh)


def test_names_that_are_long_or_strange(dsn: str, store: TableStore) -> None:
    schema = Schema(
        columns=(Column(name="From", type=ColumnType.INT64, nullable=False), Column(name="t", type=ColumnType.TEXT)),
        unique=("From",),
    )
    for name in ("x" * 128, "x" * 127 + "y"):
        of = dataset(schema, name=name)
        store.follow(of)
        direct(store, of, [Publisher(of).loaded([{"From": 1, "t": name[-1]}])])
        assert ask(dsn, f"SELECT t FROM {table_ddl.view_name(of)}") == [(name[-1],)]
    assert lines([]) == b""


def test_a_name_that_a_dataset_of_a_lost_state_had(dsn: str, store: TableStore) -> None:
    store.follow(dataset(EVERY, name="again"))
    of = dataset(PLAIN, name="again")
    store.follow(of)
    direct(store, of, [Publisher(of).loaded([{"key": 1, "value": "new"}])])
    assert ask(dsn, f"SELECT * FROM {table_ddl.view_name(of)}") == [(1, "new")]
