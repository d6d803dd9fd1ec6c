"""Commands from another machine: all that it has of the stack is an address, a CA certificate and a token."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.cli.conftest import Ended, Trace, run_trace
from tests.http.support import user_token
from tests.query import batch_support
from tests.query.support import FILES, ServiceHarness
from tests.routing.support import Flow
from tracelake.client import query
from tracelake.client.contexts import ContextStore
from tracelake.client.python_client import Client
from tracelake.client.stack import CONTEXT_VARIABLE, HOME_VARIABLE, find_stack

LARGE = "SELECT a.block_number AS n FROM blocks a, blocks b, blocks c, blocks d ORDER BY 1"
"""160,000 rows, which no reply holds."""

READS = [
    ["whoami"],
    ["dags"],
    ["dags", "files"],
    ["jobs", "files"],
    ["sources"],
    ["tasks"],
    ["tasks", "{task}"],
    ["datasets"],
    ["datasets", "blocks"],
    ["checks"],
    ["lineage", "blocks"],
    ["events"],
    ["dlq", "list"],
    ["why", "blocks"],
    ["why", "{task}"],
    ["pressure"],
    ["top", "--json"],
    ["audit"],
    ["audit", "--queries"],
    ["quota"],
    ["udf", "list"],
    ["docs"],
    ["read", "blocks"],
    ["read", "blocks", "--output", "blocks.csv"],
    ["query", "SELECT count(*) AS n FROM blocks"],
    ["query", "--list"],
    ["token", "list"],
    ["status"],
    ["operators"],
    ["graph", "files"],
    ["plot", "SELECT block_number, count(*) AS n FROM blocks GROUP BY 1"],
    ["export", "blocks", "exported"],
    ["logs", "files/read"],
    ["remove", "--list"],
]
CHANGES = [
    ["trigger", "files/src", "--range", "20-29"],
    ["pause", "files/src"],
    ["resume", "files/src"],
    ["cancel", "{task}"],
    ["retry", "{task}"],
    ["rebuild", "files/write"],
    ["udf", "new", "shouts", "--language", "python"],
    ["udf", "push", "shouts"],
    ["deploy", "other.yaml"],
    ["token", "create", "--role", "reader", "--subject", "eve", "--out", "eve.token"],
    ["token", "revoke", "--subject", "eve"],
]
OF_THE_MACHINE = [
    ["up"],
    ["down"],
    ["backup", "x.dump"],
    ["restore", "x.dump", "--yes"],
    ["keys", "list"],
    ["secrets", "list"],
    ["gc"],
    ["outbox", "list"],
    ["quota", "list"],
    ["worker"],
    ["token", "--role", "reader", "--subject", "x"],
]


@pytest.fixture
def laptop(
    service: ServiceHarness, flow: Flow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[dict[str, str]]:
    """The environment of another machine, and the files that its user was given."""
    harness = service.dispatcher
    harness.query_url = service.urls["query"]
    (tmp_path / "ca.pem").write_bytes(harness.tls.ca.read_bytes())
    (tmp_path / "me.token").write_text(user_token(harness, org=flow.org, subject="ann", roles=["admin"]))
    for variable in [name for name in os.environ if name.startswith("TRACE_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.chdir(tmp_path)
    yield {"url": f"https://{harness.clients['public']._authority}", "home": str(tmp_path)}
    harness.query_url = None


@pytest.fixture
def trace(laptop: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Trace:
    run = run_trace(monkeypatch, capsys)
    ended = run("login", laptop["url"], "--ca", "ca.pem", "--token", "me.token", "--name", "lab")
    assert ended.status == 0, ended
    for file in ("ca.pem", "me.token"):
        Path(file).unlink()
    return run


def ran(trace: Trace, *words: str) -> Ended:
    ended = trace(*words)
    assert ended.status == 0, (words, ended)
    return ended


@pytest.fixture
def task(flow: Flow) -> str:
    return str(flow.tasks("read", "Queued")[0]["task_id"])


def test_every_command_of_users_works_from_another_machine(trace: Trace, task: str, laptop: dict[str, str]) -> None:
    Path("other.yaml").write_text(FILES.replace("name: files", "name: other").replace("blocks:", "other_blocks:"))
    for words in [*READS, *CHANGES]:
        ended = trace(*(word.format(task=task) for word in words))
        expected = {0, 1} if words[0] == "rebuild" else {0}
        assert ended.status in expected, (words, ended)
        assert "Traceback" not in ended.err
        if words[0] == "rebuild":
            assert "/stack.json" not in ended.err, ended
    assert not (Path(laptop["home"]) / ".trace").exists()
    assert Path("blocks.csv").read_text().count("\n") == 21


def test_what_runs_on_the_machine_of_the_stack_says_so(trace: Trace, laptop: dict[str, str]) -> None:
    Path("x.dump").touch()
    for words in OF_THE_MACHINE:
        ended = trace(*words)
        assert ended.status == 1, (words, ended)
        assert "your context is lab" in ended.err.replace("\n", " "), (words, ended)
    assert not (Path(laptop["home"]) / ".trace").exists()


def test_the_status_of_a_stack_elsewhere(trace: Trace, laptop: dict[str, str]) -> None:
    shown = ran(trace, "status").out
    assert f"The context lab: {laptop['url']}\n" in shown
    assert "It answers.\nWork: 1 DAG, " in shown
    Path("no.token").write_text("none")
    refused = trace("status", "--token-file", "no.token", "--json")
    assert refused.status == 1
    shown = trace("status", "--token-file", "no.token").out
    assert "It does not serve you: credential_malformed: The credential cannot be parsed.\n" in shown
    assert f"log in again: trace login {laptop['url']} --token FILE --name lab\n" in shown
    reply = json.loads(refused.out)
    assert (reply["context"], reply["ready"]) == ("lab", False)
    assert reply["work"]["error"].startswith("credential_malformed: ")


def test_large_results_come_through_the_query_service(trace: Trace, service: ServiceHarness) -> None:
    """The addresses of the store lead nowhere from here: `https://store.test`."""
    ran(trace, "query", LARGE, "--output", "large.parquet")
    assert pq.read_table("large.parquet").num_rows == 160_000
    ran(trace, "query", LARGE, "--output", "large.jsonl")
    assert Path("large.jsonl").read_text().count("\n") == 160_000
    assert query(LARGE).num_rows == 160_000
    assert "store.test" not in ran(trace, "query", LARGE).out


def test_an_export_is_its_callers_alone(trace: Trace, service: ServiceHarness, flow: Flow) -> None:
    from tracelake.wire.contract import Listener

    export_id = service.query(flow.org, LARGE).body["download"]["export_id"]

    def status(org: str, subject: str) -> int:
        headers = list(service.user_headers(org, subject).items())
        path = f"/v1/query-exports/{export_id}"
        reply: Any = service.dispatcher.run(service.clients[Listener.QUERY].request("GET", path, headers=headers))
        return int(reply.status)

    assert [status(flow.org, "ann"), status(flow.org, "bob"), status("other", "ann")] == [200, 404, 404]


def test_the_result_of_a_batch_query_comes_through_the_query_service(trace: Trace, flow: Flow) -> None:
    person = batch_support.Person(flow)
    query_id = ran(trace, "query", "--batch", "--detach", "SELECT count(*) AS n FROM blocks").out.strip()
    task = person.task_of(query_id)
    lease = batch_support.claimed(person, task)
    assert batch_support.write_result(person, task, lease).status == 200
    ran(trace, "query", "--status", query_id, "--output", "batch.parquet")
    assert Path("batch.parquet").read_bytes() == b"_query_results_0_0.abc.parquet"
    assert query_id in ran(trace, "query", "--list").out


def test_a_process_of_its_own_needs_nothing_but_its_context(trace: Trace, laptop: dict[str, str]) -> None:
    environment = {"HOME": laptop["home"], "PATH": os.defpath}
    for words in (["whoami", "--json"], ["query", "SELECT count(*) AS n FROM blocks", "--json"]):
        command = [sys.executable, "-m", "tracelake", *words]
        done = subprocess.run(command, env=environment, cwd=laptop["home"], capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rows"] == [[20]]


def test_a_revoked_token_ends_at_both_services(trace: Trace, laptop: dict[str, str]) -> None:
    made = json.loads(ran(trace, "token", "create", "--role", "reader", "--subject", "bob", "--json").out)
    Path("bob.token").write_text(made["token"])
    asked = ["query", "SELECT count(*) AS n FROM blocks", "--token-file", "bob.token"]
    ran(trace, *asked)
    ran(trace, "token", "revoke", made["row"]["token_id"])
    assert "credential_revoked" in trace("dags", "--token-file", "bob.token").err
    # The Query Service may have read the list a moment ago: it reads it again within a second.
    refused = next((ended for ended in (trace(*asked) for _ in range(500)) if ended.status), None)
    assert refused is not None
    assert "credential_revoked" in refused.err


def test_a_limited_token_queries_its_datasets(trace: Trace, flow: Flow, service: ServiceHarness) -> None:
    for dag, expected in (("files", 0), ("elsewhere", 1)):
        out = f"{dag}.token"
        ran(trace, "token", "create", "--role", "reader", "--subject", "bob", "--dag", dag, "--out", out)
        ended = trace("query", "SELECT count(*) AS n FROM blocks", "--token-file", out)
        assert ended.status == expected, ended
        batch = trace("query", "--batch", "--detach", "SELECT count(*) AS n FROM blocks", "--token-file", out)
        assert batch.status == expected, batch
        results = trace("query", "SELECT count(*) AS n FROM _check_results", "--token-file", out)
        assert "query_unknown_relation" in results.err
    assert "query_unknown_relation" in ended.err
    more = ("--dag", "elsewhere", "--read-dag", "files", "--out", "more.token")
    ran(trace, "token", "create", "--role", "writer", "--subject", "bob", *more)
    for words in (["query"], ["query", "--batch", "--detach"]):
        ran(trace, *words, "SELECT count(*) AS n FROM blocks", "--token-file", "more.token")
    query_id = ran(trace, "query", "--batch", "--detach", "SELECT 1 AS n FROM blocks", "--token-file", "files.token")
    other = trace("query", "--status", query_id.out.strip(), "--token-file", "elsewhere.token")
    assert "query_not_found" in other.err, "the same person, by a token that does not reach the dataset"


def test_the_environment_and_options_choose_the_stack(trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_stack().context == "lab"
    assert "no stack runs" in trace("dags", "--home", "elsewhere").err
    monkeypatch.setenv(HOME_VARIABLE, "elsewhere")
    assert "no stack runs" in trace("dags").err, "a home that is named comes before the current context"
    assert ran(trace, "dags", "--context", "lab")
    monkeypatch.setenv(CONTEXT_VARIABLE, "lab")
    assert ran(trace, "dags"), "and a context that is named before a home"
    assert "no stack runs" in trace("dags", "--context", "local").err
    assert "give one of the two" in trace("dags", "--context", "lab", "--home", "elsewhere").err
    assert "there is no context 'other'" in trace("dags", "--context", "other").err
    monkeypatch.delenv(CONTEXT_VARIABLE)
    monkeypatch.delenv(HOME_VARIABLE)
    ran(trace, "context", "use", "local")
    assert "no stack runs" in trace("dags").err
    ran(trace, "context", "use", "lab")
    assert json.loads(ran(trace, "context", "show", "--json").out)["org"].startswith("queried")
    monkeypatch.setenv("TRACE_TOKEN", "of another stack")
    assert ran(trace, "dags"), "the token of a context is its own"
    ran(trace, "context", "remove", "lab")
    assert ContextStore.default().names() == []


def test_the_cas_of_the_machine_do_without_a_file(
    laptop: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = run_trace(monkeypatch, capsys)
    login = ("login", laptop["url"], "--token", "me.token", "--name", "lab")
    refused = trace(*login)
    assert refused.status == 1
    assert "its certificate is not of a CA that this machine trusts" in refused.err
    assert refused.err.endswith("or name the CA certificate of the stack with --ca\n")
    assert not (Path(laptop["home"]) / ".config").exists()
    with monkeypatch.context() as machine:
        machine.setenv("SSL_CERT_FILE", str(Path("ca.pem").absolute()))
        assert ran(trace, *login)
        assert "blocks" in ran(trace, "datasets").out
        assert ran(trace, "query", "SELECT count(*) FROM blocks")
        ran(trace, "read", "blocks", "--output", "blocks.csv")
        with Client(laptop["url"], token_file="me.token") as client:
            assert "blocks" in [dataset.name for dataset in client.datasets()]
            assert client.query("SELECT 1 AS one").to_arrow().num_rows == 1
    assert trace("datasets").status == 1, "which verify every call"


def test_a_login_that_fails_keeps_nothing(
    laptop: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = run_trace(monkeypatch, capsys)
    Path("bad.token").write_text("not a token\n")
    Path("wrong.token").write_text("e30.e30.e30\n")
    Path("empty.pem").touch()
    good = {"url": laptop["url"], "ca": "ca.pem", "token": "me.token", "name": "lab"}
    for wrong in (
        {"token": "bad.token"},
        {"token": "wrong.token"},
        {"ca": "empty.pem"},
        {"url": laptop["url"].replace("https", "http")},
        {"url": "https://127.0.0.1:1"},
        {"name": "local"},
        {"name": "../up"},
    ):
        given = good | wrong
        ended = trace("login", given["url"], "--ca", given["ca"], "--token", given["token"], "--name", given["name"])
        assert ended.status != 0, wrong
        assert "Traceback" not in ended.err
    assert not (Path(laptop["home"]) / ".config").exists()
