"""The lifecycle through the real endpoints: each rule of the state machine once, in plain sight."""

import json
from typing import Any

from tests.support.dispatcher import DispatcherHarness, fence


def make(harness: DispatcherHarness, **job: Any) -> str:
    return harness.make_task(harness.make_job(**job)["job_id"])


def claimed(harness: DispatcherHarness, task_id: str) -> Any:
    reply = harness.claim(task_id)
    assert reply.status == 200
    assert reply.body["status"] == "Claimed", reply.body
    return reply.body


def complete(harness: DispatcherHarness, task_id: str, claim: Any, status: str = "Completed", **fields: Any) -> Any:
    return harness.task("complete", claim["capability_token"], fence(task_id, claim, status=status, **fields))


def beat(harness: DispatcherHarness, task_id: str, claim: Any) -> Any:
    return harness.task("heartbeat", claim["capability_token"], fence(task_id, claim))


def expire(harness: DispatcherHarness, seconds: float = 200) -> None:
    """Let every lease run out, with a reaper that has watched for long enough to judge."""
    harness.reap()
    harness.advance(seconds)
    harness.reap()


def test_a_task_runs_from_creation_to_completion(harness: DispatcherHarness) -> None:
    job = harness.make_job(outputs=[{"name": "blocks", "storage": "none"}], config={})
    task_id = harness.make_task(job["job_id"])
    assert harness.relay() == 1
    claim = claimed(harness, task_id)
    assert claim["attempt"] == 1
    assert claim["task"]["job"] == {"dag_name": "dag", "name": "job"}
    assert claim["task"]["outputs"][0]["storage"] == {"kind": "none"}
    assert beat(harness, task_id, claim).body["cancel"] is False
    output = {key: job["outputs"][0][key] for key in ("dataset_uuid", "dataset_version")}
    done = complete(harness, task_id, claim, events=[output | {"cursor": 7}], outputs=[output | {"row_count": 3}])
    assert (done.status, done.body) == (200, {"status": "Completed"})
    assert harness.row(task_id)["status"] == "Completed"
    event = harness.sql("SELECT * FROM events")[0]
    assert (event["cursor"], event["state"], event["producer"]) == (7, "Routed", task_id)


def test_claim_says_why_not(harness: DispatcherHarness) -> None:
    task_id = make(harness)
    claim = claimed(harness, task_id)
    assert harness.claim(task_id).body == {"status": "NotClaimed", "reason": "AlreadyRunning"}
    assert complete(harness, task_id, claim, "Failed").body["status"] == "Failed"
    assert harness.claim(task_id).body["reason"] == "NotReady"
    harness.advance(1000)
    assert harness.requeue_due() == 1
    claim = claimed(harness, task_id)
    assert claim["attempt"] == 2
    complete(harness, task_id, claim, "Failed", retryable=False)
    assert harness.claim(task_id).body["reason"] == "Failed"
    done = make(harness)
    complete(harness, done, claimed(harness, done))
    assert harness.claim(done).body["reason"] == "Completed"
    gone = make(harness)
    harness.service("POST", f"/internal/tasks/{gone}/cancel")
    assert harness.claim(gone).body["reason"] == "Canceled"
    assert harness.claim("00000000-0000-7000-8000-000000000000").body["reason"] == "NotFound"


def test_the_same_claim_id_gets_the_same_lease(harness: DispatcherHarness) -> None:
    task_id = make(harness)
    first = harness.claim(task_id, claim_id="c1").body
    again = harness.claim(task_id, claim_id="c1").body
    assert again["lease_token"] == first["lease_token"]
    assert again["attempt"] == 1
    assert harness.claim(task_id, claim_id="c2").body["reason"] == "AlreadyRunning"


def test_a_late_completion_wins_over_the_timeout_verdict(harness: DispatcherHarness) -> None:
    task_id = make(harness)
    claim = claimed(harness, task_id)
    expire(harness)
    assert harness.row(task_id)["status"] == "Failed"
    harness.advance(100)
    harness.requeue_due()
    assert harness.row(task_id)["status"] == "Queued"
    assert complete(harness, task_id, claim).body == {"status": "Completed"}
    assert harness.claim(task_id).body["reason"] == "Completed"


def test_a_late_heartbeat_takes_the_lease_back(harness: DispatcherHarness) -> None:
    task_id = make(harness)
    claim = claimed(harness, task_id)
    expire(harness)
    assert beat(harness, task_id, claim).status == 200
    row = harness.row(task_id)
    assert (row["status"], row["outcome"], row["next_retry_at"]) == ("Running", None, None)


def test_a_late_reply_after_the_last_attempt_is_taken(harness: DispatcherHarness) -> None:
    task_id = make(harness, limits={"max_attempts": 1})
    claim = claimed(harness, task_id)
    expire(harness)
    row = harness.row(task_id)
    assert (row["status"], row["next_retry_at"]) == ("Failed", None)
    assert complete(harness, task_id, claim).body["status"] == "Completed"


def test_a_newer_claim_fences_the_older_attempt(harness: DispatcherHarness) -> None:
    task_id = make(harness)
    old = claimed(harness, task_id)
    expire(harness)
    harness.advance(100)
    harness.requeue_due()
    new = claimed(harness, task_id)
    for reply in (beat(harness, task_id, old), complete(harness, task_id, old)):
        assert (reply.status, reply.code) == (409, "fenced")
        assert reply.body["error"]["details"] == {"attempt": 2, "status": "Running"}
    assert complete(harness, task_id, new).status == 200
    history = harness.sql("SELECT attempt, outcome FROM task_attempts WHERE task_id = $1", task_id)
    assert [tuple(row) for row in history] == [(1, "Timeout")]


def test_a_repeated_completion_is_a_duplicate_whatever_it_carries(harness: DispatcherHarness) -> None:
    task_id = make(harness)
    claim = claimed(harness, task_id)
    complete(harness, task_id, claim)
    again = complete(harness, task_id, claim, "Failed", error_message="changed my mind")
    assert (again.status, again.body) == (200, {"status": "Completed", "duplicate": True})
    assert beat(harness, task_id, claim).code == "fenced"


def test_what_spark_did_is_kept_for_each_attempt_that_says_so(harness: DispatcherHarness) -> None:
    task_id = make(harness)
    complete(harness, task_id, claimed(harness, task_id), "Failed", spark={"jobs": 1, "failed_tasks": 4})
    harness.advance(1000)
    harness.requeue_due()
    claim = claimed(harness, task_id)
    for wrong in ({"stages": -1}, {"stages": 2**63}, {"stages": 1.5}, {"speed": 1}):
        assert complete(harness, task_id, claim, spark=wrong).status == 422
    said = {"jobs": 2, "stages": 3, "spilled_disk_bytes": 2**40}
    assert complete(harness, task_id, claim, spark=said).body == {"status": "Completed"}
    assert complete(harness, task_id, claim, spark={"jobs": 9}).body["duplicate"]
    rows = harness.sql("SELECT attempt, figures FROM spark_metrics WHERE task_id = $1 ORDER BY attempt", task_id)
    assert [(row["attempt"], json.loads(row["figures"])) for row in rows] == [
        (1, {"jobs": 1, "failed_tasks": 4}),
        (2, said),
    ]


def test_a_failure_is_retried_until_its_attempts_are_used_up(harness: DispatcherHarness) -> None:
    task_id = make(harness, limits={"max_attempts": 2})
    first = complete(harness, task_id, claimed(harness, task_id), "Failed", error_message="boom")
    assert first.body["next_retry_at"]
    assert harness.row(task_id)["error"] == "boom"
    harness.advance(1000)
    assert harness.requeue_due() == 1
    assert harness.relay() == 2
    second = complete(harness, task_id, claimed(harness, task_id), "Failed")
    assert second.body == {"status": "Failed"}
    harness.advance(1000)
    assert harness.requeue_due() == 0


def test_the_deadline_is_hard_for_heartbeats_and_soft_for_completion(harness: DispatcherHarness) -> None:
    task_id = make(harness, limits={"timeout_seconds": 100, "heartbeat_timeout_seconds": 60})
    claim = claimed(harness, task_id)
    harness.advance(50)
    row = harness.row(task_id)
    beat(harness, task_id, claim)
    assert harness.row(task_id)["lease_expires_at"] == row["deadline_at"]
    harness.advance(60)
    late = beat(harness, task_id, claim)
    assert (late.status, late.code) == (409, "deadline_exceeded")
    assert complete(harness, task_id, claim).body["status"] == "Completed"


def test_cancel_ends_what_waits_and_asks_what_runs(harness: DispatcherHarness) -> None:
    waiting = make(harness)
    assert harness.service("POST", f"/internal/tasks/{waiting}/cancel").body["status"] == "Canceled"
    assert harness.service("POST", f"/internal/tasks/{waiting}/cancel").body["duplicate"] is True
    running = make(harness)
    claim = claimed(harness, running)
    asked = harness.service("POST", f"/internal/tasks/{running}/cancel").body
    assert (asked["status"], asked["cancel_requested"]) == ("Running", True)
    assert beat(harness, running, claim).body["cancel"] is True
    refused = complete(harness, running, claim)
    assert (refused.status, refused.code) == (422, "cancel_requested")
    assert complete(harness, running, claim, "Canceled").body == {"status": "Canceled"}
    assert complete(harness, running, claim, "Canceled").body["duplicate"] is True
    finished = harness.service("POST", f"/internal/tasks/{running}/cancel")
    assert finished.body["duplicate"] is True


def test_a_cancelled_task_whose_lease_runs_out_is_not_retried(harness: DispatcherHarness) -> None:
    task_id = make(harness)
    claim = claimed(harness, task_id)
    harness.service("POST", f"/internal/tasks/{task_id}/cancel")
    expire(harness)
    assert harness.row(task_id)["status"] == "Canceled"
    assert complete(harness, task_id, claim).code == "fenced"
    assert complete(harness, task_id, claim, "Canceled").body == {"status": "Canceled", "duplicate": True}


def test_cancelling_a_finished_task_is_refused(harness: DispatcherHarness) -> None:
    task_id = make(harness)
    complete(harness, task_id, claimed(harness, task_id))
    reply = harness.service("POST", f"/internal/tasks/{task_id}/cancel")
    assert (reply.status, reply.code) == (422, "task_finished")


def test_the_reaper_waits_one_lease_after_it_starts(harness: DispatcherHarness) -> None:
    task_id = make(harness)
    claimed(harness, task_id)
    harness.advance(500)
    assert harness.reap() == 0
    harness.advance(119)
    assert harness.reap() == 0
    harness.advance(2)
    assert harness.reap() == 1


def test_events_are_idempotent_and_say_what_became_of_them(harness: DispatcherHarness) -> None:
    job = harness.make_job(outputs=[{"name": "hot", "storage": "postgres"}, {"name": "cold", "storage": "s3"}])
    task_id = harness.make_task(job["job_id"])
    claim = claimed(harness, task_id)
    hot, cold = ({key: output[key] for key in ("dataset_uuid", "dataset_version")} for output in job["outputs"])
    events = [hot | {"cursor": 1}, cold | {"partition_key": "0-9", "start": 0, "end": 9}]
    first = harness.task("events", claim["capability_token"], fence(task_id, claim, events=events))
    assert first.body["events"] == [
        {"duplicate": False, "routed": True},
        {"duplicate": False, "routed": False},
    ]
    again = harness.task("events", claim["capability_token"], fence(task_id, claim, events=events))
    assert again.body["duplicate"] is True
    assert len(harness.sql("SELECT * FROM events")) == 2


def test_creating_a_task_twice_makes_it_once(harness: DispatcherHarness) -> None:
    job = harness.make_job()
    other = harness.make_job("other")
    task_id = "019a0000-0000-7000-8000-000000000001"
    body = {"tasks": [{"job_id": job["job_id"], "task_id": task_id}]}
    assert harness.service("POST", "/internal/tasks", body).body["tasks"][0] == {"task_id": task_id, "status": "Queued"}
    assert harness.service("POST", "/internal/tasks", body).body["tasks"][0]["duplicate"] is True
    assert harness.relay() == 1
    clash = harness.service("POST", "/internal/tasks", {"tasks": [{"job_id": other["job_id"], "task_id": task_id}]})
    assert (clash.status, clash.code) == (422, "task_conflict")


def test_registering_a_job_is_idempotent(harness: DispatcherHarness) -> None:
    first = harness.make_job(outputs=[{"name": "blocks"}])
    again = harness.make_job(outputs=[{"name": "blocks"}])
    assert again["job_id"] == first["job_id"]
    assert again["duplicate"] is True
    changed = harness.make_job(outputs=[{"name": "blocks"}], limits={"max_attempts": 9})
    assert changed["job_id"] != first["job_id"]
    assert changed["outputs"] == first["outputs"]


def test_fetch_token_and_introspect(harness: DispatcherHarness) -> None:
    task_id = make(harness)
    claim = claimed(harness, task_id)
    fetched = harness.worker("GET", f"/internal/task-fetch?task_id={task_id}").body
    assert fetched["status"] == "Running"
    assert "lease_token" not in str(fetched)
    assert "capability_token" not in str(fetched)
    fresh = harness.worker("POST", "/internal/task-token", fence(task_id, claim))
    assert fresh.body["capability_token"] != claim["capability_token"]
    ask = {"task_id": task_id, "attempt": 1}
    assert harness.service("POST", "/internal/task-introspect", ask).body == {"current": True, "status": "Running"}
    ask["attempt"] = 2
    assert harness.service("POST", "/internal/task-introspect", ask).body["current"] is False


def test_batches_answer_each_item_by_itself(harness: DispatcherHarness) -> None:
    tasks = [make(harness) for _ in range(3)]
    claims: list[Any] = [{"task_id": task_id, "worker_id": "w"} for task_id in tasks]
    reply = harness.worker("POST", "/internal/task-claim-batch", {"claims": [*claims, {"task_id": "nonsense"}, 7]})
    statuses = [answer["status"] for answer in reply.body["answers"]]
    assert statuses == [200, 200, 200, 422, 422]
    leases = [answer["body"] for answer in reply.body["answers"][:3]]
    calls: list[Any] = []
    for task_id, lease in zip(tasks, leases, strict=True):
        token = lease["capability_token"]
        calls.append({"call": "heartbeat", "capability_token": token, "body": fence(task_id, lease)})
        calls.append({"call": "complete", "capability_token": token, "body": fence(task_id, lease, status="Completed")})
    calls.append({"call": "heartbeat", "capability_token": "x.y.z", "body": {}})
    calls.append(
        {"call": "heartbeat", "capability_token": leases[0]["capability_token"], "body": fence(tasks[1], leases[1])}
    )
    answers = harness.task_batch(calls)
    assert [answer["status"] for answer in answers] == [200] * 6 + [401, 403]
    assert {harness.row(task_id)["status"] for task_id in tasks} == {"Completed"}


def test_a_repeated_task_id_must_come_with_the_same_task(harness: DispatcherHarness) -> None:
    job = harness.make_job()["job_id"]
    task_id = "019a0000-0000-7000-8000-000000000002"
    spec = {"job_id": job, "task_id": task_id, "unit": {"partition_key": "0-9", "start": 0, "end": 9}}
    assert harness.service("POST", "/internal/tasks", {"tasks": [spec]}).status == 200
    assert harness.service("POST", "/internal/tasks", {"tasks": [spec]}).body["tasks"][0]["duplicate"] is True
    other = spec | {"unit": {"partition_key": "10-19", "start": 10, "end": 19}}
    for tasks in ([other], [other, {"job_id": job}]):
        refused = harness.service("POST", "/internal/tasks", {"tasks": tasks})
        assert (refused.status, refused.code) == (422, "task_conflict")
    assert len(harness.sql("SELECT FROM tasks")) == 1


def test_a_repeated_publish_is_a_duplicate_even_without_its_artifact(harness: DispatcherHarness) -> None:
    job = harness.make_job(outputs=[{"name": "alerts", "storage": "buffered"}])
    task_id = harness.make_task(job["job_id"])
    claim = claimed(harness, task_id)
    uri = claim["task"]["outputs"][0]["storage"]["buffer_prefix"] + "batch.jsonl"
    harness.run(harness.objects.put(uri, b"{}\n"))
    body = fence(task_id, claim, batch_uri=uri, dedupe_scope="alerts")
    first = harness.task("buffer-publish", claim["capability_token"], body).body
    harness.run(harness.objects.delete(uri))
    again = harness.task("buffer-publish", claim["capability_token"], body)
    assert (again.status, again.body) == (200, first | {"duplicate": True})
    missing = harness.task("buffer-publish", claim["capability_token"], body | {"batch_uri": uri + "x"})
    assert (missing.status, missing.code) == (422, "artifact_missing")


def test_a_claim_names_the_org_of_the_task(harness: DispatcherHarness) -> None:
    """Endpoints of chains belong to orgs; the worker must know whose task it runs, whoever made the DAG."""
    for org in ("acme", "globex"):
        claimed = harness.claim(harness.make_task(harness.make_job(org=org)["job_id"])).body
        assert claimed["org"] == org
        assert "org" not in claimed["task"], "no part of what an operator or an invoked attempt is given"
