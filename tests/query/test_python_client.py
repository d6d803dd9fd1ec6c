"""`tracelake.Client` against a real Dispatcher and a real Query Service, as somebody with addresses and a token."""

import asyncio
import importlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from tests.http.support import user_token
from tests.query.person import Person, person_of
from tests.query.support import FILES, blocks_table, commit_blocks, parquet
from tests.support.dispatcher import DispatcherHarness
from tests.support.postgres import TestCluster
from tracelake import Client, TraceError
from tracelake.client.user import UserClient
from tracelake.wire.query import ParameterValue

EMPTY = """
name: notes
defaults: {runtime: ecs_platform}
jobs:
  - {name: src, activation: source, source: {kind: manual}}
  - {name: first, activation: reactive, operator: noop, inputs: [{from: {job: src}}]}
  - {name: second, activation: reactive, operator: noop, inputs: [{from: {job: first}}]}
"""


@pytest.fixture(scope="module")
def person(
    harness: DispatcherHarness, cluster: TestCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Person]:
    """The org has `blocks` of the blocks 0 to 9 and 10 to 19, and `none` without any."""
    with person_of(harness, cluster, tmp_path_factory) as someone:
        someone.flow.deploy(FILES)
        for start in (0, 10):
            commit_blocks(someone.flow, start, start + 9, parquet(blocks_table(start, start + 9)))
        yield someone


@pytest.fixture
def client(person: Person, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    monkeypatch.delenv("TRACE_TOKEN", raising=False)
    with Client(home=person.home) as client:
        yield client


@pytest.fixture
def writer(person: Person) -> Iterator[Client]:
    token = user_token(person.flow.harness, org=person.flow.org, subject="ann", roles=["reader", "writer"])
    stack = person.flow.harness
    with Client(f"https://{stack.clients['public']._authority}", ca_file=stack.tls.ca, token=token) as client:
        yield client


def numbers(rows: Any) -> list[int]:
    return [row["block_number"] for row in rows]


def test_rows_of_a_dataset(client: Client) -> None:
    rows = client.read("blocks")
    assert rows.schema == blocks_table(0, 0).schema
    assert rows.to_arrow() == blocks_table(0, 19)
    assert rows.to_arrow() == blocks_table(0, 19), "as often as one likes"
    assert list(rows) == blocks_table(0, 19).to_pylist()
    assert [batch.num_rows for batch in rows.batches()] == [10, 10], "file by file"
    assert rows.reader().read_all() == blocks_table(0, 19)
    assert numbers(client.read("blocks", range=(12, 13))) == list(range(10, 20)), "whole units"
    assert numbers(client.read("blocks", range="0-3", limit=3)) == [0, 1, 2]
    assert client.read("blocks", columns=["value", "block_number"], limit=1).to_arrow().to_pylist() == [
        {"value": str(2**200), "block_number": 0}
    ]


def test_a_name_that_nothing_has_suggests_another(client: Client) -> None:
    for call in (client.read, client.dataset, client.why, lambda name: client.export(name, "unused")):
        with pytest.raises(TraceError, match=r"There is no dataset `block`\. Did you mean `blocks`\?") as error:
            call("block")
        assert error.value.code == "dataset_not_found"


@pytest.mark.parametrize("range_", [("2026-03-02", 4), (0.5, 2), 7, "a-b", ("0", "9"), (3, 1), (1, 2, 3)])
def test_a_range_that_is_none_names_the_argument(client: Client, range_: Any) -> None:
    for call in (lambda: client.read("blocks", range=range_), lambda: client.trigger("files/src", range=range_)):
        with pytest.raises(ValueError, match=r"^range: "):
            call()


def test_libraries_get_the_same_rows(client: Client) -> None:
    rows, expected = client.read("blocks", columns=["block_number", "hash", "value"]), blocks_table(0, 19)
    expected = expected.select(["block_number", "hash", "value"])
    assert rows.to_polars().to_arrow().cast(expected.schema) == expected
    assert rows.to_pandas()["value"].tolist() == expected["value"].to_pylist()
    assert rows.to_duckdb().aggregate("count(*), max(value)").fetchall() == [(20, str(2**200 + 19))]
    with duckdb.connect() as connection:
        assert rows.to_duckdb(connection).filter("block_number > 17").fetchall() == [
            tuple(row.values()) for row in expected.slice(18).to_pylist()
        ]


def test_a_library_that_is_missing(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def import_module(name: str) -> Any:
        raise ImportError(name)

    rows = client.query("SELECT 1 AS one")
    monkeypatch.setattr(importlib, "import_module", import_module)
    with pytest.raises(TraceError, match="this needs polars, which is not installed: pip install polars") as error:
        rows.to_polars()
    assert (error.value.code, error.value.details) == ("library_missing", {"library": "polars"})


def test_queries(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = client.query("SELECT block_number FROM blocks WHERE block_number > $low ORDER BY 1", {"low": 16})
    assert rows.to_arrow().to_pydict() == {"block_number": [17, 18, 19]}
    assert numbers(rows) == [17, 18, 19]
    exact = client.query("SELECT $n AS n", {"n": ParameterValue(type="uint256", value=str(2**256 - 1))})
    assert next(iter(exact)) == {"n": str(2**256 - 1)}
    large = client.query("SELECT range AS n FROM range(3_000_000)")
    assert sum(batch.num_rows for batch in large.batches()) == 3_000_000, "downloaded, beyond what a reply holds"
    with pytest.raises(TraceError) as error:
        client.query("SELECT nothing FROM blocks")
    assert error.value.code == "query_unknown_column"


def test_inside_a_running_event_loop(client: Client) -> None:
    async def cell() -> list[int]:
        return numbers(client.read("blocks", limit=2)) + numbers(client.query("SELECT 7 AS block_number"))

    assert asyncio.run(cell()) == [0, 1, 7]


def test_threads_share_a_client(client: Client) -> None:
    with ThreadPoolExecutor(8) as threads:
        results = list(threads.map(lambda _: numbers(client.read("blocks")), range(16)))
    assert results == [list(range(20))] * 16


def test_what_there_is(client: Client, person: Person) -> None:
    assert [row.name for row in client.datasets() if row.published] == ["blocks"]
    detail = client.dataset("blocks")
    assert (detail.dataset.dag, detail.content and detail.content.units) == ("files", 2)
    tasks = client.tasks(dag="files", job="write", limit=1)
    assert [(task.job, task.status) for task in tasks] == [("write", "Completed")]
    assert client.task(tasks[0].task_id).task == tasks[0]
    assert client.why("blocks").kind == "dataset"
    assert client.why("files/write").kind == "job"
    assert client.why(tasks[0].task_id).kind == "task"


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (lambda client: client.read("nothing"), "dataset_not_found"),
        (lambda client: client.read("blocks", columns=["x"]).to_arrow(), "column_not_found"),
        (lambda client: client.dataset("../x"), "dataset_not_found"),
        (lambda client: client.why("files/nothing"), "job_not_found"),
        (lambda client: client.deploy("/nothing.yaml"), "document_missing"),
        (lambda client: client.trigger("files/src", range="0-9"), "role_forbidden"),
    ],
)
def test_errors_have_codes(client: Client, call: Any, code: str) -> None:
    with pytest.raises(TraceError) as error:
        call(client)
    assert error.value.code == code


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.read("blocks", range="9-0"),
        lambda client: client.read("blocks", limit=0),
        lambda client: client.trigger("src", range="0-9"),
        lambda client: client.trigger("files/src"),
        lambda _client: Client(ca_file="x"),
        lambda _client: Client("https://localhost", token="x", token_file="y"),
    ],
)
def test_wrong_arguments(client: Client, call: Any) -> None:
    with pytest.raises(ValueError):
        call(client)


def test_no_stack_and_no_token(tmp_path: Path, person: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    for code, arguments in (
        ("no_stack", {"home": tmp_path}),
        ("credential_missing", {"url": "https://localhost:1"}),
    ):
        monkeypatch.delenv("TRACE_TOKEN", raising=False)
        with pytest.raises(TraceError) as error:
            Client(**arguments)
        assert error.value.code == code
    before = threading.active_count()
    client = Client(home=person.home)
    client.datasets()
    client.close()
    client.close()
    assert threading.active_count() == before
    with pytest.raises(TraceError) as error:
        client.datasets()
    assert error.value.code == "client_closed"


def test_a_call_that_runs_while_the_client_is_closed(person: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = threading.Event()

    async def endless(_client: UserClient) -> None:
        begun.set()
        await asyncio.Event().wait()

    client = Client(home=person.home)
    with ThreadPoolExecutor(1) as thread:
        call = thread.submit(client._call, endless)
        assert begun.wait(60)
        client.close()
        with pytest.raises(TraceError, match="closed while the call ran"):
            call.result(60)


def test_a_child_process_needs_a_client_of_its_own(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    client.datasets()
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: 1)  # the thread that runs the calls is not there after a fork
        with pytest.raises(TraceError, match="belongs to the process that forked this one"):
            client.datasets()


def test_another_org_sees_nothing(person: Person) -> None:
    harness = person.flow.harness
    token = user_token(harness, org="stranger", roles=["reader"])
    with Client(f"https://{harness.clients['public']._authority}", ca_file=harness.tls.ca, token=token) as client:
        with pytest.raises(TraceError) as error:
            client.read("blocks")
        assert error.value.code == "dataset_not_found"
        with pytest.raises(TraceError, match="runs no Query Service") as error:
            client.query("SELECT 1")
        assert error.value.code == "no_query_service"


# --- work


def test_deploy_trigger_and_wait(writer: Client, person: Person, tmp_path: Path) -> None:
    plan = writer.deploy(EMPTY, plan=True)
    assert (plan.state, [job.job for job in plan.plan.jobs]) == ("Planned", ["src", "first", "second"])
    path = tmp_path / "notes.yaml"
    path.write_text(EMPTY)
    assert writer.deploy(path).state == "Active"
    assert writer.deploy(str(path)).duplicate
    with pytest.raises(TraceError) as invalid:
        writer.deploy(EMPTY.replace("noop", "nothing"), plan=True)
    assert invalid.value.code == "dag_invalid"
    assert len(invalid.value.details["problems"]) == 2

    work = writer.trigger("notes/src", range=(0, 9), key="mine", wait=False)
    assert len(work.task_ids) == 1
    assert writer.trigger("notes/src", range="0-9", key="mine", wait=False).reply.duplicate
    with pytest.raises(TimeoutError, match="has not ended within 0 seconds") as late:
        writer.wait(work, timeout=0)
    assert getattr(late.value, "code", None) == "wait_timeout"

    with ThreadPoolExecutor(1) as waiting:
        finished = waiting.submit(writer.wait, work, timeout=60)
        for job in ("first", "second"):
            (task,) = person.flow.tasks(job, "Queued")
            assert not finished.done()
            person.flow.pass_on(task["task_id"])
        assert finished.result().done == 2, "and all that follows"


def test_a_failed_task_is_an_error(writer: Client, person: Person) -> None:
    writer.deploy(EMPTY.replace("name: notes", "name: failing"))
    work = writer.trigger("failing/src", range="0-9", wait=False)
    (task_id,) = work.task_ids
    person.flow.complete(
        str(task_id), person.flow.claim(str(task_id)), status="Failed", error_message="no rows", retryable=False
    )
    with pytest.raises(TraceError, match="no rows") as error:
        writer.wait(work)
    assert error.value.code == "tasks_failed"
    assert error.value.details == {"task_ids": [str(task_id)], "failed": 1, "dead_letters": 0}


def test_importing_the_package_costs_nothing() -> None:
    """Sandboxes import it, where the client's libraries are not even installed."""
    script = (
        "import sys, tracelake; print(sorted(name for name in sys.modules"
        " if name.startswith(('tracelake.', 'msgspec', 'pyarrow', 'asyncio', 'rich'))))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    assert not hasattr(sys.modules["tracelake"], "Nothing")
    assert pa.__name__ == "pyarrow"
