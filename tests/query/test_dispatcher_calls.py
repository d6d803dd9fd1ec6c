"""What the Query Service asks the Dispatcher: relations, inputs of tasks, keys of users, and the audit of queries."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from tests.api.support import Seed, User
from tests.http.support import fresh, user_token
from tests.routing.support import Flow
from tests.routing.test_files import FILES, write
from tests.support.dispatcher import DispatcherHarness, Reply, fence
from tracelake.model.ids import new_id
from tracelake.tokens.jwks import JwksKeys
from tracelake.tokens.users import UserVerifier

SCHEMA = {
    "columns": [
        {"name": "holder", "type": "text", "nullable": False},
        {"name": "balance", "type": "uint256", "nullable": True},
    ],
    "key": ["holder"],
}


def relations(harness: DispatcherHarness, org: str) -> list[Any]:
    reply = harness.service("POST", "/internal/query-relations", {"org": org})
    assert reply.status == 200, reply
    listed: list[Any] = reply.body["relations"]
    return listed


def test_published_datasets_of_the_org_with_their_current_generation(harness: DispatcherHarness) -> None:
    seed, stranger = Seed(harness), Seed(harness)
    table = seed.dataset("balances", "buffered", dag="d", schema=SCHEMA)
    files = seed.dataset("blocks", "s3", dag="d")
    seed.generation(files)
    seed.dataset("internal_step", "s3")
    seed.dataset("clock", "none", dag="d")
    stranger.dataset("blocks", "s3", dag="d")
    assert relations(harness, seed.org) == [
        {
            "name": "balances", "dataset_uuid": str(table.dataset_uuid), "dataset_version": str(table.dataset_version),
            "storage": "buffered",
            "columns": [{"name": "holder", "type": "text"}, {"name": "balance", "type": "uint256"}],
        },
        {
            "name": "blocks", "dataset_uuid": str(files.dataset_uuid), "dataset_version": str(files.dataset_version),
            "storage": "s3",
        },
    ]  # fmt: skip
    assert relations(harness, fresh("nobody")) == []


@pytest.fixture
def flow(harness: DispatcherHarness) -> Flow:
    return Flow(harness, fresh("inputs"))


def test_inputs_of_the_current_attempt_and_of_no_other(flow: Flow) -> None:
    flow.deploy(FILES)
    write(flow, 0, 9, "blocks_0_9.parquet")
    task = flow.tasks("read", "Queued")[0]["task_id"]
    lease = flow.claim(task)

    def ask(**changes: Any) -> Reply:
        return flow.harness.service("POST", "/internal/task-inputs", fence(str(task), lease) | changes)

    reply = ask()
    assert reply.status == 200, reply
    assert reply.body["org"] == flow.org
    (relation,) = reply.body["relations"]
    dataset = flow.event("files", "write")
    assert relation["name"] == "blocks"
    assert relation["dataset_version"] == dataset["dataset_version"]
    assert relation["selections"] == [{"unit": {"partition_key": "0-9", "start": 0, "end": 9}}]

    assert (ask(lease_token=str(new_id())).code, ask(attempt=2).code) == ("fenced", "fenced")
    assert ask(task_id=str(new_id())).status == 404
    flow.complete(task, lease)
    assert ask().code == "fenced", "an attempt that has reported reads nothing more"


def test_inputs_that_differ_in_their_units_alone_are_one_relation(harness: DispatcherHarness) -> None:
    org = fresh("several")
    writer = harness.make_job("writer", org=org, outputs=[{"name": "blocks", "storage": "s3"}])["outputs"][0]
    first = {"dataset_uuid": writer["dataset_uuid"], "dataset_version": writer["dataset_version"]}
    second = first | {"dataset_version": str(new_id())}
    harness.sql(
        "INSERT INTO dataset_versions (dataset_uuid, dataset_version) VALUES ($1, $2)",
        second["dataset_uuid"], second["dataset_version"],
    )  # fmt: skip
    units = [{"partition_key": f"{start}-{start + 9}", "start": start, "end": start + 9} for start in (0, 10, 20)]
    inputs = [
        first | {"input_index": 0, "unit": units[0]},
        first | {"input_index": 1, "unit": units[1], "where": {"chain_id": [1, 10]}},
        first | {"input_index": 2, "unit": units[2]},
        second | {"input_index": 3, "unit": units[2]},
    ]
    task = harness.make_task(harness.make_job("reader", org=org)["job_id"], inputs=inputs)
    lease = harness.claim(task).body
    listed = harness.service("POST", "/internal/task-inputs", fence(task, lease)).body["relations"]
    assert {relation["name"]: relation["selections"] for relation in listed} == {
        "blocks": [{"unit": units[0]}, {"unit": units[2]}],
        "blocks_1": [{"unit": units[1], "where": {"chain_id": [1, 10]}}],
        "blocks_3": [{"unit": units[2]}],
    }


def test_relations_of_a_task_have_names_of_their_own(harness: DispatcherHarness) -> None:
    """Also if the name of a dataset looks like that of another's second relation."""
    org = fresh("named")
    datasets = [
        harness.make_job(f"writer{number}", org=org, outputs=[{"name": name, "storage": "s3"}])["outputs"][0]
        for number, name in enumerate(("blocks_2", "blocks"))
    ]
    odd, plain = (
        {key: dataset[key] for key in ("dataset_uuid", "dataset_version")} for dataset in datasets
    )  # fmt: skip
    unit = {"partition_key": "0-9", "start": 0, "end": 9}
    inputs = [
        odd | {"input_index": 0, "unit": unit},
        plain | {"input_index": 1, "unit": unit},
        plain | {"input_index": 2, "unit": unit, "where": {"chain_id": 1}},
    ]
    task = harness.make_task(harness.make_job("reader", org=org)["job_id"], inputs=inputs)
    lease = harness.claim(task).body
    listed = harness.service("POST", "/internal/task-inputs", fence(task, lease)).body["relations"]
    assert {relation["name"]: relation["dataset_uuid"] for relation in listed} == {
        "blocks_2": odd["dataset_uuid"],
        "blocks": plain["dataset_uuid"],
        "blocks_2_2": plain["dataset_uuid"],
    }


def test_the_audit_keeps_a_query_once_and_shows_it_to_admins_of_its_org(harness: DispatcherHarness) -> None:
    org = fresh("audited")
    record = {
        "run_id": str(new_id()), "query_id": str(new_id()), "org": org, "subject": "ann", "row_count": 3,
        "bytes_read": 1000, "duration_ms": 12, "outcome": "ok", "sql_sha256": "ab" * 32,
        "datasets": [{"name": "blocks", "dataset_uuid": str(new_id()), "dataset_version": str(new_id())}],
    }  # fmt: skip
    for duplicate in ({}, {"duplicate": True}):
        reply = harness.service("POST", "/internal/query-audit", record)
        assert (reply.status, reply.body) == (200, duplicate)
    for number in range(3):
        later = record | {"run_id": str(new_id()), "outcome": "query_timeout", "row_count": number}
        harness.service("POST", "/internal/query-audit", later)
    admin = User(harness, org, "admin")
    entries = admin.pages("/v1/query-audit?limit=2", "entries")
    assert [entry["outcome"] for entry in entries] == ["query_timeout"] * 3 + ["ok"]
    assert entries[-1] == {key: record[key] for key in record.keys() - {"run_id", "org"}} | {"at": entries[-1]["at"]}
    assert User(harness, fresh("other"), "admin").get("/v1/query-audit")["entries"] == []
    assert User(harness, org, "writer").call("GET", "/v1/query-audit").status == 403


def test_nothing_of_a_query_but_its_hash_can_be_recorded(harness: DispatcherHarness) -> None:
    record = {
        "run_id": str(new_id()), "query_id": str(new_id()), "org": "acme", "subject": "ann", "duration_ms": 1,
        "outcome": "ok",
    }  # fmt: skip
    for fields in ({"sql_sha256": "SELECT 1"}, {"sql_sha256": "0" * 64, "sql": "SELECT 1"}):
        assert harness.service("POST", "/internal/query-audit", record | fields).status == 422


def test_user_tokens_are_verified_with_the_public_keys_alone(harness: DispatcherHarness) -> None:
    reply = harness.service("GET", "/internal/jwks/user")
    assert all(set(key) == {"kty", "crv", "alg", "use", "kid", "x", "y"} for key in reply.body["keys"])
    keys = JwksKeys(lambda: msgspec.json.encode(reply.body), again_seconds=1, stale_seconds=60)
    verifier = UserVerifier(keys, harness.config.user_tokens)
    user = asyncio.run(verifier.verify(user_token(harness, org="acme", roles=["reader"]), datetime.now(UTC)))
    assert (user.org, user.roles) == ("acme", ["reader"])
