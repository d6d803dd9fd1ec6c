"""Whose a path is, and the secret of its source: deploys, rotation, audit."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.http.support import Refusals, fresh
from tests.sources.webhook_support import BODY, UNLIMITED, Hook, running
from tests.support import dags
from tests.support.dispatcher import DispatcherHarness
from tests.support.postgres import TestCluster
from tracelake.errors import TraceError


@pytest.fixture(scope="module")
def harness(cluster: TestCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DispatcherHarness]:
    with running(cluster, tmp_path_factory.mktemp("home")) as (dispatcher,):
        yield dispatcher


def problems(hook: Hook, **how: Any) -> list[Any]:
    with pytest.raises(TraceError) as refused:
        dags.deploy(hook.harness, hook.text(), hook.org, **how)
    assert refused.value.code == "dag_invalid"
    found: list[Any] = refused.value.details["problems"]
    return found


def test_orgs_may_have_the_same_path_and_do_not_notice(harness: DispatcherHarness) -> None:
    """Each gets what was signed with its own secret, and nothing tells them that there is another."""
    first = Hook(harness).deploy()
    second = Hook(harness, path=first.path)
    plan = dags.deploy(harness, second.text(), second.org, dry_run=True)
    alone = Hook(harness)
    assert [change.change for change in plan.plan.jobs] == [
        change.change for change in dags.deploy(harness, alone.text(), alone.org, dry_run=True).plan.jobs
    ]
    second.deploy()
    for number, hook in enumerate((first, second, first)):
        assert hook.send(delivery=f"d{number}").status == 200
    assert [row["delivery_id"] for row in second.deliveries()] == ["d1"]
    assert sorted(row["delivery_id"] for row in first.deliveries()) == ["d0", "d2"]
    second.deploy(source="{ kind: manual }")
    with Refusals(harness) as refusals:
        stranger = Hook(harness, path=first.path)
        refusals.check(stranger.send(secrets=["not-a-secret"]), 401, "signature_invalid")
    assert first.send(delivery="d3").status == 200


@pytest.mark.parametrize("how", [{}, {"activate": False}, {"dry_run": True}], ids=["deploy", "keep", "plan"])
def test_a_path_of_another_job_is_taken(harness: DispatcherHarness, how: dict[str, bool]) -> None:
    owner = Hook(harness).deploy()
    for other in (
        Hook(harness, owner.org, owner.path, dag="other"),
        Hook(harness, owner.org, owner.path, job="renamed"),
    ):
        (problem,) = problems(other, **how)
        assert problem.code == "webhook_path_taken"
        assert problem.message == f"The path `{owner.path}` belongs to `alerts/hook`."
    assert owner.send().status == 200


def test_a_path_stays_taken_when_its_job_has_left_it(harness: DispatcherHarness) -> None:
    owner = Hook(harness).deploy()
    old = owner.path
    owner.path += "-new"
    owner.deploy()
    (problem,) = problems(Hook(harness, owner.org, old, dag="late"))
    assert problem.code == "webhook_path_taken"
    owner.path = old
    assert owner.deploy().send().status == 200


def test_what_is_only_kept_takes_nothing(harness: DispatcherHarness) -> None:
    kept = Hook(harness)
    dags.deploy(harness, kept.text(), kept.org, activate=False)
    owner = Hook(harness, kept.org, kept.path, dag="owner").deploy()
    with Refusals(harness), pytest.raises(TraceError) as refused:
        dags.activate(harness, kept.dag, 1, org=kept.org)
    (problem,) = refused.value.details["problems"]
    assert (problem.code, problem.path) == ("webhook_path_taken", "jobs.hook.source.webhook_path")
    assert owner.send().status == 200


def test_of_two_jobs_at_once_one_gets_the_path(harness: DispatcherHarness) -> None:
    def take(hook: Hook) -> bool:
        try:
            hook.deploy()
        except TraceError as refused:
            return refused.code != "dag_invalid"
        return True

    for number in range(5):
        org = fresh()
        hooks = [Hook(harness, org, f"wanted/by-both-{number}", dag=dag) for dag in ("one", "two")]
        with ThreadPoolExecutor(2) as threads:
            assert sorted(threads.map(take, hooks)) == [False, True]


def test_a_build_takes_its_paths_when_it_begins(harness: DispatcherHarness) -> None:
    hook = Hook(harness)
    hook.deploy()
    hook.sent()
    first, hook.path = hook.path, f"{hook.path}-built"
    text = hook.text().replace("operator: noop", "operator: sleep\n    config: { seconds: 0 }")
    assert dags.deploy(harness, text, hook.org).state == "Building"
    (problem,) = problems(Hook(harness, hook.org, hook.path, dag="other"))
    assert problem.code == "webhook_path_taken"
    secret = hook.harness.credentials.webhooks.secret(
        hook.rows("SELECT * FROM webhooks")[0]["org_id"], hook.dag, hook.job, 1
    )
    assert hook.send(delivery="two", secrets=[secret]).code == "signature_invalid"
    hook.path = first
    assert hook.send(delivery="two", secrets=[secret]).status == 200


# --- the secret


def test_an_admin_reads_the_secret_and_that_is_written_down(harness: DispatcherHarness) -> None:
    hook = Hook(harness).deploy()
    reply = hook.user("GET", "/webhook")
    assert reply.status == 200
    assert reply.body == {
        "path": hook.path,
        "secret": hook.quiet_secret(),
        "rotation": 1,
        "signature_header": "x-trace-signature",
        "delivery_header": "x-trace-delivery",
    }
    assert hook.audit() == [("webhook.read", "alerts/hook")]
    with Refusals(harness) as refusals:
        for role in ("reader", "writer"):
            refusals.check(hook.user("GET", "/webhook", role), 403, "role_forbidden")
            refusals.check(hook.user("POST", "/webhook/rotate", role), 403, "role_forbidden")


def test_the_secret_is_in_no_table(harness: DispatcherHarness) -> None:
    hook = Hook(harness).deploy()
    secret = hook.secret()
    hook.sent()
    hook.user("POST", "/webhook/rotate")
    tables = harness.sql("SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'")
    assert len(tables) > 20
    for row in tables:
        (found,) = harness.sql(
            f"SELECT count(*) FROM {row['table_name']} t WHERE strpos(t::text, $1) + strpos(t::text, $2) > 0",
            secret, hook.quiet_secret(),
        )  # fmt: skip
        assert found["count"] == 0, row


def test_a_rotated_secret_is_good_for_the_overlap(harness: DispatcherHarness) -> None:
    hook = Hook(harness).deploy()
    old = hook.secret()
    rotated = hook.user("POST", "/webhook/rotate").body
    assert rotated["rotation"] == 2
    assert rotated["secret"] != old
    assert "previous_until" in rotated
    for number, secrets in enumerate(([old], [rotated["secret"]], [old, rotated["secret"]])):
        assert hook.send(delivery=f"during{number}", secrets=secrets).status == 200
    harness.advance(UNLIMITED.webhook_rotation_seconds - 60)
    assert hook.send(delivery="late", secrets=[old]).status == 200
    harness.advance(61)
    with Refusals(harness) as refusals:
        refusals.check(hook.send(delivery="too-late", secrets=[old]), 401, "signature_invalid")
    assert hook.send(delivery="after", secrets=[rotated["secret"]]).status == 200
    assert "previous_until" not in hook.user("GET", "/webhook").body
    assert [action for action, _ in hook.audit()] == ["webhook.read", "webhook.rotate", "webhook.read"]


def test_a_second_rotation_ends_the_first_secret_at_once(harness: DispatcherHarness) -> None:
    hook = Hook(harness).deploy()
    first = hook.secret()
    second = hook.user("POST", "/webhook/rotate").body["secret"]
    third = hook.user("POST", "/webhook/rotate").body["secret"]
    with Refusals(harness) as refusals:
        refusals.check(hook.send(secrets=[first]), 401, "signature_invalid")
    assert hook.send(delivery="second", secrets=[second]).status == 200
    assert hook.send(delivery="third", secrets=[third]).status == 200


def test_a_rotation_whose_answer_got_lost_is_repeated(harness: DispatcherHarness) -> None:
    hook = Hook(harness).deploy()
    first = hook.user("POST", "/webhook/rotate?after=1").body
    assert first["rotation"] == 2
    assert hook.user("POST", "/webhook/rotate?after=1").body == first
    assert hook.user("POST", "/webhook/rotate?after=2").body["rotation"] == 3
    assert [action for action, _ in hook.audit()] == ["webhook.rotate", "webhook.read", "webhook.rotate"]


def test_a_path_that_comes_later_has_the_secret_of_its_source(harness: DispatcherHarness) -> None:
    hook = Hook(harness).deploy()
    old = hook.secret()
    new = hook.user("POST", "/webhook/rotate").body["secret"]
    hook.path += "-moved"
    hook.deploy()
    assert hook.secret() == new
    assert hook.send(BODY, "one", secrets=[old]).status == 200
    assert hook.user("POST", "/webhook/rotate").body["rotation"] == 3
    assert {row["rotation"] for row in hook.rows("SELECT * FROM webhooks")} == {3}
