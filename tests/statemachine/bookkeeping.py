"""What the machine knows and checks: the model beside the real rows, and the promises that hold after every step."""

from typing import Any, ClassVar

import asyncpg
from hypothesis.stateful import RuleBasedStateMachine, invariant

from tests.statemachine.model import Answer, Attempt, ModelTask
from tests.statemachine.world import World
from tests.support.dispatcher import Reply
from tracelake.ports import Delivery

TIMEOUTS = {"patient": 7 * 24 * 3600.0, "hurried": 220.0}

Operation = tuple[int, str, str, bool, int]
"""Which attempt, which call, which final word, a flag and a number: enough to make any call of a task."""


class Bookkeeping(RuleBasedStateMachine):
    world: ClassVar[World]

    def __init__(self) -> None:
        super().__init__()
        self.harness = self.world.harness
        self.tasks: list[ModelTask] = []
        self.rows: dict[str, asyncpg.Record] = {}
        self.touched: set[str] = set()
        self.deliveries: list[Delivery] = []
        self.jobs: dict[str, Any] = {}
        self.queue = ""
        self.lost: set[str] = set()

    @property
    def now(self) -> float:
        return self.world.now

    @property
    def attempts(self) -> list[Attempt]:
        return [attempt for task in self.tasks for attempt in task.attempts]

    def task(self, pick: int) -> ModelTask:
        return self.tasks[pick % len(self.tasks)]

    def attempt(self, pick: int) -> Attempt:
        return self.attempts[pick % len(self.attempts)]

    def check_claim(self, task: ModelTask, claim_id: str | None, body: Any) -> None:
        reason = task.claim(claim_id)
        if reason is None:
            assert body["status"] == "Claimed", body
            task.started(body["lease_token"], body["capability_token"], claim_id, self.now)
            self.touched.add(task.task_id)
        elif reason == "same":
            assert body["status"] == "Claimed", body
            assert body["lease_token"] == task.attempts[-1].lease_token
        else:
            assert (body["status"], body.get("reason")) == ("NotClaimed", reason)
            return
        assert body["attempt"] == len(task.attempts)

    def prepare(self, operation: Operation) -> tuple[Attempt, str, dict[str, Any]]:
        pick, kind, word, flag, number = operation
        attempt = self.attempt(pick)
        body: dict[str, Any] = {
            "task_id": attempt.task.task_id,
            "attempt": attempt.number,
            "lease_token": attempt.lease_token,
        }
        job = self.jobs["patient" if attempt.task.timeout == TIMEOUTS["patient"] else "hurried"]
        said, sent = job["outputs"]
        named = {"dataset_uuid": said["dataset_uuid"], "dataset_version": said["dataset_version"]}
        if kind == "events":
            body["events"] = [named | {"cursor": cursor} for cursor in range(number, number + 2)]
        elif kind == "buffer-publish":
            uri = f"s3://trace-scratch/buffers/{attempt.task.task_id}/{attempt.number}/{number}.jsonl"
            self.harness.run(self.harness.objects.put(uri, b"{}\n"))
            body |= {"batch_uri": uri, "dataset_uuid": sent["dataset_uuid"]}
        elif kind == "complete":
            body |= {"status": word, "retryable": flag}
            if flag:
                body["events"] = [named | {"cursor": 10 + number}]
        return attempt, kind, body

    def expect(self, attempt: Attempt, kind: str, body: dict[str, Any]) -> Answer:
        task = attempt.task
        if kind == "heartbeat":
            expected = task.heartbeat(attempt, self.now)
        elif kind == "events":
            return task.say(attempt, [event["cursor"] for event in body["events"]])
        elif kind == "buffer-publish":
            return task.publish(attempt, body["batch_uri"])
        else:
            expected = task.complete(attempt, body["status"], body["retryable"], self.now)
            if expected.status == 200 and not expected.says["duplicate"]:
                task.events |= {event["cursor"] for event in body.get("events", [])}
        if expected.status == 200 and not expected.says.get("duplicate"):
            self.touched.add(task.task_id)
        return expected

    def check(self, attempt: Attempt, kind: str, body: dict[str, Any], reply: Reply) -> None:
        if reply.status == 401:
            # Changes nothing, which the comparison of all rows will see.
            assert reply.code == "credential_expired"
            assert attempt.token_may_be_expired(self.now)
            return
        expected = self.expect(attempt, kind, body)
        assert reply.status == expected.status, (kind, body, reply, expected)
        if expected.status != 200:
            assert reply.code == expected.says["code"]
            if reply.status == 409:
                task = attempt.task
                assert reply.body["error"]["details"] == {"attempt": len(task.attempts), "status": task.status}
            return
        for name, value in expected.says.items():
            assert reply.body.get(name, False) == value, (kind, reply, expected)

    def notice_losses(self) -> None:
        self.lost |= {task.task_id for task in self.tasks if task.status == "Queued"} - self.live()

    def live(self) -> set[str]:
        return self.world.outbox(task.task_id for task in self.tasks) | set(self.world.messages(self.queue))

    @invariant()
    def promises_hold(self) -> None:
        if self.tasks:
            self.rows_are_what_the_model_says()
            self.nothing_that_was_said_is_lost_or_doubled()
            self.no_accepted_work_is_lost()

    def rows_are_what_the_model_says(self) -> None:
        rows = self.world.rows(task.task_id for task in self.tasks)
        assert len(rows) == len(self.tasks)
        for task in self.tasks:
            row = rows[task.task_id]
            assert (row["status"], row["attempt"], row["cancel_requested"]) == (
                task.status,
                len(task.attempts),
                task.cancel_requested,
            )
            assert (row["finished_at"] is not None) == task.final
            assert (row["next_retry_at"] is not None) == (task.retry_at is not None)
            assert task.results == (task.status == "Completed")
            if task.task_id not in self.touched:
                assert row == self.rows[task.task_id], "a call that must change nothing changed a row"
        self.rows = rows
        self.touched.clear()

    def nothing_that_was_said_is_lost_or_doubled(self) -> None:
        task_ids = [task.task_id for task in self.tasks]
        assert self.world.events(task_ids) == sorted(
            (task.task_id, said) for task in self.tasks for said in task.events
        )
        published = [
            (a.task.task_id, a.number, uri, a.word == "Completed") for a in self.attempts for uri in a.published
        ]
        assert self.world.publishes(task_ids) == sorted(published)

    def no_accepted_work_is_lost(self) -> None:
        """What is not final is leased, waits for a time, or is ready with a wake-up somewhere."""
        ready = {task.task_id for task in self.tasks if task.status == "Queued"}
        if ready:
            assert ready - self.live() <= self.lost, "a ready task without a wake-up"
        for task in self.tasks:
            if not task.final:
                row = self.rows[task.task_id]
                assert row["status"] == "Queued" or row["lease_expires_at"] or row["next_retry_at"]
