"""`trace read` of a live dataset, over the API and from the stores: every row once, whatever moves meanwhile."""

import json
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from random import Random
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.cli.conftest import Trace, run_trace
from tests.cli.fake_api import write_stack
from tests.http.support import user_token
from tests.query.support import FILES, LocalTransfer
from tests.routing.support import Flow
from tests.support.dispatcher import DispatcherHarness
from tests.support.live_dataset import LiveDataset, columns_of, plain_rows
from tests.support.postgres import TestCluster
from tracelake.client.errors import ClientError
from tracelake.client.live_reading import LiveFiles, fit, read_live
from tracelake.client.pinned_rows import read_downloads
from tracelake.db.transaction import Connection
from tracelake.dispatcher.views import content as content_view
from tracelake.dispatcher.views import rows as rows_view
from tracelake.errors import TraceError
from tracelake.ports import ObjectMeta
from tracelake.processes.table_rows import DataTables
from tracelake.stack.dataset_rows import read_table
from tracelake.wire.content import LiveRows
from tracelake.wire.platform import DatasetFilesReply, DatasetFilesRequest
from tracelake.wire.task_calls import DataFile, TableColumn


@pytest.fixture(scope="module")
def data_dsn(cluster: TestCluster) -> str:
    return cluster.fresh("data")


@pytest.fixture(scope="module")
def harness(cluster: TestCluster, data_dsn: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    state, queue = cluster.fresh("state"), cluster.fresh("queue", role="trace_queue")
    tables = DataTables(lambda: data_dsn)
    running = DispatcherHarness.start(state, queue, tmp_path_factory.mktemp("home"), tables=tables)
    Flow(running, "acme").deploy(FILES)
    try:
        yield running
    finally:
        running.stop()


@pytest.fixture
def dataset(data_dsn: str, tmp_path: Path) -> Iterator[LiveDataset]:
    """History 0 to 6, a table from 7 on with the final units 7-9, 10-14, 15-19, and 20-21 above them."""
    with closing(LiveDataset(data_dsn, tmp_path / "objects")) as dataset:
        dataset.ingest(0, 4)
        dataset.ingest(5, 6)
        dataset.append(15)
        for _ in range(3):
            dataset.seal()
        yield dataset


@pytest.fixture
def trace(
    harness: DispatcherHarness,
    dataset: LiveDataset,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Trace:
    """Somebody with a token alone. The Dispatcher is real but for the registry, whose dataset `blocks` is this one."""

    async def list_files(_connection: Connection, request: DatasetFilesRequest) -> DatasetFilesReply:
        return dataset.list_files(request)

    async def find_file(_connection: Connection, _org_id: Any, _name: str, file: content_view.FileName) -> DataFile:
        assert file.start is not None
        assert file.end is not None
        return dataset.units[file.start, file.end].files[file.file]

    for module in (content_view, rows_view):
        monkeypatch.setattr(module, "list_dataset_files", list_files)
    monkeypatch.setattr(content_view, "find_file", find_file)
    dataset.objects = harness.home / "objects"
    for start, end in list(dataset.units):
        dataset.ingest(start, end)  # again, where the Dispatcher reads
    write_stack(tmp_path, f"https://{harness.clients['public']._authority}", harness.tls.ca)
    (tmp_path / "reader.token").write_text(user_token(harness, org="acme", roles=["reader"]))
    monkeypatch.setenv("TRACE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return run_trace(monkeypatch, capsys)


READ = ("read", "blocks", "--token-file", "reader.token")


def test_files_and_table_are_exported_as_one(trace: Trace, dataset: LiveDataset, tmp_path: Path) -> None:
    export = ("export", "blocks", "x", *READ[2:])
    dataset.compact((7, 9))
    dataset.remove()
    assert "fetched, 0 unchanged" in trace(*export).out
    assert read_directory(tmp_path / "x") == dataset.expected
    units = sorted(path.name for path in (tmp_path / "x").glob("unit=*"))
    assert units == ["unit=0-4", "unit=5-6", "unit=7-9", "unit=table"]
    dataset.compact((10, 14))
    dataset.remove()
    assert "5 units in x: 2 fetched, 3 unchanged, 0 removed" in trace(*export).out, "a new unit, and the table again"
    assert read_directory(tmp_path / "x") == dataset.expected


def read_directory(directory: Path) -> Any:
    files = [pq.read_table(path, partitioning=None) for path in directory.glob("*/*.parquet")]
    return plain_rows([pa.concat_tables(files).sort_by("block_number")])


def numbers(trace: Trace, *options: str) -> list[int]:
    ended = trace(*READ, "--json", *options)
    assert (ended.status, ended.err) == (0, "")
    return [row["block_number"] for row in json.loads(ended.out)]


def test_rows_come_with_a_token_alone(trace: Trace, dataset: LiveDataset, tmp_path: Path) -> None:
    dataset.compact((7, 9))
    dataset.remove()
    assert numbers(trace, "--head", "3") == [21, 20, 19], "the newest first"
    assert numbers(trace, "--head", "30") == [*range(21, -1, -1)], "into the files"
    assert numbers(trace, "--range", "8-11") == [11, 10, 9, 8, 7], "units of files, blocks of the table"
    for number, ending in enumerate(("parquet", "csv", "jsonl")):
        ended = trace(*READ, "--output", f"{number}.{ending}")
        assert ended.out == f"22 rows in {number}.{ending}.\n"
    table = pq.read_table(tmp_path / "0.parquet")
    assert plain_rows([table]) == dataset.expected
    assert table["block_number"].to_pylist() == list(range(22)), "in their order"
    assert table.schema.types == [pa.int64(), pa.binary(), pa.decimal128(20, 0)], "those of the table"
    lines = (tmp_path / "2.jsonl").read_text().splitlines()
    assert json.loads(lines[0]) == {"block_number": 0, "block_hash": "0x6830", "gas_used": "0"}
    trace(*READ, "--output", "c.csv", "--columns", "gas_used")
    assert (tmp_path / "c.csv").read_text().splitlines() == ["gas_used", *(str(n) for n in range(22))]
    assert "there is no column nothing" in trace(*READ, "--columns", "nothing").err


def test_rows_beyond_the_limit_are_mentioned(trace: Trace, dataset: LiveDataset) -> None:
    dataset.compact((7, 9))
    dataset.remove()
    for options, note in (
        (("--range", "8-11", "--head", "4"), "(4 rows; there are more)"),
        (("--range", "8-11", "--head", "5"), "(5 rows)"),
        (("--head", "12"), "(12 rows; there are more)"),
        (("--head", "13"), "(13 rows; there are more)"),
        (("--head", "22"), "(22 rows)"),
    ):
        assert trace(*READ, *options).out.splitlines()[-1] == note, options


def test_a_table_alone_and_nothing_at_all(trace: Trace, dataset: LiveDataset) -> None:
    dataset.units.clear()
    dataset.history.clear()
    assert numbers(trace, "--head", "30") == [*range(21, 6, -1)]
    dataset.table = LiveDataset(dataset.dsn, dataset.objects).table
    assert trace(*READ).out == "It has no rows.\n"


def test_rows_that_move_meanwhile_are_looked_up_again(trace: Trace, dataset: LiveDataset, tmp_path: Path) -> None:
    dataset.compact((7, 9))
    steps = [dataset.remove, lambda: dataset.compact((10, 14))]

    def move() -> None:
        while steps:
            steps.pop()()

    dataset.between = move
    assert trace(*READ, "--output", "x.parquet").status == 0
    assert plain_rows([pq.read_table(tmp_path / "x.parquet")]) == dataset.expected
    assert dataset.removed_to == 14

    def always() -> None:
        dataset.append(5)
        dataset.seal()
        dataset.compact(dataset.compactable[0])
        dataset.remove()

    dataset.between = always
    ended = trace(*READ, "--output", "y.parquet")
    assert (ended.status, "boundary_moved" in ended.err) == (1, True)
    assert not (tmp_path / "y.parquet").exists()


def test_the_api_says_how_a_live_dataset_is_read(
    harness: DispatcherHarness, trace: Trace, dataset: LiveDataset
) -> None:
    headers = {"Authorization": f"Bearer {user_token(harness, org='acme', roles=['reader'])}"}

    def call(path: str, body: Any) -> Any:
        return harness.call("public", "POST", f"/v1/datasets/blocks/{path}", body, headers)

    dataset.compact((7, 9))
    listed = call("files", {}).body
    assert (listed["live"], listed["boundary"], len(listed["units"])) == (True, 9, 3)
    refused = call("rows", {})
    assert (refused.status, refused.code) == (422, "body_invalid")
    assert "list these first" in refused.body["error"]["message"]
    dataset.compact((10, 14))
    dataset.remove()
    moved = call("rows", {"live": {"boundary": 9}})
    assert (moved.status, moved.code) == (503, "boundary_moved")
    assert call("rows", {"live": {}}).code == "boundary_moved"


class StoredDataset:
    """A live dataset in the stores, without a stack around them."""

    def __init__(self, dataset: LiveDataset) -> None:
        self.dataset = dataset
        self.at_the_moment: list[tuple[int, bytes]] = []

    def list_files(self) -> LiveFiles[DataFile]:
        request = DatasetFilesRequest(dataset_uuid=self.dataset.table.dataset_uuid)
        reply = self.dataset.list_files(request)
        return LiveFiles([file for unit in reply.units for file in unit.files], reply.boundary)

    def read_files(self, files: Sequence[DataFile], names: list[str]) -> Generator[pa.Table, None, None]:
        transfer = LocalTransfer(self.dataset.objects)

        def download(file: DataFile, path: Path) -> None:
            transfer.download(ObjectMeta(file.uri, file.size, file.etag), path)

        return read_downloads(download, files, names, lacking=True)

    def store_rows(self, columns: Sequence[TableColumn], rows: LiveRows, head: int | None, file: IO[bytes]) -> None:
        dataset = self.dataset
        self.at_the_moment = dataset.expected
        with (
            closing(read_table(dataset.dsn, dataset.table.dataset_uuid, columns, head, live=rows)) as pieces,
            pa.ipc.new_stream(file, next(pieces).schema) as writer,
        ):
            dataset.between()
            for piece in pieces:
                writer.write_table(piece)


@pytest.mark.parametrize("seed", range(6))
def test_any_history_between_any_steps(data_dsn: str, tmp_path: Path, seed: int) -> None:
    chance = Random(seed)
    with closing(LiveDataset(data_dsn, tmp_path / "objects", unit=3)) as dataset:

        def take_steps(most: int = 4) -> None:
            for _ in range(chance.randint(0, most)):
                dataset.append(chance.randint(1, 3))
                if chance.random() < 0.3:
                    dataset.reorganise()
                dataset.seal()
                if dataset.compactable and chance.random() < 0.7:
                    dataset.compact(chance.choice(dataset.compactable))
                if chance.random() < 0.5:
                    dataset.remove()

        stored = StoredDataset(dataset)
        for _ in range(5):
            dataset.between = lambda: None
            take_steps(8)
            dataset.between = take_steps
            try:
                pieces = list(read_live(stored, columns_of(dataset.table.schema), (None, None), None))
            except TraceError as error:
                if error.code != "boundary_moved":
                    raise
            else:
                assert plain_rows(pieces) == stored.at_the_moment
                assert len({piece.schema for piece in pieces}) == 1


def test_files_get_the_types_of_the_table_exactly() -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.decimal128(20, 0)), ("c", pa.binary())])
    table = pa.table({"b": pa.array([2**64 - 1], pa.uint64()), "a": pa.array([7], pa.uint32()), "more": ["x"]})
    assert fit(table, schema).to_pylist() == [{"a": 7, "b": 2**64 - 1, "c": None}]
    for column, values in (
        ("a", pa.array([2**63], pa.uint64())),
        ("a", pa.array([1.5])),
        ("b", pa.array([1.0])),
        ("a", pa.array([b"x"])),
    ):
        with pytest.raises(ClientError, match=f"the column {column} as"):
            fit(pa.table({column: values}), schema)
