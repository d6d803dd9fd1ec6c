"""Many at once: claimers on one task, bad calls among good ones, two Dispatchers on the same databases."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tests.support.configs import dispatcher_config
from tests.support.dispatcher import DispatcherHarness, Reply, fence
from tracelake.dispatcher.engine.file_publications import _LOCK_GENERATIONS
from tracelake.dispatcher.engine.plan import WritePlan
from tracelake.dispatcher.engine.tables import task_rows
from tracelake.model.backoff import Backoff

WORKER, TASK = "x-trace-worker-token", "x-trace-task-capability"


async def claim(harness: DispatcherHarness, task_id: str, **fields: Any) -> Reply:
    body = {"task_id": task_id, "worker_id": "w"} | fields
    return await harness.call_async("internal", "POST", "/internal/task-claim", body, {WORKER: harness.worker_token})


async def say(harness: DispatcherHarness, call: str, task_id: str, lease: Any, **fields: Any) -> Reply:
    headers = {TASK: lease["capability_token"]}
    return await harness.call_async("task", "POST", f"/v1/task/{call}", fence(task_id, lease, **fields), headers)


def test_a_hundred_claimers_on_one_task(harness: DispatcherHarness) -> None:
    task_id = harness.make_task(harness.make_job()["job_id"])

    async def storm() -> list[Reply]:
        return await asyncio.gather(*(claim(harness, task_id, worker_id=f"w{n}") for n in range(100)))

    answers = Counter(reply.body.get("reason", "Claimed") for reply in harness.run(storm()))
    assert answers == {"Claimed": 1, "AlreadyRunning": 99}
    assert harness.row(task_id)["attempt"] == 1


def test_a_hundred_completions_of_one_task(harness: DispatcherHarness) -> None:
    job = harness.make_job(outputs=[{"name": "said", "storage": "none"}])
    task_id = harness.make_task(job["job_id"])
    lease = harness.claim(task_id).body
    said = {key: job["outputs"][0][key] for key in ("dataset_uuid", "dataset_version")}

    async def storm() -> list[Reply]:
        words = ["Completed", "Failed", "Canceled"]
        return await asyncio.gather(
            *(
                say(harness, "complete", task_id, lease, status=words[n % 3], events=[said | {"cursor": n}])
                for n in range(100)
            )
        )

    replies = harness.run(storm())
    assert {reply.status for reply in replies} == {200}
    assert Counter(reply.body.get("duplicate", False) for reply in replies) == {False: 1, True: 99}
    assert len({reply.body["status"] for reply in replies}) == 1, "everybody hears what was recorded"
    assert len(harness.sql("SELECT FROM events")) == 1, "only the word that was taken left its events"


def test_bad_input_in_a_batch_is_nobody_elses_trouble(harness: DispatcherHarness) -> None:
    job = harness.make_job(outputs=[{"name": "said", "storage": "none"}])
    tasks = [harness.make_task(job["job_id"]) for _ in range(6)]
    leases = [harness.claim(task_id).body for task_id in tasks]
    said = {key: job["outputs"][0][key] for key in ("dataset_uuid", "dataset_version")}
    foreign = said | {"dataset_uuid": str(UUID(int=7))}
    bad: list[dict[str, Any]] = [
        {"events": [said | {"cursor": 1}, foreign | {"cursor": 1}]},
        {"events": [said | {"cursor": -1}]},
        {"events": [said | {"cursor": 1, "partition_key": "x"}]},
    ]
    calls: list[Any] = []
    for index, (task_id, lease) in enumerate(zip(tasks, leases, strict=True)):
        events = bad[index // 2] if index % 2 else {"events": [said | {"cursor": index}]}
        body = fence(task_id, lease, status="Completed", **events)
        calls.append({"call": "complete", "capability_token": lease["capability_token"], "body": body})
    answers = harness.task_batch(calls)
    assert [answer["status"] for answer in answers] == [200, 403, 200, 422, 200, 422]
    assert [harness.row(task_id)["status"] for task_id in tasks] == ["Completed", "Running"] * 3
    assert sorted(row["cursor"] for row in harness.sql("SELECT cursor FROM events")) == [0, 2, 4]


def test_a_call_that_breaks_the_statement_breaks_only_itself(
    harness: DispatcherHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the checks let through that Postgres then refuses, together and alone."""
    job = harness.make_job()
    tasks = [harness.make_task(job["job_id"]) for _ in range(9)]
    leases = {task_id: harness.claim(task_id).body for task_id in tasks}
    poisoned = UUID(tasks[4])
    real, sizes = task_rows.apply, []

    async def apply(connection: Any, plan: WritePlan) -> Any:
        sizes.append(len(plan.changes))
        if any(change.before.task_id == poisoned for change in plan.changes):
            await connection.execute("SELECT 1 / 0")
        return await real(connection, plan)

    monkeypatch.setattr(task_rows, "apply", apply)

    async def storm() -> list[Reply]:
        calls = (say(harness, "complete", task_id, leases[task_id], status="Completed") for task_id in tasks)
        return await asyncio.gather(*calls)

    replies = harness.run(storm())
    assert [reply.status for reply in replies] == [200, 200, 200, 200, 500, 200, 200, 200, 200]
    assert replies[4].code == "internal"
    assert "division" not in str(replies[4].body)
    assert max(sizes) > 1, "the calls did share a transaction"
    statuses = [harness.row(task_id)["status"] for task_id in tasks]
    assert statuses == ["Completed"] * 4 + ["Running"] + ["Completed"] * 4
    monkeypatch.undo()
    again = harness.run(say(harness, "complete", tasks[4], leases[tasks[4]], status="Completed"))
    assert again.body == {"status": "Completed"}


def test_events_do_not_wait_for_a_publication_to_the_same_generation(harness: DispatcherHarness) -> None:
    job = harness.make_job(outputs=[{"name": "files", "storage": "s3"}])
    task_id = harness.make_task(job["job_id"])
    lease = harness.claim(task_id).body
    output = {key: job["outputs"][0][key] for key in ("dataset_uuid", "dataset_version")}

    async def meanwhile() -> Reply:
        async with harness.dispatcher.ports.store.transaction() as publishing:
            await publishing.fetch(_LOCK_GENERATIONS, [UUID(output["dataset_uuid"])], [UUID(output["dataset_version"])])
            return await say(harness, "events", task_id, lease, events=[output | {"partition_key": "x"}])

    assert harness.run(meanwhile()).status == 200


QUICK = dispatcher_config(
    retry=Backoff(0.05, 0.1),
    relay_poll_seconds=0.02,
    reaper_seconds=0.05,
    retry_seconds=0.02,
    reconcile_seconds=0.05,
    reconcile_grace_seconds=0.1,
)


def test_two_dispatchers_share_the_work(state_dsn: str, queue_dsn: str, tmp_path: Path) -> None:
    """All loops of both run. Some attempts vanish, some fail, every call may go to either; nothing happens twice."""
    both = [DispatcherHarness.start(state_dsn, queue_dsn, tmp_path, QUICK) for _ in range(2)]
    try:
        for harness in both:
            harness.run(_start_loops(harness))
        job = both[0].make_job(limits={"heartbeat_timeout_seconds": 1, "max_attempts": 50})
        reply = both[1].service("POST", "/internal/tasks", {"tasks": [{"job_id": job["job_id"]}] * 40})
        tasks = [made["task_id"] for made in reply.body["tasks"]]
        accepted: Counter[str] = Counter()
        claims: Counter[str] = Counter()
        workers = [
            asyncio.run_coroutine_threadsafe(_work(harness, tasks, accepted, claims), harness.background.loop)
            for harness in both
            for _ in range(4)
        ]
        for worker in workers:
            worker.result(90)
        assert accepted == Counter(tasks), "each task was completed, and once"
        found = both[0].sql("SELECT task_id, status, attempt FROM tasks")
        assert {row["status"] for row in found} == {"Completed"}
        assert {str(row["task_id"]): row["attempt"] for row in found} == dict(claims), "every attempt had one claim"
        history = both[0].sql("SELECT task_id, count(*) AS attempts FROM task_attempts GROUP BY task_id")
        assert {str(row["task_id"]): row["attempts"] for row in history} == {
            task_id: number - 1 for task_id, number in claims.items() if number > 1
        }
        assert max(claims.values()) > 1, "some attempt had to be repeated"
    finally:
        for harness in both:
            harness.stop()


def test_claimers_of_two_dispatchers_on_the_same_tasks(state_dsn: str, queue_dsn: str, tmp_path: Path) -> None:
    """Batches that overlap, made by two processes: rows are locked in one order, and each task is claimed once."""
    both = [DispatcherHarness.start(state_dsn, queue_dsn, tmp_path) for _ in range(2)]
    try:
        job = both[0].make_job()
        for _ in range(5):
            made = both[0].service("POST", "/internal/tasks", {"tasks": [{"job_id": job["job_id"]}] * 40})
            tasks = [task["task_id"] for task in made.body["tasks"]]
            storms = [
                asyncio.run_coroutine_threadsafe(_claim_all(harness, order), harness.background.loop)
                for harness, order in zip(both, (tasks * 2, tasks[::-1] * 2), strict=True)
            ]
            replies = [reply for storm in storms for reply in storm.result(60)]
            assert {reply.status for reply in replies} == {200}
            won = Counter(reply.body["task"]["task_id"] for reply in replies if reply.body["status"] == "Claimed")
            assert won == Counter(tasks)
            reasons = {reply.body["reason"] for reply in replies if reply.body["status"] == "NotClaimed"}
            assert reasons == {"AlreadyRunning"}
    finally:
        for harness in both:
            harness.stop()


async def _claim_all(harness: DispatcherHarness, tasks: list[str]) -> list[Reply]:
    return await asyncio.gather(*(claim(harness, task_id) for task_id in tasks))


async def _start_loops(harness: DispatcherHarness) -> None:
    harness.dispatcher.start_loops()


async def _work(harness: DispatcherHarness, tasks: list[str], accepted: Counter[str], claims: Counter[str]) -> None:
    queue = harness.dispatcher.ports.queue
    async with asyncio.timeout(60):
        while len(accepted) < len(tasks):
            deliveries = await queue.receive("tasks.ecs_platform", 3, 5.0, 0.2)
            for delivery in deliveries:
                lease = (await claim(harness, delivery.key)).body
                if lease["status"] != "Claimed":
                    continue
                claims[delivery.key] += 1
                chance = (tasks.index(delivery.key) + claims[delivery.key]) % 4
                if chance == 0:
                    continue  # the worker vanishes
                status = "Failed" if chance == 1 else "Completed"
                done = await say(harness, "complete", delivery.key, lease, status=status)
                assert done.status == 200, done
                if status == "Completed" and not done.body.get("duplicate", False):
                    accepted[delivery.key] += 1
            await queue.ack(deliveries)
