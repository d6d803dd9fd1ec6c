"""Values that are well-formed and wrong: cursors, partitions, ranges, batches. One bad item rejects the call."""

from typing import Any

import msgspec
import pytest

from tests.http.support import (
    NOWHERE,
    WORKER,
    Claimed,
    Refusals,
    check_leaks,
    claimed,
    content,
    make_job,
)
from tests.support.dispatcher import DispatcherHarness, fence
from tracelake.wire.claims import MAX_BATCH

TOP = 2**63 - 1
BAD_POINTS: list[tuple[dict[str, Any], str]] = [
    ({}, ""),
    ({"cursor": -1}, ".cursor"),
    ({"cursor": TOP + 1}, ".cursor"),
    ({"cursor": 10**30}, ".cursor"),
    ({"cursor": 1.5}, ".cursor"),
    ({"cursor": "1"}, ".cursor"),
    ({"cursor": True}, ".cursor"),
    ({"cursor": None}, ""),
    ({"cursor": 1, "partition_key": "a"}, ""),
    ({"cursor": 1, "start": 1, "end": 2}, ""),
    ({"partition_key": ""}, ".partition_key"),
    ({"partition_key": "k" * 513}, ".partition_key"),
    ({"partition_key": "\U0001f600" * 200}, ""),
    ({"start": 1, "end": 2}, ""),
    ({"partition_key": "1-2", "start": 1}, ""),
    ({"partition_key": "1-2", "end": 2}, ""),
    ({"partition_key": "2-1", "start": 2, "end": 1}, ""),
    ({"partition_key": "a", "start": 1, "end": 2}, ""),
    ({"partition_key": "1-02", "start": 1, "end": 2}, ""),
    ({"partition_key": " 1-2", "start": 1, "end": 2}, ""),
    ({"partition_key": "-1-2", "start": -1, "end": 2}, ".start"),
    ({"partition_key": f"0-{TOP + 1}", "start": 0, "end": TOP + 1}, ".end"),
]
BAD_EVENT_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"revision": "r" * 201}, ".revision"),
    ({"revision": 1}, ".revision"),
    ({"dataset_uuid": "x"}, ".dataset_uuid"),
    ({"dataset_version": "x"}, ".dataset_version"),
    ({"invalidates": {"start": 2, "end": 1, "reason": "reorg"}}, ".invalidates"),
    ({"invalidates": {"start": -1, "end": 1, "reason": "reorg"}}, ".invalidates.start"),
    ({"invalidates": {"start": 0, "end": 1, "reason": ""}}, ".invalidates.reason"),
    ({"invalidates": {"start": 0, "end": 1}}, ".invalidates.reason"),
    ({"surprise": 1}, ".surprise"),
]
BAD_EVENTS = BAD_POINTS + [({"cursor": 1} | fields, field) for fields, field in BAD_EVENT_FIELDS]


@pytest.fixture(scope="module")
def task(harness: DispatcherHarness) -> Claimed:
    return claimed(harness)


@pytest.mark.parametrize("call", ["events", "complete"])
def test_one_bad_event_rejects_the_call(task: Claimed, call: str) -> None:
    good = task.output("none") | {"cursor": 5}
    status = {"status": "Completed"} if call == "complete" else {}
    with Refusals(task.harness) as refusals:
        for fields, field in BAD_EVENTS:
            reply = task.call(call, events=[good, task.output("none") | fields, good], **status)
            refusals.check(reply, 422, "body_invalid", field=f"events[1]{field}".removesuffix("."))


def test_how_many_events(task: Claimed) -> None:
    good = task.output("none") | {"cursor": 5}
    with Refusals(task.harness) as refusals:
        refusals.check(task.call("events", events=[]), 422, "body_invalid", field="events")
        refusals.check(task.call("events", events=[good] * 1001), 422, "body_invalid", field="events")


def test_the_widest_events_fit(harness: DispatcherHarness) -> None:
    """The limits on the wire are those of the tables: nothing between them is left to fail."""
    task = claimed(harness)
    widest: list[dict[str, Any]] = [
        {"cursor": TOP, "revision": "\U0001f600" * 200},
        {"cursor": 0},
        {"partition_key": f"{TOP}-{TOP}", "start": TOP, "end": TOP},
        {
            "partition_key": "".join(chr(0x1F300 + n) for n in range(128)),
            "revision": "".join(map(chr, range(256, 456))),
        },
        {"partition_key": "k" * 512, "invalidates": {"start": 0, "end": TOP, "reason": "ü" * 200}},
    ]
    reply = task.call("events", events=[task.output("none") | fields for fields in widest])
    assert (reply.status, reply.body["accepted"]) == (200, len(widest))


def test_bad_ranges_of_publications(task: Claimed) -> None:
    with Refusals(task.harness) as refusals:
        for fields, field in (
            ({"range_start": 1}, ""),
            ({"range_end": 1}, ""),
            ({"range_start": 2, "range_end": 1}, ""),
            ({"range_start": -1, "range_end": 1}, ".range_start"),
            ({"range_start": 0, "range_end": TOP + 1}, ".range_end"),
            ({"range_start": "0", "range_end": 1}, ".range_start"),
            ({"config_hash": ""}, ".config_hash"),
            ({"storage_ref": None}, ".storage_ref"),
            ({"storage_ref": {"scheme": "gs", "bucket": "b", "prefix": "p/", "glob": "*"}}, ".storage_ref.scheme"),
        ):
            reply = task.call("complete", status="Completed", datasets_published=[task.publication(**fields)])
            refusals.check(reply, 422, "body_invalid", field=f"datasets_published[0]{field}")


def test_bad_completions(task: Claimed) -> None:
    output = task.output("none")
    with Refusals(task.harness) as refusals:
        for fields, field in (
            ({"status": "Running"}, "status"),
            ({"status": "completed"}, "status"),
            ({"status": "Timeout"}, "status"),
            ({"status": "Failed", "retryable": "no"}, "retryable"),
            ({"status": "Failed", "error_message": "x" * 20_001}, "error_message"),
            ({"status": "Failed", "outputs": [output]}, ""),
            ({"status": "Canceled", "datasets_published": [task.publication()]}, ""),
            ({"status": "Completed", "outputs": [output | {"row_count": -1}]}, "outputs[0].row_count"),
            ({"status": "Completed", "outputs": [output | {"cursor": TOP + 1}]}, "outputs[0].cursor"),
            ({"status": "Completed", "outputs": [output | {"output_index": -1}]}, "outputs[0].output_index"),
        ):
            refusals.check(task.call("complete", **fields), 422, "body_invalid", field=field)


def test_bad_attempts(task: Claimed) -> None:
    with Refusals(task.harness) as refusals:
        for attempt in (0, -1, 2**31, 10**30, "1", 1.0, None, True):
            for call, fields in (("heartbeat", {}), ("complete", {"status": "Completed"})):
                reply = task.harness.task(call, task.token, task.body(**fields) | {"attempt": attempt})
                refusals.check(reply, 422, "body_invalid", field="attempt")
        for attempt in (-1, TOP + 1, "1"):
            reply = task.harness.worker("POST", "/internal/task-token", task.body() | {"attempt": attempt})
            refusals.check(reply, 422, "body_invalid", field="attempt")


def test_bad_claims(harness: DispatcherHarness, task: Claimed) -> None:
    with Refusals(harness) as refusals:
        for fields, field in (
            ({"worker_id": ""}, "worker_id"),
            ({"worker_id": "w" * 201}, "worker_id"),
            ({"claim_id": ""}, "claim_id"),
            ({"claim_id": "c" * 201}, "claim_id"),
            ({"claim_id": 7}, "claim_id"),
        ):
            body = {"task_id": task.task_id, "worker_id": "w"} | fields
            refusals.check(harness.worker("POST", "/internal/task-claim", body), 422, "body_invalid", field=field)


def test_bad_tasks(harness: DispatcherHarness) -> None:
    job = make_job(harness)
    dataset = {"dataset_uuid": NOWHERE, "dataset_version": NOWHERE, "input_index": 0}
    good = {"job_id": job["job_id"]}
    with Refusals(harness) as refusals:

        def refused(tasks: Any, status: int, code: str, field: str) -> None:
            refusals.check(harness.service("POST", "/internal/tasks", {"tasks": tasks}), status, code, field)

        refused([], 422, "body_invalid", "tasks")
        refused([good] * 1001, 422, "body_invalid", "tasks")
        refused([good, {"job_id": NOWHERE}], 404, "job_not_found", "tasks.job_id")
        refused([good, good | {"task_id": "x"}], 422, "body_invalid", "tasks[1].task_id")
        for fields, field in BAD_POINTS:
            if "cursor" in fields:
                continue
            refused([good, good | {"unit": fields}], 422, "body_invalid", f"tasks[1].unit{field}")
            bad = good | {"inputs": [dataset | {"unit": fields}]}
            refused([good, bad], 422, "body_invalid", f"tasks[1].inputs[0].unit{field}")
        for cursor in ({"after": 5, "to": 4}, {"after": -2, "to": 4}, {"after": 10**30, "to": 4}):
            refused([good | {"unit": {"cursor": cursor}}], 422, "body_invalid", "tasks[0].unit.cursor")
        refused(
            [good | {"unit": {"cursor": {"after": 0, "to": TOP + 1}}}], 422, "body_invalid", "tasks[0].unit.cursor.to"
        )
        where = good | {"inputs": [dataset | {"unit": {"partition_key": "a"}, "where": {"a": {"b": 1}}}]}
        refused([where], 422, "body_invalid", "tasks[0].inputs[0].where[...]")


def test_a_clash_refuses_every_task_of_the_call(harness: DispatcherHarness) -> None:
    org = make_job(harness)
    other = harness.make_job("other", org="acme")
    task_id = harness.make_task(org["job_id"])
    second = "019a0000-0000-7000-8000-0000000000aa"
    clash = {"job_id": other["job_id"], "task_id": task_id}
    with Refusals(harness) as refusals:
        for tasks in (
            [clash],
            [{"job_id": other["job_id"]}, clash],
            [clash, *({"job_id": other["job_id"]} for _ in range(300))],
            [{"job_id": other["job_id"], "task_id": second}, {"job_id": org["job_id"], "task_id": second}],
        ):
            reply = harness.service("POST", "/internal/tasks", {"tasks": tasks})
            refusals.check(reply, 422, "task_conflict", field="tasks.task_id")


def test_an_attempt_that_never_was_is_not_current(harness: DispatcherHarness) -> None:
    task_id = harness.make_task(make_job(harness)["job_id"])
    with Refusals(harness) as refusals:
        ask = {"task_id": task_id, "attempt": 0}
        reply = harness.service("POST", "/internal/task-introspect", ask)
        assert reply.body == {"current": False, "status": "Queued"}
        reply = harness.worker("POST", "/internal/task-token", ask | {"lease_token": NOWHERE})
        refusals.check(reply, 409, "fenced")
        reply = harness.service("POST", "/internal/task-introspect", ask | {"task_id": NOWHERE})
        refusals.check(reply, 404, "task_not_found")


@pytest.mark.parametrize(
    ("path", "key"), [("/internal/task-claim-batch", "claims"), ("/v1/task/batch", "calls")], ids=["claims", "calls"]
)
def test_empty_and_oversized_batches(harness: DispatcherHarness, path: str, key: str) -> None:
    listener = "internal" if key == "claims" else "task"
    with Refusals(harness) as refusals:
        for size in (0, MAX_BATCH + 1):
            reply = harness.call(listener, "POST", path, {key: [{}] * size}, {WORKER: harness.worker_token})
            refusals.check(reply, 422, "body_invalid", field=key)


def test_bad_items_among_good_ones(harness: DispatcherHarness) -> None:
    first, second = claimed(harness), claimed(harness)
    good = {"call": "heartbeat", "capability_token": first.token, "body": first.body()}
    other = good | {"capability_token": second.token, "body": second.body()}
    bad_event = second.body(events=[second.output("none") | {"cursor": -1}])
    foreign = second.body(events=[first.output("none") | {"cursor": 1}])
    items: list[tuple[Any, int]] = [
        (good, 200),
        (good | {"call": "explode"}, 422),
        (7, 422),
        (None, 422),
        ({}, 422),
        (good | {"extra": 1}, 422),
        (good | {"body": None}, 422),
        (good | {"body": []}, 422),
        (good | {"capability_token": ""}, 401),
        (good | {"capability_token": 7}, 422),
        (good | {"capability_token": second.token}, 403),
        (other | {"body": second.body() | {"lease_token": NOWHERE}}, 409),
        (other | {"call": "events", "body": bad_event}, 422),
        (other | {"call": "events", "body": foreign}, 403),
        (good | {"body": first.body() | {"task_id": NOWHERE}}, 403),
        (other, 200),
    ]
    encoded = [msgspec.json.encode(item) for item, _ in items]
    # Bytes that are no text, and the character that cannot be stored, are their item's trouble alone.
    nul = msgspec.json.encode(good | {"capability_token": "NUL"}).replace(b"NUL", b"a\\u0000b")
    latin = msgspec.json.encode(good | {"capability_token": "LATIN"}).replace(b"LATIN", b"\xff")
    body = b'{"calls": [' + b",".join([*encoded[:3], nul, latin, *encoded[3:]]) + b"]}"
    reply = harness.call("task", "POST", "/v1/task/batch", body)
    assert reply.status == 200
    statuses = [answer["status"] for answer in reply.body["answers"]]
    expected = [status for _, status in items]
    assert statuses == [*expected[:3], 422, 400, *expected[3:]]
    for answer in reply.body["answers"]:
        if answer["status"] != 200:
            assert set(answer["body"]["error"]) == {"code", "message", "details"}
            check_leaks(answer["body"])


def test_bad_claims_among_good_ones(harness: DispatcherHarness) -> None:
    job = make_job(harness)
    tasks = [harness.make_task(job["job_id"]) for _ in range(2)]
    good = [{"task_id": task_id, "worker_id": "w"} for task_id in tasks]
    items = [
        good[0],
        7,
        {"task_id": "x", "worker_id": "w"},
        good[0] | {"worker_id": "\x00"},
        good[1],
        good[1] | {"a": 1},
    ]
    reply = harness.worker("POST", "/internal/task-claim-batch", {"claims": items})
    assert [answer["status"] for answer in reply.body["answers"]] == [200, 422, 422, 422, 200, 422]
    leases = [reply.body["answers"][index]["body"] for index in (0, 4)]
    before = content(harness)
    calls = [
        {"call": "complete", "capability_token": lease["capability_token"], "body": fence(task_id, lease)}
        for task_id, lease in zip(tasks, leases, strict=True)
    ]
    answers = harness.task_batch(calls)
    assert [answer["body"]["error"]["details"]["field"] for answer in answers] == ["status", "status"]
    assert content(harness) == before
