"""An attempt that is not current changes nothing and learns nothing, whichever call it makes."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.http.support import NOWHERE, Claimed, Refusals, claimed, fresh, make_job
from tests.support.dispatcher import DispatcherHarness, Reply
from tracelake.wire.contract import Listener, Principal
from tracelake.wire.routes import routes_of

PREFIX = "/v1/task/"
CALLS: dict[str, Callable[[Claimed], dict[str, Any]]] = {
    "heartbeat": lambda task: {},
    "complete": lambda task: {"status": "Completed", "events": [task.output("none") | {"cursor": 1}]},
    "events": lambda task: {"events": [task.output("none") | {"cursor": 1}]},
    "buffer-publish": lambda task: {
        "batch_uri": task.where("buffered")["buffer_prefix"] + "batch.jsonl",
        "dedupe_scope": "buffered_set",
    },
    "files": lambda task: task.output("buffered"),
    "deliveries": lambda task: task.output("none"),
    "credentials": lambda task: {},
}
"""What the current attempt may say; only the fence can be against it."""
IN_BATCHES = CALLS.keys() - {"files", "deliveries", "credentials"}
FINAL = {"complete"}


def running(harness: DispatcherHarness, org: str | None = None) -> Claimed:
    """An attempt of users' code, which may make every call."""
    limits = {"timeout_seconds": 600, "heartbeat_timeout_seconds": 60}
    task = claimed(harness, make_job(harness, org, operator="udf", limits=limits))
    task.put(task.where("buffered")["buffer_prefix"] + "batch.jsonl")
    return task


def say(task: Claimed, call: str, token: str, body: dict[str, Any]) -> list[Reply]:
    """The call, and the same as an item of a batch."""
    replies = [task.harness.task(call, token, body)]
    if call in IN_BATCHES:
        item = {"call": call, "capability_token": token, "body": body}
        answer = task.harness.call("task", "POST", f"{PREFIX}batch", {"calls": [item]}).body["answers"][0]
        replies.append(Reply(answer["status"], answer["body"]))
    return replies


def claim_again(task: Claimed) -> Any:
    """Its lease runs out, and another worker has the next attempt."""
    harness = task.harness
    harness.reap()
    harness.advance(61)
    harness.reap()
    harness.advance(700)
    harness.requeue_due()
    lease = harness.claim(task.task_id, worker_id="another").body
    assert lease["attempt"] == 2, lease
    return lease


def cancel(task: Claimed) -> None:
    assert task.harness.service("POST", f"/internal/tasks/{task.task_id}/cancel").status == 200
    assert task.call("complete", status="Canceled").status == 200


def test_every_call_of_a_task_is_here() -> None:
    routes = {route.path for route in routes_of(Listener.TASK) if route.principal is Principal.TASK}
    assert routes == {PREFIX + call for call in CALLS}


def test_the_current_attempt_may_make_every_call(harness: DispatcherHarness) -> None:
    """Or the refusals below would prove nothing."""
    task = running(harness)
    for call in sorted(CALLS, key=FINAL.__contains__):
        reply = say(task, call, task.token, task.body(**CALLS[call](task)))[0]
        # Deliveries are for the operator that reads them, and the fence comes first: tests/sources has the others.
        expected = (403, "dataset_forbidden") if call == "deliveries" else (200, None)
        assert (reply.status, reply.body.get("error", {}).get("code")) == expected, call


@pytest.mark.parametrize("call", CALLS)
def test_a_token_speaks_for_its_own_attempt_alone(harness: DispatcherHarness, call: str) -> None:
    org = fresh()
    task = running(harness, org)
    neighbour, stranger = claimed(harness, task.job), running(harness)
    body = task.body(**CALLS[call](task))
    with Refusals(harness) as refusals:
        for token in (neighbour.token, stranger.token):
            for reply in say(task, call, token, body):
                refusals.check(reply, 403, "token_mismatch")
        for attempt in (2, 2**31 - 1):
            for reply in say(task, call, task.token, body | {"attempt": attempt}):
                refusals.check(reply, 403, "token_mismatch")
        for lease_token in (NOWHERE, neighbour.lease["lease_token"], stranger.lease["lease_token"]):
            for reply in say(task, call, task.token, body | {"lease_token": lease_token}):
                error = refusals.check(reply, 409, "fenced")
                assert error["details"] == {"attempt": 1, "status": "Running"}


@pytest.mark.parametrize("call", CALLS)
def test_an_attempt_that_was_replaced(harness: DispatcherHarness, call: str) -> None:
    task = running(harness)
    lease = claim_again(task)
    fresh_token = harness.worker("POST", "/internal/task-token", {**task.body(), **_of(lease)}).body
    body = task.body(**CALLS[call](task))
    with Refusals(harness) as refusals:
        # The old token is good for hours yet; whoever holds it may even know the new lease.
        for reply in say(task, call, task.token, body):
            error = refusals.check(reply, 409, "fenced")
            assert error["details"] == {"attempt": 2, "status": "Running"}
        for reply in say(task, call, task.token, body | {"lease_token": lease["lease_token"]}):
            refusals.check(reply, 409, "fenced")
        for reply in say(task, call, task.token, body | _of(lease)):
            refusals.check(reply, 403, "token_mismatch")
        # The other way round: the new token with the old lease.
        for reply in say(task, call, fresh_token["capability_token"], body | _of(lease) | _lease_of(task)):
            refusals.check(reply, 409, "fenced")


def _of(lease: Any) -> dict[str, Any]:
    return {key: lease[key] for key in ("attempt", "lease_token")}


def _lease_of(task: Claimed) -> dict[str, Any]:
    return {"lease_token": task.lease["lease_token"]}


@pytest.mark.parametrize("end", [lambda task: task.call("complete", status="Completed"), cancel])
@pytest.mark.parametrize("call", CALLS)
def test_an_attempt_that_ended(harness: DispatcherHarness, call: str, end: Callable[[Claimed], object]) -> None:
    task = running(harness)
    end(task)
    status = harness.row(task.task_id)["status"]
    with Refusals(harness) as refusals:
        for reply in say(task, call, task.token, task.body(**CALLS[call](task))):
            if call in FINAL:
                assert reply == Reply(200, {"status": status, "duplicate": True}), "a repeat, whatever it says"
            else:
                error = refusals.check(reply, 409, "fenced")
                assert error["details"] == {"attempt": 1, "status": status}


def test_who_is_not_current_hears_that_before_anything_else(harness: DispatcherHarness) -> None:
    """Wrappers stop at 409 and try again at others: what else is wrong with the call does not matter any more."""
    task, stranger = running(harness), running(harness)
    claim_again(task)
    foreign = stranger.output("none") | {"cursor": 1}
    with Refusals(harness) as refusals:
        for call, fields in (
            ("complete", {"status": "Completed", "events": [foreign]}),
            ("events", {"events": [foreign]}),
            ("buffer-publish", {"batch_uri": "s3://elsewhere/a", "dedupe_scope": "buffered_set"}),
            ("files", stranger.output("s3")),
            ("credentials", {"locations": [stranger.where("s3")["write_prefix"]]}),
        ):
            for reply in say(task, call, task.token, task.body(**fields)):
                refusals.check(reply, 409, "fenced")


def test_workers_and_services_are_told_of_the_current_attempt_alone(harness: DispatcherHarness) -> None:
    task = running(harness)
    lease = claim_again(task)
    mixed = [task.body(), task.body() | {"lease_token": lease["lease_token"]}, task.body() | {"attempt": 2}]
    with Refusals(harness) as refusals:
        for body in mixed:
            refusals.check(harness.worker("POST", "/internal/task-token", body), 409, "fenced")
            told = harness.service("POST", "/internal/task-introspect", body).body
            assert told == {"current": False, "status": "Running"}
        told = harness.service("POST", "/internal/task-introspect", task.body() | _of(lease)).body
        assert told == {"current": True, "status": "Running"}
