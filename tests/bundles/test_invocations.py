"""A bundle in a DAG: what a deploy checks, and what an attempt of it is invoked with."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tests.api.support import User
from tests.bundles.uploading import ARCHIVE, bundle_request, push
from tests.invoke.support import ScriptedInvoker
from tests.routing.support import Flow
from tests.support.dispatcher import DispatcherHarness, Reply
from tracelake.dispatcher.deploy import deployments

DAG = """
name: moves
jobs:
  - {name: tick, activation: source, source: {kind: manual}}
  - name: work
    activation: reactive
    runtime: lambda
    operator: udf
    timeout_seconds: 30
    inputs: [{from: {job: tick}}]
    udf: {bundle_id: BUNDLE, entrypoint: ENTRYPOINT}
"""


@pytest.fixture
def invoker() -> ScriptedInvoker:
    return ScriptedInvoker()


@pytest.fixture
def harness(state_dsn: str, queue_dsn: str, tmp_path: Path, invoker: ScriptedInvoker) -> Iterator[DispatcherHarness]:
    running = DispatcherHarness.start(state_dsn, queue_dsn, tmp_path, invoker=invoker)
    try:
        yield running
    finally:
        running.stop()


@pytest.fixture
def user(harness: DispatcherHarness) -> User:
    return User(harness, Flow(harness).org, "writer")


def deploy(user: User, bundle_id: str, entrypoint: str = "trace.handler", **query: str) -> Reply:
    document = DAG.replace("BUNDLE", bundle_id).replace("ENTRYPOINT", entrypoint)
    options = "&".join(f"{name}={value}" for name, value in ({"activate": "true"} | query).items())
    return user.call("POST", f"/v1/dags/moves/versions?{options}", document.encode())


def problems(reply: Reply) -> list[tuple[str, str, int]]:
    rows: list[dict[str, Any]] = reply.body["error"]["details"]["problems"]
    return [(row["code"], row["path"], row["line"]) for row in rows]


def disable(user: User, bundle_id: str) -> None:
    assert user.call("POST", f"/v1/udf/bundles/{bundle_id}/disable").status == 200


def test_an_attempt_is_invoked_with_its_bundle(
    user: User, harness: DispatcherHarness, invoker: ScriptedInvoker
) -> None:
    bundle_id = push(user)
    assert deploy(user, bundle_id).status == 200
    flow = Flow(harness)
    flow.trigger("moves", "tick", cursor=1)
    harness.invoke()
    (invocation,) = invoker.given
    bundle = invocation.bundle
    assert bundle is not None
    assert (bundle.bundle_id, bundle.sha256) == (UUID(bundle_id), bundle_request()["sha256"])
    assert (bundle.language, bundle.entrypoint, bundle.size_bytes) == ("python", "trace.handler", len(ARCHIVE))
    assert (bundle.timeout_seconds, bundle.memory_mb) == (30, harness.config.udf_memory_mb)
    assert invocation.bundle_url == bundle.url
    assert f"{bundle.sha256}.zip?seconds=90" in bundle.url


def test_a_disabled_bundle_starts_nothing_more(
    user: User, harness: DispatcherHarness, invoker: ScriptedInvoker
) -> None:
    bundle_id = push(user)
    deploy(user, bundle_id)
    disable(user, bundle_id)
    flow = Flow(harness)
    flow.trigger("moves", "tick", cursor=1)
    harness.invoke()
    task = harness.row(flow.tasks("work")[0]["task_id"])
    assert invoker.given == []
    assert (task["status"], task["next_retry_at"]) == ("Failed", None)
    assert task["error"].startswith(f"bundle_disabled: the bundle {bundle_id} was disabled")


def test_a_definition_never_runs_code_of_another_org(
    user: User, harness: DispatcherHarness, invoker: ScriptedInvoker
) -> None:
    own, foreign = push(user), push(User(harness, "others", "writer"))
    deploy(user, own)
    harness.sql("UPDATE jobs SET document = replace(document::text, $1, $2)::json WHERE name = 'work'", own, foreign)
    flow = Flow(harness)
    flow.trigger("moves", "tick", cursor=1)
    harness.invoke()
    task = harness.row(flow.tasks("work")[0]["task_id"])
    assert invoker.given == []
    assert (task["status"], task["error"].partition(":")[0]) == ("Failed", "bundle_not_found")


def test_a_deploy_names_what_is_wrong_with_a_bundle(user: User, harness: DispatcherHarness) -> None:
    bundle_id, off, foreign = push(user), push(user), push(User(harness, "others", "writer"))
    disable(user, off)
    opened = user.call("POST", "/v1/udf/bundles", {"size_bytes": 10}).body["bundle_id"]
    place = "jobs[1].udf.bundle_id"
    for dry_run in ("true", "false"):
        for unknown in (foreign, opened, "unheard-of"):
            assert problems(deploy(user, unknown, dry_run=dry_run)) == [("udf_bundle", place, 11)]
        assert problems(deploy(user, off, dry_run=dry_run)) == [("udf_bundle_disabled", place, 11)]
        wrong = problems(deploy(user, bundle_id, "main.handler", dry_run=dry_run))
        assert wrong == [("udf_entrypoint", "jobs[1].udf.entrypoint", 11)]
    assert harness.sql("SELECT FROM dag_versions") == []
    assert deploy(user, bundle_id).status == 200


def test_a_bundle_that_is_disabled_while_a_document_is_read_is_not_deployed(
    user: User, harness: DispatcherHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle_id = push(user)
    load = deployments._load_bundles

    async def load_before_the_change(connection: Any, org_id: UUID | None) -> Any:
        bundles = await load(connection, org_id)
        statement = "UPDATE udf_bundles SET status = 'disabled', disabled_at = trace_now()"
        await connection.execute(statement)
        return bundles

    monkeypatch.setattr(deployments, "_load_bundles", load_before_the_change)
    assert problems(deploy(user, bundle_id)) == [("udf_bundle_disabled", "jobs[1].udf.bundle_id", 11)]
    assert harness.sql("SELECT FROM dag_versions") == []


def test_the_memory_of_a_function_is_no_other_function(user: User, harness: DispatcherHarness) -> None:
    bundle_id = push(user)
    deploy(user, bundle_id)
    text = DAG.replace("BUNDLE", bundle_id).replace("ENTRYPOINT}", "trace.handler, memory_mb: 512}")
    reply = user.call("POST", "/v1/dags/moves/versions?activate=true", text.encode())
    assert (reply.status, reply.body["state"]) == (200, "Active")
    rows = harness.sql("SELECT DISTINCT node_id, config_hash FROM jobs WHERE name = 'work'")
    assert len(rows) == 1, "the rows of both versions are the same, so that nothing is computed again"
    assert len(harness.sql("SELECT FROM jobs WHERE name = 'work'")) == 2
