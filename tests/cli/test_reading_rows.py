"""`trace read` of a buffered dataset with a token alone: rows are streamed over the public API, all of one moment."""

import asyncio
import json
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from pathlib import Path
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.cli.conftest import Trace, run_trace
from tests.cli.fake_api import write_stack
from tests.http.support import user_token
from tests.sink.flow import BufferFlow
from tests.support.dispatcher import DispatcherHarness
from tests.support.postgres import TestCluster, wait_until
from tracelake.cli import row_table
from tracelake.client.errors import DispatcherUnavailableError
from tracelake.client.http import HttpReply
from tracelake.dispatcher.views import rows as rows_view
from tracelake.errors import StoreUnavailableError
from tracelake.http.fair_slots import FairSlots
from tracelake.processes.table_rows import DataTables
from tracelake.stack import dataset_rows
from tracelake.wire.content import LiveRows
from tracelake.wire.task_calls import TableColumn

PATH = "/v1/datasets/large/rows"


class SwitchedTables:
    """Those of Postgres data, or what a test puts there."""

    def __init__(self, tables: DataTables) -> None:
        self._tables = tables
        self.instead: Callable[[], Iterator[bytes]] | None = None

    def stream(
        self,
        dataset_uuid: UUID,
        columns: Sequence[TableColumn],
        head: int | None,
        seconds: float,
        live: LiveRows | None = None,
    ) -> Iterator[bytes]:
        if self.instead is not None:
            return self.instead()
        return self._tables.stream(dataset_uuid, columns, head, seconds, live)


@pytest.fixture(scope="module")
def data_dsn(cluster: TestCluster) -> str:
    return cluster.fresh("data")


@pytest.fixture(scope="module")
def tables(data_dsn: str) -> SwitchedTables:
    return SwitchedTables(DataTables(lambda: data_dsn))


@pytest.fixture(scope="module")
def harness(
    cluster: TestCluster, tables: SwitchedTables, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DispatcherHarness]:
    state, queue = cluster.fresh("state"), cluster.fresh("queue", role="trace_queue")
    running = DispatcherHarness.start(state, queue, tmp_path_factory.mktemp("home"), tables=tables)
    try:
        yield running
    finally:
        running.stop()


@pytest.fixture(scope="module")
def flow(harness: DispatcherHarness, data_dsn: str) -> BufferFlow:
    flow = BufferFlow(harness, data_dsn)
    for part in range(3):
        flow.publish([{"key": key, "value": f"v{key}"} for key in range(10 * part, 10 * part + 10)])
        flow.sink()
    BufferFlow(harness, data_dsn, "other")
    return flow


@pytest.fixture(autouse=True)
def plain_tables(tables: SwitchedTables) -> Iterator[None]:
    yield
    tables.instead = None


@pytest.fixture
def trace(
    flow: BufferFlow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Trace:
    """As somebody on another machine, who was given an address, a CA and a token of a reader."""
    harness = flow.harness
    write_stack(tmp_path, f"https://{harness.clients['public']._authority}", harness.tls.ca)
    for name, org in (("reader", "acme"), ("stranger", "nobody")):
        (tmp_path / f"{name}.token").write_text(user_token(harness, org=org, roles=["reader"]))
    monkeypatch.setenv("TRACE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return run_trace(monkeypatch, capsys)


def test_rows_come_with_a_token_alone(trace: Trace, tmp_path: Path) -> None:
    read = ("read", "large", "--token-file", "reader.token")
    ended = trace(*read, "--json", "--head", "3")
    assert (ended.status, ended.err) == (0, ""), "programs ask `trace why`"
    assert json.loads(ended.out) == [{"key": key, "value": f"v{key}"} for key in (29, 28, 27)], "the newest first"
    ended = trace(*read, "--output", "x.parquet")
    assert ended.out == "30 rows in x.parquet.\n"
    assert ended.err.startswith("large is not complete: 3 tasks of transfers/right wait")
    table = pq.read_table(tmp_path / "x.parquet")
    assert sorted(table["key"].to_pylist()) == list(range(30))
    assert table.schema.field("key").type == pa.int64()
    trace(*read, "--output", "x.csv", "--columns", "value")
    assert (tmp_path / "x.csv").read_text().splitlines()[0] == "value"
    assert "leave out --range" in trace(*read, "--range", "0-9").err
    assert "there is no column nothing" in trace(*read, "--columns", "nothing").err
    ended = trace("read", "large", "--token-file", "stranger.token")
    assert (ended.status, "dataset_not_found" in ended.err) == (1, True)


def test_rows_are_counted(trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    read = ("read", "large", "--token-file", "reader.token")
    assert trace(*read).out.splitlines()[-1] == "(10 of 30 rows)"
    assert trace(*read, "--head", "10000").out.splitlines()[-1] == "(30 rows)", "the most that it shows"
    assert trace(*read, "--head", "30").out.splitlines()[-1] == "(30 rows)"
    monkeypatch.setattr(dataset_rows, "MOST_COUNTED", 19)
    monkeypatch.setattr(row_table, "MOST_COUNTED", 19)
    assert trace(*read).out.splitlines()[-1] == "(10 of more than 19 rows)", "counting has an end"


def test_standard_output(trace: Trace, tmp_path: Path) -> None:
    read = ("read", "large", "--token-file", "reader.token", "--output", "-")
    assert sorted(trace(*read, "--columns", "key").out.split()) == sorted(["key", *map(str, range(30))])
    lines = trace(*read, "--format", "jsonl").out.splitlines()
    assert {json.loads(line)["value"] for line in lines} == {f"v{key}" for key in range(30)}
    for options, words in (
        (("--output", "x.csv", "--format", "csv"), "--format is for `--output -`"),
        (("--format", "csv"), "--format is for --output"),
        (("--hex",), "--hex is for --output"),
        (("--output", "-", "--head", "3"), "leave out --head"),
        (("--output", "-", "--json"), "leave out --json"),
        (("--output", "x.xlsx"), ".parquet, .csv, .json, .jsonl, .arrow, .feather, received x.xlsx"),
        (("--output", "/dev/null.csv/x.csv"), "there is no directory"),
    ):
        ended = trace(*read[:-2], *options)
        assert ended.status != 0
        assert words in ended.err
    assert not list(tmp_path.glob("x.*"))


def test_a_table_is_exported_whole_each_time(trace: Trace, tmp_path: Path) -> None:
    for _ in range(2):
        ended = trace("export", "large", "x", "--token-file", "reader.token")
        assert (ended.status, ended.err) == (0, "")
        assert "1 unit in x: 1 fetched" in ended.out
    table = pq.read_table(tmp_path / "x/unit=table/part-00000.parquet", partitioning=None)
    assert sorted(table["key"].to_pylist()) == list(range(30))
    assert "leave out the range" in trace("export", "large", "x", "--token-file", "reader.token", "--range", "0-9").err


def test_a_stream_that_breaks_off_is_no_file(trace: Trace, tables: SwitchedTables, tmp_path: Path) -> None:
    def broken() -> Iterator[bytes]:
        yield b"some rows"
        raise StoreUnavailableError

    def away() -> Iterator[bytes]:
        yield from map(fail, [b"rows"])

    def fail(_rows: bytes) -> bytes:
        raise StoreUnavailableError("Postgres data does not answer.")

    for instead, code in ((broken, "the connection was closed"), (away, "store_unavailable")):
        tables.instead = instead
        ended = trace("read", "large", "--token-file", "reader.token", "--output", "x.csv")
        assert ended.status == 1
        assert code in ended.err
        assert not (tmp_path / "x.csv").exists()


def test_who_reads_slowly_or_goes_away_holds_nobody_else(
    flow: BufferFlow, tables: SwitchedTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = flow.harness
    gate, closed = threading.Event(), threading.Event()

    def waiting() -> Iterator[bytes]:
        try:
            yield b"begun"
            gate.wait(60)
            yield b"rest"
        finally:
            closed.set()

    tokens = {org: user_token(harness, org=org, roles=["reader"]) for org in ("acme", "other")}
    streams_of_orgs: list[dict[Hashable, int]] = []
    enter = FairSlots._enter

    async def watched_enter(slots: FairSlots, org: Hashable, patient: bool) -> None:
        if slots._what == "reads of tables":
            streams_of_orgs.append(slots._running)
        await enter(slots, org, patient)

    monkeypatch.setattr(FairSlots, "_enter", watched_enter)

    async def read(org: str, sink: Callable[[bytes], object]) -> HttpReply:
        headers = [("Authorization", f"Bearer {tokens[org]}")]
        return await harness.clients["public"].request("POST", PATH, body=b"{}", headers=headers, sink=sink)

    async def race() -> tuple[int, bytes]:
        got: list[bytes] = []
        begun = asyncio.Event()
        tables.instead = waiting

        def take(part: bytes) -> None:
            got.append(part)
            begun.set()

        first = asyncio.create_task(read("acme", take))
        await begun.wait()
        tables.instead = None
        second = asyncio.create_task(read("acme", lambda part: None))  # waits for its turn
        while len(streams_of_orgs) < 2:
            await asyncio.sleep(0.01)
        assert list(streams_of_orgs[-1].values()) == [1]
        parts: list[bytes] = []
        other = await read("other", parts.append)
        assert not first.done()
        assert not second.done()
        gate.set()
        assert (await first).status == (await second).status == 200
        assert got == [b"begun", b"rest"]
        return other.status, b"".join(parts)

    BufferFlow(harness, flow.data_dsn, "other").publish([{"key": 1}])
    BufferFlow(harness, flow.data_dsn, "other").sink()
    status, body = harness.run(race())
    assert status == 200
    assert pa.ipc.open_stream(body).read_all()["key"].to_pylist() == [1]
    assert closed.wait(10)

    gate.clear()
    closed.clear()

    async def leave() -> None:
        begun = asyncio.Event()
        tables.instead = waiting
        task = asyncio.create_task(read("acme", lambda part: begun.set()))
        await begun.wait()
        task.cancel()
        gate.set()
        tables.instead = None
        assert (await read("acme", lambda part: None)).status == 200

    harness.run(leave())
    assert closed.wait(10), "its place and its connection to the database are free"

    closed.clear()
    monkeypatch.setattr(rows_view, "STREAM_SECONDS", 0.2)

    def endless() -> Iterator[bytes]:
        try:
            while True:
                yield b"x" * 2**20
        finally:
            closed.set()

    async def overdue() -> None:
        tables.instead = endless
        with pytest.raises(DispatcherUnavailableError):
            await read("acme", lambda part: None)

    harness.run(overdue())
    wait_until(closed.is_set, "the stream to be abandoned at its deadline")
