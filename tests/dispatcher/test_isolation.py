"""What one org, one attempt or one slow neighbour may not do to another."""

import asyncio
from typing import Any

import asyncpg
import msgspec

from tests.support.dispatcher import DispatcherHarness, Reply, fence
from tracelake.tokens.jws import MAX_TOKEN_CHARS


def output_of(job: Any, index: int = 0) -> dict[str, Any]:
    return {key: job["outputs"][index][key] for key in ("dataset_uuid", "dataset_version")}


def expire_and_requeue(harness: DispatcherHarness) -> None:
    harness.reap()
    harness.advance(200)
    harness.reap()
    harness.advance(100)
    harness.requeue_due()


def test_a_task_reads_datasets_of_its_own_org_alone(harness: DispatcherHarness) -> None:
    secret = output_of(harness.make_job(org="victim", outputs=[{"name": "secret", "storage": "s3"}]))
    job = harness.make_job(org="attacker")["job_id"]
    unknown = dict.fromkeys(secret, "019a0000-0000-7000-8000-00000000000a")
    other_version = secret | {"dataset_version": unknown["dataset_version"]}
    for dataset in (secret, unknown, other_version):
        inputs = [dataset | {"input_index": 0, "unit": {"partition_key": "a"}}]
        reply = harness.service("POST", "/internal/tasks", {"tasks": [{"job_id": job, "inputs": inputs}]})
        assert (reply.status, reply.code) == (404, "dataset_not_found")
    assert harness.sql("SELECT FROM tasks") == []


def test_the_payload_names_every_field_of_an_input(harness: DispatcherHarness) -> None:
    job = harness.make_job(outputs=[{"name": "blocks", "storage": "s3"}])
    item = output_of(job) | {"input_index": 0, "unit": {"cursor": {"after": -1, "to": 5}}, "name": "mine"}
    task_id = harness.make_task(job["job_id"], inputs=[item])
    expected = [item | {"name": "blocks", "revision": "", "where": None}]
    assert harness.claim(task_id).body["task"]["inputs"] == expected
    assert harness.worker("GET", f"/internal/task-fetch?task_id={task_id}").body["task"]["inputs"] == expected


def test_a_token_of_the_widest_task_is_one_that_every_dispatcher_takes(harness: DispatcherHarness) -> None:
    names = [f"d{number:03}" + "x" * 120 for number in range(101)]
    jobs = [harness.make_job(name, outputs=[{"name": name, "storage": "s3"}]) for name in names]
    inputs = [output_of(job) | {"input_index": index, "unit": {"partition_key": "a"}} for index, job in enumerate(jobs)]
    spec = {"job_id": jobs[0]["job_id"], "inputs": inputs}
    too_many = harness.service("POST", "/internal/tasks", {"tasks": [spec]})
    assert (too_many.status, too_many.code) == (422, "body_invalid")
    task_id = harness.make_task(jobs[0]["job_id"], inputs=inputs[:100])
    claim = harness.claim(task_id).body
    assert len(claim["capability_token"]) <= MAX_TOKEN_CHARS
    harness.restart()
    assert harness.task("heartbeat", claim["capability_token"], fence(task_id, claim)).status == 200


def test_a_failed_attempts_events_stay_unrouted(harness: DispatcherHarness) -> None:
    job = harness.make_job(outputs=[{"name": "cold", "storage": "s3"}])
    dataset = output_of(job)
    task_id = harness.make_task(job["job_id"])
    first = harness.claim(task_id).body
    said = [dataset | {"cursor": 400}, dataset | {"cursor": 500}]
    harness.task("events", first["capability_token"], fence(task_id, first, events=said))
    expire_and_requeue(harness)
    second = harness.claim(task_id).body
    prefix = second["task"]["outputs"][0]["storage"]["write_prefix"]
    for name in ("cold_0_9.parquet", "_SUCCESS"):
        harness.run(harness.objects.put(prefix + name, b"x"))
    bucket, _, key = prefix.removeprefix("s3://").partition("/")
    ref = {"scheme": "s3", "bucket": bucket, "prefix": key, "glob": "*.parquet"}
    published = [dataset | {"storage_ref": ref}]
    body = fence(task_id, second, status="Completed", events=[said[0]], datasets_published=published)
    assert harness.task("complete", second["capability_token"], body).body == {"status": "Completed"}
    states = {row["cursor"]: (row["state"], row["attempt"]) for row in harness.sql("SELECT * FROM events")}
    assert states == {400: ("Routed", 2), 500: ("AwaitsCommit", 1)}


def test_a_row_that_somebody_sits_on_costs_only_its_own_caller(harness: DispatcherHarness) -> None:
    job = harness.make_job()["job_id"]
    held, free = harness.make_task(job), harness.make_task(job)

    async def claims() -> list[Reply]:
        blocker = await asyncpg.connect(harness.state_dsn)
        try:
            async with blocker.transaction():
                await blocker.execute("SELECT FROM tasks WHERE task_id = $1 FOR UPDATE", held)
                headers = {"x-trace-worker-token": harness.worker_token}
                bodies = [{"task_id": task_id, "worker_id": "w"} for task_id in (held, free)]
                calls = (harness.call_async("internal", "POST", "/internal/task-claim", b, headers) for b in bodies)
                return await asyncio.gather(*calls)
        finally:
            await blocker.close()

    stuck, other = harness.run(claims())
    assert (stuck.status, stuck.code) == (503, "store_unavailable")
    assert other.body["status"] == "Claimed"
    assert harness.claim(held).body["status"] == "Claimed"


def test_a_buffer_message_has_what_a_sink_needs(harness: DispatcherHarness) -> None:
    job = harness.make_job(outputs=[{"name": "alerts", "storage": "buffered"}])
    task_id = harness.make_task(job["job_id"])
    claim = harness.claim(task_id).body
    uri = claim["task"]["outputs"][0]["storage"]["buffer_prefix"] + "batch.jsonl"
    meta = harness.run(harness.objects.put(uri, b"{}\n"))
    body = fence(task_id, claim, batch_uri=uri, dedupe_scope="alerts", record_count=1)
    reply = harness.task("buffer-publish", claim["capability_token"], body).body
    harness.task("complete", claim["capability_token"], fence(task_id, claim, status="Completed"))
    (row,) = harness.sql("SELECT body FROM outbox WHERE kind = 'buffer_batch'")
    (publish,) = harness.sql("SELECT publish_seq FROM buffer_publishes")  # its task sees another number
    assert msgspec.json.decode(row["body"]) == output_of(job) | reply | {
        "kind": "buffer_batch",
        "publish_seq": publish["publish_seq"],
        "org_id": job["org_id"],
        "batch_uri": uri,
        "size_bytes": 3,
        "etag": meta.etag,
        "sha256": None,
        "content_type": "application/jsonl",
        "record_count": 1,
        "producer": {"task_id": task_id, "attempt": 1},
        "unit": None,
        "dropped": False,
        "again": False,
    }


def test_an_object_store_that_is_not_there_is_away_not_empty(harness: DispatcherHarness) -> None:
    job = harness.make_job(outputs=[{"name": "alerts", "storage": "buffered"}])
    task_id = harness.make_task(job["job_id"])
    claim = harness.claim(task_id).body
    uri = claim["task"]["outputs"][0]["storage"]["buffer_prefix"] + "batch.jsonl"
    (harness.home / "objects").rename(harness.home / "unmounted")
    body = fence(task_id, claim, batch_uri=uri, dedupe_scope="alerts")
    assert harness.task("buffer-publish", claim["capability_token"], body).status == 503
