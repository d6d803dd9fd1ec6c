"""`trace read` with a token alone, against a real Dispatcher: files come over the public API, and are checked."""

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.cli.conftest import Trace, run_trace
from tests.cli.fake_api import write_stack
from tests.http.support import user_token
from tests.routing.support import Flow, block
from tests.routing.test_files import FILES
from tests.support.dispatcher import DispatcherHarness
from tracelake.client.errors import ClientError
from tracelake.client.python_client import Client
from tracelake.dispatcher.http import user_endpoints
from tracelake.dispatcher.views import files
from tracelake.errors import TraceError
from tracelake.model.locations import MARKER_FORMAT


@pytest.fixture
def harness(state_dsn: str, queue_dsn: str, tmp_path: Path) -> Iterator[DispatcherHarness]:
    running = DispatcherHarness.start(state_dsn, queue_dsn, tmp_path)
    try:
        yield running
    finally:
        running.stop()


@pytest.fixture
def flow(harness: DispatcherHarness) -> Flow:
    """A dataset `blocks` of three units, one of them of two files."""
    flow = Flow(harness, "acme")
    flow.deploy(FILES)
    commit(flow, 0, 9, [0, 5])
    commit(flow, 10, 19, [10])
    commit(flow, 30, 39, [30])
    return flow


def commit(flow: Flow, start: int, end: int, numbers: list[int], *, counts: bool = False) -> None:
    """A unit with a file for each number, which holds that block. `counts`: the task reports how many rows it wrote."""
    flow.trigger("files", "src", range={"start": start, "end": end})
    task = next(task["task_id"] for task in flow.tasks("write", "Queued"))
    lease = flow.claim(task)
    prefix = lease["task"]["outputs"][0]["storage"]["write_prefix"]
    named = []
    for number in numbers:
        sink = pa.BufferOutputStream()
        pq.write_table(pa.table({"block_number": pa.array([number]), "hash": [b"\x01"]}), sink)
        body = sink.getvalue().to_pybytes()
        name = f"blocks_{number:02}.parquet"
        flow.harness.run(flow.harness.objects.put(prefix + name, body))
        named.append({"name": name, "size": len(body), "sha256": hashlib.sha256(body).hexdigest()})
    flow.harness.run(flow.harness.objects.put(prefix + "_SUCCESS", MARKER_FORMAT + msgspec.json.encode(named) + b"}"))
    bucket, _, key = prefix.removeprefix("s3://").partition("/")
    ref = {"scheme": "s3", "bucket": bucket, "prefix": key, "glob": "*.parquet"}
    published = flow.event("files", "write", range_start=start, range_end=end) | {"storage_ref": ref}
    event = flow.event("files", "write", **block(start, end))
    output = flow.event("files", "write")
    report = {"outputs": [output | {"row_count": len(numbers)}]} if counts else {}
    flow.complete(task, lease, datasets_published=[published], events=[event], **report)


@pytest.fixture
def trace(flow: Flow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Trace:
    """As somebody on another machine, who was given an address, a CA and a token of a reader."""
    home = tmp_path / "elsewhere"
    home.mkdir()
    harness = flow.harness
    write_stack(home, f"https://{harness.clients['public']._authority}", harness.tls.ca)
    (home / "reader.token").write_text(user_token(harness, org="acme", roles=["reader"]))
    (home / "other.token").write_text(user_token(harness, org="other", roles=["admin", "writer", "reader"]))
    monkeypatch.setenv("TRACE_HOME", str(home))
    monkeypatch.chdir(home)
    monkeypatch.setattr(user_endpoints, "PIECE_BYTES", 100)  # each file is several pieces,
    monkeypatch.setattr(files, "PAGE", 2)  # and the list has two pages
    return run_trace(monkeypatch, capsys)


def blocks(trace: Trace, *options: str) -> list[int]:
    ended = trace("read", "blocks", "--token-file", "reader.token", "--json", *options)
    assert (ended.status, ended.err) in ((0, ""), (0, "1 gap: no unit covers 20-29.\n"))
    return [row["block_number"] for row in json.loads(ended.out)]


def test_rows_come_with_a_token_alone(trace: Trace, tmp_path: Path) -> None:
    assert blocks(trace) == [0, 5, 10, 30]
    assert blocks(trace, "--range", "10-35") == [10, 30]
    assert blocks(trace, "--head", "1", "--columns", "block_number") == [0]
    assert blocks(trace, "--limit", "2") == [0, 5], "as other commands call it"
    ended = trace("read", "blocks", "--token-file", "reader.token", "--output", "x.csv")
    assert ended.out == "4 rows in x.csv.\n"
    assert (tmp_path / "elsewhere/x.csv").read_text().splitlines()[:2] == ["block_number,hash", "0,0x01"]


def test_rows_beyond_the_limit_are_mentioned(trace: Trace) -> None:
    for options, note in (
        (("--range", "0-19", "--head", "1"), "(1 row; there are more)"),
        (("--range", "0-19", "--head", "2"), "(2 rows; there are more)"),
        (("--range", "0-19", "--head", "3"), "(3 rows)"),
        (("--range", "0-19"), "(3 rows)"),
        (("--head", "3"), "(3 rows; there are more)"),
        (("--head", "4"), "(4 rows)"),
    ):
        ended = trace("read", "blocks", "--token-file", "reader.token", *options)
        assert ended.out.splitlines()[-1] == note, options
        assert len(ended.out.splitlines()) == 2 + int(note[1]), options


def test_rows_of_a_range_are_counted_if_all_its_units_are(trace: Trace, flow: Flow) -> None:
    for start in (40, 50, 60, 70):
        commit(flow, start, start + 9, [start, start + 1, start + 2], counts=True)
    for options, note in (
        (("--range", "40-79", "--head", "5"), "(5 of 12 rows)"),  # of two pages
        (("--range", "45-55"), "(6 rows)"),
        (("--range", "45-55", "--head", "1"), "(1 of 6 rows)"),
        (("--range", "30-79", "--head", "5"), "(5 rows; there are more)"),
        (("--head", "5"), "(5 rows; there are more)"),
    ):
        ended = trace("read", "blocks", "--token-file", "reader.token", *options)
        assert ended.out.splitlines()[-1] == note, options


def test_a_given_token_reads_over_the_api_on_the_machine_of_the_stack_too(
    trace: Trace, flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("unused").write_text("the token of services")
    limited = user_token(flow.harness, org="acme", roles=["reader"], dags=["others"])
    Path("limited.token").write_text(limited)
    Path("own.token").write_text(user_token(flow.harness, org="acme", roles=["reader"], dags=["files"]))
    assert blocks(trace) == [0, 5, 10, 30]
    ended = trace("read", "blocks", "--token-file", "own.token", "--json")
    assert [row["block_number"] for row in json.loads(ended.out)] == [0, 5, 10, 30]
    for variable, options in (("", ("--token-file", "limited.token")), (limited, ())):
        monkeypatch.setenv("TRACE_TOKEN", variable)
        for more in ((), ("--output", "x.csv"), ("--range", "0-9")):
            ended = trace("read", "blocks", *options, *more)
            assert (ended.status, ended.out) == (1, "")
            assert "dataset_not_found" in ended.err
    assert not Path("x.csv").exists()


def test_a_range_without_units_has_no_rows(trace: Trace) -> None:
    read = ("read", "blocks", "--token-file", "reader.token", "--range", "20-29")
    assert blocks(trace, "--range", "20-29") == []
    ended = trace(*read)
    assert (ended.status, ended.out) == (0, "No unit of blocks covers this range.\n")


def test_windows_of_time_are_read_by_their_dates(trace: Trace, flow: Flow) -> None:
    read = ("read", "blocks", "--token-file", "reader.token")
    ended = trace(*read, "--range", "1970-01-01")
    assert ended.status == 1
    assert "expected a range of blocks like 1000-2000, received 1970-01-01: blocks has no windows of time" in ended.err
    commit(flow, 3600, 7199, [3600])
    flow.harness.sql(
        """UPDATE dataset_versions SET units = '{"by": "time", "grain": "hour"}'
           WHERE dataset_version = (SELECT current_version FROM datasets WHERE name = 'blocks')"""
    )
    ended = trace(*read, "--json", "--range", "1970-01-01 01:00")
    assert [row["block_number"] for row in json.loads(ended.out)] == [3600]
    ended = trace(*read, "--json", "--range", "1970-01-01T00:00..1970-01-01T01:00")
    assert [row["block_number"] for row in json.loads(ended.out)] == [0, 5, 10, 30, 3600]
    for command in (read, ("export", "blocks", "x", "--token-file", "reader.token")):
        ended = trace(*command, "--range", "1970-01-01")
        assert ended.status == 1
        assert "expected a window like 2026-03-03 13:00, received 1970-01-01" in ended.err
    ended = trace("export", "blocks", "files", "--token-file", "reader.token", "--range", "1970-01-01 01:00")
    assert ended.out.startswith("1 unit in files")
    address = f"https://{flow.harness.clients['public']._authority}"
    with Client(address, ca_file=flow.harness.tls.ca, token_file="reader.token") as client:
        assert client.read("blocks", range="1970-01-01 01:00").to_arrow()["block_number"].to_pylist() == [3600]
        with pytest.raises(ClientError, match="expected a window like"):
            client.read("blocks", range="1970-01")


def test_a_dataset_that_is_still_computed_says_so(trace: Trace, flow: Flow) -> None:
    arguments = ("read", "blocks", "--token-file", "reader.token", "--range", "0-9")
    assert trace(*arguments).err == ""
    flow.trigger("files", "src", range={"start": 40, "end": 49})
    assert trace(*arguments, "--json").err == ""
    for options in ((), ("--output", "x.csv")):
        ended = trace(*arguments, *options)
        assert ended.status == 0
        assert ended.err.startswith("blocks is not complete: "), ended
        assert ended.err.endswith("`trace why blocks` says when it is.\n")
        assert ended.err.count("\n") == 1


def test_rows_are_shown_although_nobody_says_whether_they_are_complete(trace: Trace, flow: Flow) -> None:
    async def refuse(*_: object) -> None:
        raise TraceError("store_unavailable")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(user_endpoints, "why_dataset", refuse)
        ended = trace("read", "blocks", "--token-file", "reader.token", "--range", "0-9")
    assert (ended.status, ended.err) == (0, "")
    assert "2 rows" in ended.out


def test_a_dataset_of_events_says_that_it_holds_no_rows(trace: Trace, flow: Flow) -> None:
    ticks = """
name: clock
defaults: {runtime: ecs_platform}
jobs:
  - {name: tick, activation: source, source: {kind: manual}, operator: noop}
publish:
  ticks: {from: {job: tick}, storage: none}
"""
    flow.deploy(ticks)
    for arguments in (("read", "ticks"), ("read", "ticks", "--output", "x.csv"), ("export", "ticks", "files")):
        ended = trace(*arguments, "--token-file", "reader.token")
        assert (ended.status, ended.out) == (1, "")
        assert ended.err == (
            "error: dataset_without_rows: ticks publishes events only and holds no rows. "
            "Read the dataset of a job that stores rows; `trace datasets` shows the storage of each.\n"
        )
    assert not Path("x.csv").exists()
    assert "events only" in trace("datasets", "--token-file", "reader.token").out


def test_another_org_reads_nothing(trace: Trace) -> None:
    ended = trace("read", "blocks", "--token-file", "other.token")
    assert ended.status == 1
    assert "dataset_not_found" in ended.err


def test_a_forged_file_is_refused(trace: Trace, flow: Flow) -> None:
    """Of the same size and ETag: in this store, the same inode and time."""
    (path,) = (flow.harness.home / "objects").rglob("blocks_10.parquet")
    before = path.stat()
    body = bytearray(path.read_bytes())
    body[10] ^= 1
    with path.open("r+b") as file:
        file.write(body)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert blocks(trace, "--range", "0-9") == [0, 5]
    ended = trace("read", "blocks", "--token-file", "reader.token", "--output", "x.csv")
    assert ended.status == 1
    assert ended.err.startswith("error: content_mismatch")
    assert not Path("x.csv").exists()
    path.write_bytes(b"x" * before.st_size)  # another ETag: the Dispatcher sees it
    assert "content_mismatch" in trace("read", "blocks", "--token-file", "reader.token", "--range", "10-19").err


def test_only_files_of_the_list_are_there(trace: Trace, flow: Flow) -> None:
    harness = flow.harness
    token = {"Authorization": f"Bearer {user_token(harness, org='acme', roles=['reader'])}"}
    listed: Any = harness.call("public", "POST", "/v1/datasets/blocks/files", {}, token).body
    assert "s3://" not in json.dumps(listed)
    size = listed["units"][0]["files"][1]["size"]
    good = f"version={listed['dataset_version']}&start=0&end=9&revision=1&file=1"

    def read(query: str) -> Any:
        return harness.call("public", "GET", f"/v1/datasets/blocks/content?{query}", None, token)

    for change, to, status in (
        ("file=1", "file=2", 404),
        ("revision=1", "revision=2", 404),
        ("end=9", "end=8", 404),
        ("&start=0&end=9", "", 404),
        ("&end=9", "", 422),
        ("file=1", f"file=1&offset={size}", 422),
        ("file=1", "file=1&offset=-1", 422),
    ):
        assert read(good.replace(change, to)).status == status, to
    assert read(f"{good}&offset={size - 1}").status == 200
    token = {"Authorization": f"Bearer {user_token(harness, org='other', roles=['admin'])}"}
    assert read(good).status == 404, "of another org"
