"""A query reads every row of a live dataset exactly once, whatever its writers do between its steps."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.query.support import LocalTransfer
from tests.support.live_dataset import LiveDataset, plain_rows
from tests.support.postgres import TestCluster
from tracelake.errors import TraceError
from tracelake.query.broker import TableBroker
from tracelake.query.control import ControlPlane
from tracelake.query.files import QueryFiles
from tracelake.query.metrics import QueryMetrics
from tracelake.query.pruning import table_condition
from tracelake.query.reading import RelationReader
from tracelake.query.relations import BoundRelation, LocalRelation, sql_type
from tracelake.storage.file_cache import FileCache
from tracelake.storage.snapshots import Snapshot
from tracelake.wire import routes
from tracelake.wire.content import LOOKS
from tracelake.wire.query import InputRelation, InputSelection
from tracelake.wire.units import Unit


@dataclass
class LiveCalls:
    """A Dispatcher that knows one live dataset."""

    dataset: LiveDataset

    async def call(self, route: Any, body: Any, /, **_: Any) -> Any:
        assert route is routes.LIST_DATASET_FILES
        return self.dataset.list_files(body)


@dataclass
class Condition:
    column: str
    operator: str
    value: Any


@dataclass
class Checked:
    """A query that passed the gate."""

    filters: Mapping[str, Sequence[Condition]] = field(default_factory=dict)
    columns: Mapping[str, frozenset[str]] = field(
        default_factory=lambda: {"blocks": frozenset({"block_number", "block_hash", "gas_used"})}
    )
    sql: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    relations: frozenset[str] = frozenset({"blocks"})
    fingerprint: str = ""


@dataclass
class Run:
    inputs: Path
    bytes_read: int = 0
    org: str = "acme"
    seconds_left: float = 60.0


@pytest.fixture(scope="module")
def dsn(cluster: TestCluster) -> str:
    return cluster.fresh("data")


@dataclass
class Reading:
    dataset: LiveDataset
    directory: Path

    def __post_init__(self) -> None:
        self.directory.mkdir()
        cache = FileCache(self.directory / "cache", LocalTransfer(self.dataset.objects), 2**30, QueryMetrics())
        (self.directory / "cache").mkdir()
        control = ControlPlane(LiveCalls(self.dataset))
        files = QueryFiles(cache)
        self.reader = RelationReader(
            control=control, files=files, broker=TableBroker(lambda: self.dataset.dsn), max_input_bytes=2**30
        )
        self.count = 0

    def look(self, checked: Checked | None = None, selections: Sequence[InputSelection] = ()) -> LocalRelation:
        relation = BoundRelation(source=self.dataset.relation, selections=tuple(selections))
        columns = {column.name: sql_type(column) for column in relation.table_columns}
        self.count += 1
        run = Run(self.directory / str(self.count))
        used = {"blocks": relation}
        return asyncio.run(self.reader.read(run, used, {"blocks": columns}, checked or Checked()))["blocks"]


def rows_of(local: LocalRelation) -> list[tuple[int, bytes]]:
    assert local.is_live
    return plain_rows([*files_of(local), *table_of(local)])


def files_of(local: LocalRelation) -> list[pa.Table]:
    return [pq.ParquetFile(path).read() for path in local.files]


def table_of(local: LocalRelation) -> list[pa.Table]:
    return [pa.ipc.open_file(str(path)).read_all() for path in local.rows]


@pytest.fixture
def at_the_snapshot(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
    """Runs something when the snapshot was taken and nothing is read yet."""

    def install(action: Callable[[], None]) -> None:
        check = Snapshot.check_boundary

        def watched(snapshot: Snapshot, *arguments: Any) -> None:
            check(snapshot, *arguments)
            action()

        monkeypatch.setattr(Snapshot, "check_boundary", watched)

    return install


def grow(dataset: LiveDataset) -> None:
    """History 0 to 6, a table from 7 on with the units 7-9, 10-14, 15-19 final, and 20-21 above them."""
    dataset.ingest(0, 4)
    dataset.ingest(5, 6)
    dataset.append(15)
    for _ in range(3):
        dataset.seal()


@pytest.fixture
def dataset(dsn: str, tmp_path: Path) -> Iterator[LiveDataset]:
    with closing(LiveDataset(dsn, tmp_path / "objects")) as dataset:
        yield dataset


@pytest.fixture
def reading(dataset: LiveDataset, tmp_path: Path) -> Reading:
    return Reading(dataset, tmp_path / "query")


def test_every_row_once_at_every_stage(dataset: LiveDataset, reading: Reading) -> None:
    assert rows_of(reading.look()) == [], "not even the table is there"
    dataset.append(2)
    assert rows_of(reading.look()) == dataset.expected
    grow(dataset)
    steps: tuple[Callable[[], None], ...] = (
        lambda: None,
        lambda: dataset.compact((10, 14)),  # a gap: its rows are read from the table
        lambda: dataset.compact((7, 9)),
        dataset.remove,
        lambda: dataset.compact((15, 19)),
        dataset.reorganise,
        dataset.remove,
    )
    for step in steps:
        step()
        assert rows_of(reading.look()) == dataset.expected
        assert len(dataset.expected) == dataset._head + 1
    assert (dataset.boundary, dataset.removed_to) == (19, 19)


def test_files_and_table_have_no_row_in_common(dataset: LiveDataset, reading: Reading) -> None:
    grow(dataset)
    dataset.compact((7, 9))
    local = reading.look()
    assert [number for number, _ in plain_rows(files_of(local))] == list(range(10))
    assert [number for number, _ in plain_rows(table_of(local))] == list(range(10, dataset._head + 1))


def test_pages_are_of_one_moment(dataset: LiveDataset, reading: Reading) -> None:
    grow(dataset)
    dataset.page = 1
    dataset.compact((7, 9))
    steps = [lambda: dataset.compact((10, 14)), lambda: dataset.compact((15, 19))]
    dataset.between = lambda: steps.pop(0)() if steps else None
    local = reading.look()
    assert rows_of(local) == dataset.expected
    assert [number for number, _ in plain_rows(files_of(local))] == list(range(10))
    assert dataset.lists == 1, "nothing was removed: the first look is good"


def test_rows_that_were_removed_meanwhile_are_looked_up_in_files(dataset: LiveDataset, reading: Reading) -> None:
    grow(dataset)
    dataset.compact((7, 9))
    steps = [dataset.remove, lambda: dataset.compact((10, 14))]

    def go_on() -> None:
        while steps:
            steps.pop()()

    dataset.between = go_on
    assert rows_of(reading.look()) == dataset.expected
    assert dataset.lists == 2


def test_the_first_compaction_is_noticed_too(dataset: LiveDataset, reading: Reading) -> None:
    """The list had no boundary: rows are in no file yet."""
    grow(dataset)
    steps = [dataset.remove, lambda: dataset.compact((7, 9))]

    def go_on() -> None:
        while steps:
            steps.pop()()

    dataset.between = go_on
    assert rows_of(reading.look()) == dataset.expected
    assert dataset.lists == 2


def test_a_boundary_that_always_moves_is_an_error_that_may_be_repeated(dataset: LiveDataset, reading: Reading) -> None:
    grow(dataset)
    dataset.compact((7, 9))

    def go_on() -> None:
        dataset.append(5)
        dataset.seal()
        dataset.compact(dataset.compactable[0])
        dataset.remove()

    dataset.between = go_on
    with pytest.raises(TraceError, match="boundary_moved") as caught:
        reading.look()
    assert caught.value.retryable
    assert dataset.lists == LOOKS
    dataset.between = lambda: None
    assert rows_of(reading.look()) == dataset.expected


def test_a_removal_after_the_snapshot_takes_nothing(
    dataset: LiveDataset, reading: Reading, at_the_snapshot: Callable[[Callable[[], None]], None]
) -> None:
    grow(dataset)
    dataset.compact((7, 9))
    expected: list[Any] = []

    def go_on() -> None:
        expected[:] = dataset.expected
        dataset.compact((10, 14))
        dataset.remove()
        dataset.reorganise()

    at_the_snapshot(go_on)
    assert rows_of(reading.look()) == expected != dataset.expected
    assert dataset.lists == 1


def test_old_blocks_need_no_table_and_new_ones_no_files(dataset: LiveDataset, reading: Reading) -> None:
    grow(dataset)
    dataset.compact((7, 9))
    dataset.compact((10, 14))

    def numbers(*conditions: Condition) -> tuple[list[int] | None, list[int] | None]:
        local = reading.look(Checked(filters={"blocks": conditions}))
        sides = (files_of(local), table_of(local))
        files, table = ([number for number, _ in plain_rows(side)] if side else None for side in sides)
        return files, table

    assert numbers(Condition("block_number", "<=", 14)) == (list(range(15)), None)
    assert numbers(Condition("block_number", "=", 6)) == ([5, 6], None), "the whole unit: the engine selects"
    assert numbers(Condition("block_number", ">", 14)) == (None, list(range(15, 22)))
    assert numbers(Condition("block_number", ">=", 14), Condition("block_number", "<", 16)) == (
        [10, 11, 12, 13, 14],
        [15],
    )
    assert numbers(Condition("block_number", ">", 20), Condition("block_number", "<", 10)) == (None, None)
    dataset.between = lambda: pytest.fail("no list is asked for")
    assert numbers(Condition("block_number", ">", 9), Condition("block_number", "<", 8)) == (None, None)


def test_a_table_that_is_not_needed_may_lose_rows(dataset: LiveDataset, reading: Reading) -> None:
    grow(dataset)
    dataset.compact((7, 9))

    def go_on() -> None:
        dataset.compact((10, 14))
        dataset.remove()

    dataset.between = go_on
    local = reading.look(Checked(filters={"blocks": [Condition("block_number", "<", 10)]}))
    assert [number for number, _ in rows_of(local)] == list(range(10))
    assert dataset.lists == 1


def test_units_of_a_task_are_selected_on_both_sides(dataset: LiveDataset, reading: Reading) -> None:
    grow(dataset)
    dataset.compact((7, 9))
    units = [Unit(partition_key="8-10", start=8, end=10), Unit(partition_key="20-30", start=20, end=30)]
    local = reading.look(selections=[InputSelection(unit=unit, where={"block_hash": None}) for unit in units])
    assert (local.blocks, local.where) == (((8, 10), (20, 30)), {"block_hash": None}), "the engine applies them"
    assert plain_rows(files_of(local))[0][0] == 7
    assert rows_of(reading.look(selections=[InputSelection(unit=unit) for unit in units]))[3:] == [
        (number, f"a{number}".encode()) for number in (10, 20, 21)
    ]
    relation = InputRelation(**_fields(dataset), selections=[InputSelection(unit=units[0])])
    assert BoundRelation(source=relation).is_live


def _fields(dataset: LiveDataset) -> dict[str, Any]:
    relation = dataset.relation
    return {name: getattr(relation, name) for name in relation.__struct_fields__}


def test_a_table_without_positions_is_no_live_dataset(dataset: LiveDataset) -> None:
    with pytest.raises(TraceError, match="no positions"):
        table_condition({}, [], boundary=5)


@pytest.mark.parametrize("seed", range(12))
def test_any_history_between_any_steps(
    dataset: LiveDataset, tmp_path: Path, at_the_snapshot: Callable[[Callable[[], None]], None], seed: int
) -> None:
    """Steps of writers before a query, between its pages, between its list and its snapshot, and while it reads."""
    chance = Random(seed)
    dataset.table_start, dataset.unit, dataset.page = chance.randint(0, 7), 3, chance.choice([1, 2, 100])
    reading = Reading(dataset, tmp_path / "query")
    boundaries: list[int | None] = [None]
    expected: list[Any] = []
    compared = 0

    def step() -> None:
        match chance.choice(["append", "append", "reorganise", "seal", "first", "last", "remove", "remove", "ingest"]):
            case "append":
                dataset.append(chance.randint(1, 4))
            case "reorganise" if dataset.blocks:
                dataset.reorganise()
            case "seal" if dataset.blocks:
                dataset.seal()
            case "first" if dataset.compactable:
                dataset.compact(dataset.compactable[0])
            case "last" if dataset.compactable:
                dataset.compact(dataset.compactable[-1])
            case "remove":
                dataset.remove(chance.choice(boundaries))  # None: that of now; else of a claim of long ago
            case "ingest" if len(dataset.history) < dataset.table_start:
                block = len(dataset.history)
                dataset.ingest(block, block)
        boundaries.append(dataset.boundary)

    def take_steps(most: int) -> None:
        for _ in range(chance.randint(0, most)):
            step()

    def note_and_go_on() -> None:
        expected[:] = dataset.expected
        take_steps(3)

    at_the_snapshot(note_and_go_on)
    for _ in range(6):
        dataset.between = lambda: None
        take_steps(10)
        dataset.between = lambda: take_steps(4)
        with suppress_moved():
            assert rows_of(reading.look()) == expected
            compared += 1
    assert compared


@contextmanager
def suppress_moved() -> Iterator[None]:
    try:
        yield
    except TraceError as error:
        if error.code != "boundary_moved":
            raise
