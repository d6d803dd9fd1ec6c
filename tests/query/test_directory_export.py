"""`trace export`: a directory that other tools read, of one moment, brought up to date and never half a unit."""

import fcntl
import hashlib
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import polars as pl
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

from tests.cli.conftest import Trace, run_trace
from tests.http.support import fresh, user_token
from tests.query.person import Person, person_of
from tests.query.support import FILES, blocks_table, parquet
from tests.routing.support import Flow, block
from tests.support.dispatcher import DispatcherHarness
from tests.support.postgres import TestCluster
from tracelake import Client, TraceError
from tracelake.client.content import ApiContent
from tracelake.client.directory_export import MANIFEST, read_manifest
from tracelake.model.locations import MARKER_FORMAT


@pytest.fixture(scope="module")
def person(
    harness: DispatcherHarness, cluster: TestCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Person]:
    with person_of(harness, cluster, tmp_path_factory) as someone:
        someone.flow.deploy(FILES)
        for start in (0, 10):
            commit(someone.flow, start, start + 9, blocks_table(start, start + 9))
        yield someone


def commit(flow: Flow, start: int, end: int, table: pa.Table, job: str = "src") -> None:
    """A unit with one file, whose hash is committed."""
    flow.trigger("files", job, range={"start": start, "end": end})
    task = next(task["task_id"] for task in flow.tasks("write", "Queued"))
    lease, body = flow.claim(task), parquet(table)
    prefix: str = lease["task"]["outputs"][0]["storage"]["write_prefix"]
    named = [{"name": "x.parquet", "size": len(body), "sha256": hashlib.sha256(body).hexdigest()}]
    marker = MARKER_FORMAT + msgspec.json.encode(named) + b"}"
    for name, data in (("x.parquet", body), ("_SUCCESS", marker)):
        flow.harness.run(flow.harness.objects.put(prefix + name, data))
    bucket, _, key = prefix.removeprefix("s3://").partition("/")
    ref = {"scheme": "s3", "bucket": bucket, "prefix": key, "glob": "*.parquet"}
    published = flow.event("files", "write", range_start=start, range_end=end) | {"storage_ref": ref}
    event = flow.event("files", "write", **block(start, end))
    flow.complete(task, lease, datasets_published=[published], events=[event])


@pytest.fixture
def client(person: Person) -> Iterator[Client]:
    with Client(home=person.home) as client:
        yield client


def counts(report: Any) -> tuple[int, int, int]:
    return report.fetched, report.unchanged, report.removed


def rows_of(directory: Path) -> pa.Table:
    """As any reader of Hive's layout sees them."""
    table = pyarrow.dataset.dataset(directory, format="parquet", partitioning="hive").to_table()
    return table.sort_by("block_number")


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if not path.name.startswith((".", "_")))


def test_a_directory_is_made_and_brought_up_to_date(client: Client, person: Person, tmp_path: Path) -> None:
    directory = tmp_path / "blocks"
    report = client.export("blocks", directory)
    assert (counts(report), report.files) == ((2, 0, 0), 2)
    assert names(directory) == ["unit=0-9", "unit=10-19"]
    assert rows_of(directory).drop_columns("unit") == blocks_table(0, 19)
    inodes = {path: path.stat().st_ino for path in directory.glob("*/*")}
    manifest = read_manifest(directory)
    assert [file.path for unit in manifest.units for file in unit.files] == [
        "unit=0-9/part-00000.parquet",
        "unit=10-19/part-00000.parquet",
    ]

    assert counts(client.export("blocks", directory)) == (0, 2, 0)
    changed = blocks_table(10, 19).slice(0, 5)
    commit(person.flow, 10, 19, changed, "write")
    commit(person.flow, 20, 29, blocks_table(20, 29))
    assert counts(client.export("blocks", directory)) == (2, 1, 0), "what changed alone"
    first = directory / "unit=0-9/part-00000.parquet"
    assert first.stat().st_ino == inodes[first]
    assert rows_of(directory)["block_number"].to_pylist() == [*range(15), *range(20, 30)]
    assert counts(client.export("blocks", directory, range=(20, 29))) == (0, 1, 2)
    assert names(directory) == ["unit=20-29"]


def test_tools_read_it(client: Client, tmp_path: Path) -> None:
    client.export("blocks", tmp_path / "x", range="0-9")
    pattern = f"{tmp_path}/x/*/*.parquet"
    relation = duckdb.sql(f"SELECT unit, count(*) FROM read_parquet('{pattern}', hive_partitioning = true) GROUP BY 1")
    assert relation is not None
    assert relation.fetchall() == [("0-9", 10)]
    frame = pl.scan_parquet(pattern, hive_partitioning=True).select("unit", "value").collect()
    assert frame.row(3) == ("0-9", str(2**200 + 3))


def test_files_are_their_owners(client: Client, tmp_path: Path) -> None:
    umask = os.umask(0)
    try:
        client.export("blocks", tmp_path / "x", range="0-9")
    finally:
        os.umask(umask)
    for path in [tmp_path / "x", *(tmp_path / "x").rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


@pytest.mark.parametrize("stop_after", [0, 1])
def test_an_interrupted_run_is_mended(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop_after: int
) -> None:
    directory = tmp_path / "x"
    download, calls = ApiContent.download, 0

    def interrupted(content: ApiContent, file: Any, path: Path) -> None:
        nonlocal calls
        if calls == stop_after:
            path.write_bytes(b"half")
            raise KeyboardInterrupt
        calls += 1
        download(content, file, path)

    with monkeypatch.context() as patch:
        patch.setattr(ApiContent, "download", interrupted)
        with pytest.raises(KeyboardInterrupt):
            client.export("blocks", directory, range="0-19")
    assert not list(directory.glob(".new-*"))
    with pytest.raises(TraceError) as error:
        read_manifest(directory)
    assert error.value.code == "export_incomplete"
    (directory / f".new-{'0' * 16}").mkdir()  # as a power cut leaves it
    assert counts(client.export("blocks", directory, range="0-19")) == (2 - stop_after, stop_after, 0)
    assert read_manifest(directory).complete
    assert not list(directory.glob(".new-*"))


def test_a_file_that_was_damaged_is_fetched_again(client: Client, tmp_path: Path) -> None:
    directory = tmp_path / "x"
    client.export("blocks", directory, range="0-9")
    file = directory / "unit=0-9/part-00000.parquet"
    file.write_bytes(file.read_bytes()[:-1])
    assert counts(client.export("blocks", directory, range="0-9")) == (1, 0, 0)
    assert pq.read_table(file) == blocks_table(0, 9)


def test_what_is_not_ours_stays(client: Client, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    for directory, code in (
        (tmp_path, "directory_not_empty"),
        (tmp_path / "mine", "directory_missing"),
        (tmp_path / "no" / "x", "directory_missing"),
    ):
        with pytest.raises(TraceError) as error:
            client.export("blocks", directory)
        assert error.value.code == code
    assert names(tmp_path) == ["mine"]
    directory = tmp_path / "x"
    client.export("blocks", directory, range="0-9")
    (directory / "notes.txt").write_text("mine")
    (directory / "unit=mine").mkdir()
    client.export("blocks", directory, range="10-19")
    assert names(directory) == ["notes.txt", "unit=10-19", "unit=mine"]
    manifest = directory / MANIFEST
    manifest.write_text(manifest.read_text().replace('"blocks"', '"other"'))
    with pytest.raises(TraceError, match="is a copy of other"):
        client.export("blocks", directory)


def test_one_run_at_a_time(client: Client, tmp_path: Path) -> None:
    directory = tmp_path / "x"
    client.export("blocks", directory, range="0-9")
    with (directory / ".trace_export.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(TraceError, match="wait for it to end"):
            client.export("blocks", directory)
    client.export("blocks", directory, range="0-9")


def test_a_column_named_unit(harness: DispatcherHarness, person: Person, client: Client, tmp_path: Path) -> None:
    """The column of the directories has another name."""
    flow = Flow(harness, fresh("units"))
    flow.deploy(FILES)
    table = pa.table({"block_number": [1], "unit": ["wei"]})
    commit(flow, 0, 9, table)
    commit(flow, 10, 19, table)
    token = user_token(harness, org=flow.org, roles=["reader"])
    with Client(f"https://{harness.clients['public']._authority}", ca_file=harness.tls.ca, token=token) as other:
        for expected in ((2, 0, 0), (0, 2, 0)):
            assert counts(other.export("blocks", tmp_path / "x")) == expected
    assert names(tmp_path / "x") == ["dataset_unit=0-9", "dataset_unit=10-19"]
    assert rows_of(tmp_path / "x")["unit"].to_pylist() == ["wei", "wei"]


def test_the_command(
    person: Person, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRACE_HOME", str(person.home))
    monkeypatch.delenv("TRACE_TOKEN", raising=False)
    monkeypatch.chdir(tmp_path)
    trace: Trace = run_trace(monkeypatch, capsys)
    ended = trace("export", "blocks", "x", "--range", "0-9")
    assert (ended.status, ended.err) == (0, "")
    assert ended.out.startswith("1 unit in x: 1 fetched, 0 unchanged, 0 removed; 1 file, ")
    report = json.loads(trace("export", "blocks", "x", "--range", "0-9", "--json").out)
    assert (report["fetched"], report["unchanged"]) == (0, 1)
    ended = trace("export", "nothing", "y")
    assert (ended.status, "dataset_not_found" in ended.err) == (1, True)
    assert names(tmp_path) == ["x"]
