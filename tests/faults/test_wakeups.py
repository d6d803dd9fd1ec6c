"""Wake-ups: each way to lose one is repaired, live ones are left alone, and a rejected one does not stop the others."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import asyncpg
import msgspec
import pytest

from tests.support.configs import dispatcher_config
from tests.support.dispatcher import DispatcherHarness, fence
from tests.support.state import hold_task
from tracelake.dispatcher.outbox.relay import OutboxRelay
from tracelake.errors import StoreUnavailableError
from tracelake.model.job import buffer_queue
from tracelake.ports import DeadLetter, Delivery, Message, Queue, QueueDepth, QueueRejectedError, QueueUnavailableError

TASKS = "tasks.ecs_platform"
GRACE = dispatcher_config().reconcile_grace_seconds + 1


class PickyQueue:
    """The real queue, but for one key that it never takes, and days on which it takes nothing."""

    def __init__(self, real: Queue) -> None:
        self.real = real
        self.refused: set[str] = set()
        self.away = False

    async def publish(self, messages: Sequence[Message]) -> None:
        if self.away:
            raise QueueUnavailableError("away")
        if any(message.key in self.refused for message in messages):
            raise QueueRejectedError("no such queue")
        await self.real.publish(messages)

    async def receive(
        self,
        queue: str,
        limit: int,
        visibility_seconds: float,
        wait_seconds: float = 0.0,
        *,
        idle_after: float | None = None,
    ) -> list[Delivery]:
        return await self.real.receive(queue, limit, visibility_seconds, wait_seconds, idle_after=idle_after)

    async def set_weights(self, weights: Mapping[str, float]) -> None:
        await self.real.set_weights(weights)

    async def ack(self, deliveries: Sequence[Delivery]) -> int:
        return await self.real.ack(deliveries)

    async def extend(self, deliveries: Sequence[Delivery], visibility_seconds: float) -> int:
        return await self.real.extend(deliveries, visibility_seconds)

    async def absent(self, queue: str, keys: Sequence[str]) -> set[str]:
        return await self.real.absent(queue, keys)

    async def depths(self) -> list[QueueDepth]:
        return await self.real.depths()

    async def dead_letters(self, queue: str | None, limit: int) -> list[DeadLetter]:
        return await self.real.dead_letters(queue, limit)

    async def drop_dead(self, message_ids: Sequence[str] | None) -> int:
        return await self.real.drop_dead(message_ids)

    async def discard(self, keys: Sequence[str]) -> int:
        return await self.real.discard(keys)

    async def discard_queue(self, queue: str, limit: int) -> int:
        return await self.real.discard_queue(queue, limit)

    async def close(self) -> None:
        await self.real.close()


def keys(harness: DispatcherHarness, queue: str = TASKS) -> list[str]:
    """What a receiver gets now. Nothing is acknowledged, so it stays live."""
    received = harness.run(harness.dispatcher.ports.queue.receive(queue, 100, 600.0))
    return sorted(delivery.key for delivery in received)


def reconcile(harness: DispatcherHarness) -> int:
    return harness.run(harness.dispatcher.reconciler.run_once())


def queue_sql(harness: DispatcherHarness, statement: str, *arguments: Any) -> str:
    async def execute() -> str:
        connection = await asyncpg.connect(harness.queue_dsn)
        try:
            return await connection.execute(statement, *arguments)
        finally:
            await connection.close()

    return harness.run(execute())


def test_a_rejected_row_fails_after_twenty_tries_while_others_flow(harness: DispatcherHarness) -> None:
    dispatcher = harness.dispatcher
    picky = PickyQueue(dispatcher.ports.queue)
    relay = OutboxRelay(dispatcher.ports.store, picky, harness.config, dispatcher.metrics)
    job = harness.make_job()
    cursed = harness.make_task(job["job_id"])
    picky.refused.add(cursed)
    for tries in range(1, 21):
        other = harness.make_task(job["job_id"])
        picky.away = True
        with pytest.raises(StoreUnavailableError):
            harness.run(relay.run_once())
        picky.away = False
        assert harness.run(relay.run_once()) == 2
        row = harness.sql("SELECT * FROM outbox")[0]
        assert (str(row["key"]), row["tries"]) == (cursed, tries), "an absence was counted, or the others were held up"
        assert row["status"] == ("Failed" if tries == 20 else "Pending")
        assert keys(harness) == [other]
        assert harness.run(relay.run_once()) == 0, "it was tried again without a pause"
        harness.advance(301)
    assert harness.run(relay.run_once()) == 0
    listed = harness.service("GET", "/internal/outbox?status=failed").body
    assert (listed["failed"], listed["rows"][0]["key"], listed["rows"][0]["tries"]) == (1, cursed, 20)

    picky.refused.clear()
    requeued = harness.service("POST", "/internal/outbox/requeue", {"outbox_ids": [listed["rows"][0]["outbox_id"]]})
    assert requeued.body == {"requeued": 1}
    assert harness.run(relay.run_once()) == 1
    assert keys(harness) == [cursed]
    assert not harness.sql("SELECT FROM outbox")


def _purge(harness: DispatcherHarness, task_id: str) -> None:
    harness.relay()
    assert queue_sql(harness, "DELETE FROM messages") == "DELETE 1"


def _bury(harness: DispatcherHarness, task_id: str) -> None:
    """Received too often by workers that died before they could claim."""
    harness.relay()
    queue = harness.dispatcher.ports.queue
    for _ in range(10):
        received = harness.run(queue.receive(TASKS, 1, 60.0))
        assert [delivery.key for delivery in received] == [task_id]
        harness.run(queue.extend(received, 0.0))
    assert harness.run(queue.receive(TASKS, 1, 60.0)) == []
    assert [depth.dead for depth in harness.run(queue.depths())] == [1]


def _drop_outbox_row(harness: DispatcherHarness, task_id: str) -> None:
    harness.sql("DELETE FROM outbox")


@pytest.mark.parametrize("lose", [_purge, _bury, _drop_outbox_row], ids=["purged", "dead letter", "outbox row"])
def test_a_lost_wake_up_is_repaired_once(harness: DispatcherHarness, lose: Any) -> None:
    task_id = harness.make_task(harness.make_job()["job_id"])
    lose(harness, task_id)
    assert reconcile(harness) == 0, "within the grace time nothing counts as lost"
    harness.advance(GRACE)
    assert reconcile(harness) == 1
    assert reconcile(harness) == 0, "its outbox row is a live wake-up"
    harness.relay()
    harness.advance(GRACE)
    assert reconcile(harness) == 0, "its message is a live wake-up"
    assert keys(harness) == [task_id]
    harness.advance(GRACE)
    assert reconcile(harness) == 0, "a message in flight is one too"


def test_only_what_is_ready_is_woken_again(harness: DispatcherHarness) -> None:
    job = harness.make_job()
    tasks = [harness.make_task(job["job_id"]) for _ in range(7)]
    ready, live, running, waiting, done, canceled, held = tasks
    leases = {task_id: harness.claim(task_id).body for task_id in (running, waiting, done)}
    for task_id, status in ((waiting, "Failed"), (done, "Completed")):
        lease = leases[task_id]
        harness.task("complete", lease["capability_token"], fence(task_id, lease, status=status))
    harness.service("POST", f"/internal/tasks/{canceled}/cancel")
    hold_task(harness, held)
    harness.relay()
    queue_sql(harness, "DELETE FROM messages WHERE key <> $1", live)
    harness.advance(GRACE)
    assert reconcile(harness) == 1
    harness.relay()
    assert keys(harness) == sorted([ready, live])


def test_many_lost_wake_ups_are_found_page_by_page(harness: DispatcherHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracelake.dispatcher.loops.reconciler.PAGE", 3)
    jobs = [harness.make_job(name, runtime=name) for name in ("one", "two")]
    tasks = {job["job_id"]: [harness.make_task(job["job_id"]) for _ in range(5)] for job in jobs}
    harness.sql("DELETE FROM outbox")
    harness.advance(GRACE)
    assert reconcile(harness) == 10
    assert reconcile(harness) == 0
    harness.relay()
    assert keys(harness, "tasks.one") == sorted(tasks[jobs[0]["job_id"]])
    assert keys(harness, "tasks.two") == sorted(tasks[jobs[1]["job_id"]])


def test_a_publish_that_nobody_committed_is_sent_again(harness: DispatcherHarness) -> None:
    job = harness.make_job(outputs=[{"name": "sent", "storage": "buffered"}])
    task_id = harness.make_task(job["job_id"])
    lease = harness.claim(task_id).body
    published = []
    for name in ("lost", "live", "committed"):
        uri = f"s3://trace-scratch/buffers/{task_id}/1/{name}.jsonl"
        harness.run(harness.objects.put(uri, b"{}\n"))
        body = fence(task_id, lease, batch_uri=uri, dedupe_scope="sent", record_count=1)
        reply = harness.task("buffer-publish", lease["capability_token"], body)
        published.append(reply.body["publish_id"])
    harness.task("complete", lease["capability_token"], fence(task_id, lease, status="Completed"))
    lost, live, committed = published
    queue = buffer_queue(UUID(lease["task"]["outputs"][0]["dataset_uuid"]))
    harness.relay()
    first = harness.run(harness.dispatcher.ports.queue.receive(queue, 10, 600.0))
    bodies = {delivery.key: delivery.body for delivery in first}
    assert sorted(bodies) == sorted(published)
    report = {"dataset_uuid": lease["task"]["outputs"][0]["dataset_uuid"], "commit_seq": 1, "publish_ids": [committed]}
    assert harness.service("POST", "/internal/buffer-committed", report).status == 200
    queue_sql(harness, "DELETE FROM messages WHERE key <> $1", live)
    assert reconcile(harness) == 0
    harness.advance(GRACE)
    assert reconcile(harness) == 1
    assert reconcile(harness) == 0
    harness.relay()
    again = harness.run(harness.dispatcher.ports.queue.receive(queue, 10, 600.0))
    assert [delivery.key for delivery in again] == [lost]
    assert _json(again[0].body) == _json(bodies[lost]) | {"again": True}, "the pointer is the same one"


def test_a_lost_publish_behind_many_live_ones_is_found(
    harness: DispatcherHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tracelake.dispatcher.loops.reconciler.PAGE", 2)
    job = harness.make_job(outputs=[{"name": "sent", "storage": "buffered"}])
    task_id = harness.make_task(job["job_id"])
    lease = harness.claim(task_id).body
    for number in range(5):
        uri = f"s3://trace-scratch/buffers/{task_id}/1/{number}.jsonl"
        harness.run(harness.objects.put(uri, b"{}\n"))
        body = fence(task_id, lease, batch_uri=uri, dedupe_scope="sent")
        newest = harness.task("buffer-publish", lease["capability_token"], body).body["publish_id"]
    harness.task("complete", lease["capability_token"], fence(task_id, lease, status="Completed"))
    harness.relay()
    assert queue_sql(harness, "DELETE FROM messages WHERE key = $1", newest) == "DELETE 1"
    harness.advance(GRACE)
    assert reconcile(harness) == 1
    assert [str(row["key"]) for row in harness.sql("SELECT key FROM outbox")] == [newest]


def test_reconcilers_at_the_same_time_do_not_flood_the_queue(harness: DispatcherHarness) -> None:
    job = harness.make_job()
    tasks = [harness.make_task(job["job_id"]) for _ in range(20)]
    harness.sql("DELETE FROM outbox")
    harness.advance(GRACE)

    async def all_at_once() -> None:
        await asyncio.gather(*(harness.dispatcher.reconciler.run_once() for _ in range(4)))

    harness.run(all_at_once())
    # Four at once may, by bad luck, find the same loss twice; that is harmless. Never to find it is not.
    found = {str(row["key"]) for row in harness.sql("SELECT DISTINCT key FROM outbox")}
    assert found == set(tasks)


def _json(body: bytes) -> Any:
    return msgspec.json.decode(body)
