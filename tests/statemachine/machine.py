"""The machine: random callers, clocks, queues and restarts against the real endpoints, held against the model.

After every step all rows are compared: a task that the step should not have touched must be the same to the last
column. At the end workers that follow wake-ups alone must bring every task to its end.
"""

import sys

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from tests.statemachine.bookkeeping import TIMEOUTS, Bookkeeping, Operation
from tests.statemachine.model import LEASE, STEPS, ModelTask, refused
from tests.support.dispatcher import Reply
from tracelake.ports import Delivery

PICK = st.integers(0, 999)
CLAIM_IDS = st.sampled_from([None, "a", "b"])
KINDS = st.sampled_from(["heartbeat", "events", "buffer-publish", "complete", "complete", "complete"])
WORDS = st.sampled_from(["Completed", "Completed", "Failed", "Canceled"])
OPERATIONS = st.tuples(PICK, KINDS, WORDS, st.booleans(), st.integers(0, 3))


class LifecycleMachine(Bookkeeping):
    @initialize()
    def begin(self) -> None:
        self.name = self.world.next_example()
        self.queue = f"tasks.{self.name}"
        for kind, timeout in TIMEOUTS.items():
            self.jobs[kind] = self.harness.make_job(
                kind,
                org=self.name,
                runtime=self.name,
                limits={"timeout_seconds": int(timeout), "max_attempts": 3 if kind == "patient" else 2},
                outputs=[{"name": "said", "storage": "none"}, {"name": "sent", "storage": "buffered"}],
            )
            self.create(kind, 2)
        self.claim(0, "a")
        self.claim(2, None)

    # Making and claiming

    @precondition(lambda self: len(self.tasks) < 7)
    @rule(kind=st.sampled_from(sorted(TIMEOUTS)), count=st.integers(1, 3))
    def create(self, kind: str, count: int) -> None:
        job = self.jobs[kind]
        reply = self.harness.service("POST", "/internal/tasks", {"tasks": [{"job_id": job["job_id"]}] * count})
        assert reply.status == 200, reply
        for made in reply.body["tasks"]:
            assert made["status"] == "Queued"
            limit = 3 if kind == "patient" else 2
            self.tasks.append(ModelTask(made["task_id"], TIMEOUTS[kind], limit))
            self.touched.add(made["task_id"])

    @precondition(lambda self: self.tasks)
    @rule(pick=PICK)
    def create_again(self, pick: int) -> None:
        task = self.task(pick)
        kind = next(kind for kind, timeout in TIMEOUTS.items() if timeout == task.timeout)
        body = {"tasks": [{"job_id": self.jobs[kind]["job_id"], "task_id": task.task_id}]}
        reply = self.harness.service("POST", "/internal/tasks", body)
        assert reply.body["tasks"] == [{"task_id": task.task_id, "status": task.status, "duplicate": True}]

    @precondition(lambda self: self.tasks)
    @rule(pick=PICK, claim_id=CLAIM_IDS)
    def claim(self, pick: int, claim_id: str | None) -> None:
        task = self.task(pick)
        self.check_claim(task, claim_id, self.harness.claim(task.task_id, claim_id).body)

    @precondition(lambda self: self.tasks)
    @rule(picks=st.lists(st.tuples(PICK, CLAIM_IDS), min_size=1, max_size=4))
    def claim_batch(self, picks: list[tuple[int, str | None]]) -> None:
        wanted = {self.task(pick): claim_id for pick, claim_id in picks}
        claims = [
            {"task_id": task.task_id, "worker_id": "w"} | ({"claim_id": claim_id} if claim_id else {})
            for task, claim_id in wanted.items()
        ]
        reply = self.harness.worker("POST", "/internal/task-claim-batch", {"claims": claims})
        for (task, claim_id), answer in zip(wanted.items(), reply.body["answers"], strict=True):
            assert answer["status"] == 200
            self.check_claim(task, claim_id, answer["body"])

    @precondition(lambda self: self.tasks)
    @rule(pick=PICK)
    def claim_storm(self, pick: int) -> None:
        """Many workers woken for one task: one of them gets it, if anybody does."""
        task = self.task(pick)
        head = {"x-trace-worker-token": self.harness.worker_token}
        calls = [
            ("internal", "/internal/task-claim", {"task_id": task.task_id, "worker_id": f"w{n}"}, head)
            for n in range(6)
        ]
        bodies = [reply.body for reply in self.world.together(calls)]
        bodies.sort(key=lambda body: body["status"])  # the winner, if any, is what the model sees first
        for body in bodies:
            self.check_claim(task, None, body)

    # The task's own calls, by any attempt that ever was

    @precondition(lambda self: self.attempts)
    @rule(operation=OPERATIONS)
    def task_call(self, operation: Operation) -> None:
        attempt, kind, body = self.prepare(operation)
        self.check(attempt, kind, body, self.harness.task(kind, attempt.token, body))

    @precondition(lambda self: self.attempts)
    @rule(operations=st.lists(OPERATIONS, min_size=1, max_size=6))
    def task_batch(self, operations: list[Operation]) -> None:
        prepared = [self.prepare(operation) for operation in operations]
        calls = [{"call": kind, "capability_token": attempt.token, "body": body} for attempt, kind, body in prepared]
        for (attempt, kind, body), answer in zip(prepared, self.harness.task_batch(calls), strict=True):
            self.check(attempt, kind, body, Reply(answer["status"], answer["body"]))

    @precondition(lambda self: self.attempts)
    @rule(operation=OPERATIONS, repeats=st.integers(2, 4))
    def repeat_together(self, operation: Operation, repeats: int) -> None:
        """The same call several times at once: one of them is the call, the others find it done."""
        attempt, kind, body = self.prepare(operation)
        head = {"x-trace-task-capability": attempt.token}
        replies = self.world.together([("task", f"/v1/task/{kind}", body, head)] * repeats)
        replies.sort(key=lambda reply: bool(reply.status == 200 and reply.body.get("duplicate", False)))
        for reply in replies:
            self.check(attempt, kind, body, reply)

    @precondition(lambda self: len(self.attempts) > 1)
    @rule(one=PICK, other=OPERATIONS)
    def use_anothers_token(self, one: int, other: Operation) -> None:
        attempt, kind, body = self.prepare(other)
        others = [each for each in attempt.task.attempts if each is not attempt] or self.attempts
        thief = others[one % len(others)]
        if thief is attempt:
            return
        reply = self.harness.task(kind, thief.token, body)
        if reply.status == 401:
            assert thief.token_may_be_expired(self.now)
        else:
            assert (reply.status, reply.code) == (403, "token_mismatch")

    @precondition(lambda self: self.attempts)
    @rule(pick=PICK)
    def ask_about(self, pick: int) -> None:
        attempt = self.attempt(pick)
        fence = {
            "task_id": attempt.task.task_id,
            "attempt": attempt.number,
            "lease_token": attempt.lease_token,
        }
        seen = self.harness.service("POST", "/internal/task-introspect", fence)
        assert seen.body == {"current": attempt.current, "status": attempt.task.status}
        token = self.harness.worker("POST", "/internal/task-token", fence)
        if token.status == 200:
            assert attempt.current
        elif attempt.current:  # no token outlives its attempt's deadline by more than the grace
            assert (token.status, token.code) == (409, "deadline_exceeded"), token
            assert attempt.token_may_be_expired(self.now)
        else:
            assert (token.status, token.code) == (409, "fenced"), token

    # People

    @precondition(lambda self: self.tasks)
    @rule(pick=PICK)
    def cancel(self, pick: int) -> None:
        task = self.task(pick)
        reply = self.harness.service("POST", f"/internal/tasks/{task.task_id}/cancel")
        expected = task.cancel()
        assert reply.status == expected.status, (reply, expected)
        if expected.status != 200:
            assert expected == refused(422, reply.code)
            return
        for name, value in expected.says.items():
            assert reply.body.get(name, False) == value
        if not expected.says["duplicate"]:
            self.touched.add(task.task_id)

    # Time and loops

    @rule(seconds=st.sampled_from(STEPS))
    def wait(self, seconds: float) -> None:
        self.world.advance(seconds)

    @rule()
    def reap(self) -> None:
        if self.now - self.world.reap() >= LEASE:
            self.touched |= {task.task_id for task in self.tasks if task.expire(self.now)}

    @rule()
    def let_leases_run_out(self) -> None:
        self.reap()
        self.wait(STEPS[1])
        self.reap()

    @rule()
    def retry(self) -> None:
        self.harness.requeue_due()
        ready = {task.task_id for task in self.tasks if task.requeue(self.now)}
        self.touched |= ready
        self.lost -= ready

    @precondition(lambda self: self.attempts)
    @rule(operation=OPERATIONS, requeued=st.booleans(), replaced=st.booleans())
    def come_back_late(self, operation: Operation, requeued: bool, replaced: bool) -> None:
        """An attempt that was silent for too long speaks: before its retry is queued, after that, or after it began."""
        self.let_leases_run_out()
        if requeued:
            self.wait(STEPS[1])
            self.retry()
            if replaced:
                task = self.attempt(operation[0]).task
                self.check_claim(task, None, self.harness.claim(task.task_id).body)
        self.promises_hold()
        self.task_call(operation)

    @precondition(lambda self: self.attempts)
    @rule(operation=OPERATIONS, waits=st.booleans())
    def ask_to_stop(self, operation: Operation, waits: bool) -> None:
        self.cancel(self.tasks.index(self.attempt(operation[0]).task))
        if waits:
            self.let_leases_run_out()
        self.promises_hold()
        self.task_call(operation)

    @rule(outage=st.booleans())
    def restart(self, outage: bool) -> None:
        self.world.restart()
        if outage:  # nobody could reach anybody for longer than a lease: that is no reason to judge
            self.wait(STEPS[1])
            self.reap()

    # Wake-ups

    @rule()
    def relay(self) -> None:
        self.world.relay_all()

    @rule(limit=st.integers(1, 4))
    def receive(self, limit: int) -> None:
        self.deliveries += self.world.receive(self.queue, limit)
        self.notice_losses()  # one that was received too often is a dead letter now

    @precondition(lambda self: self.deliveries)
    @rule(pick=PICK, works=st.booleans())
    def ack(self, pick: int, works: bool) -> None:
        delivery = self.deliveries.pop(pick % len(self.deliveries))
        if works:
            task = next(task for task in self.tasks if task.task_id == delivery.key)
            self.check_claim(task, delivery.receipt, self.harness.claim(task.task_id, delivery.receipt).body)
        self.world.ack([delivery])
        self.notice_losses()

    @rule()
    def lose_all_messages(self) -> None:
        self.world.purge(self.queue)
        self.notice_losses()

    @precondition(lambda self: self.tasks)
    @rule(pick=PICK)
    def duplicate_a_message(self, pick: int) -> None:
        self.world.publish_again(self.queue, self.task(pick).task_id)

    @rule()
    def reconcile(self) -> None:
        self.wait(STEPS[1])  # past the grace time of everything
        self.world.relay_all()
        before = self.world.messages(self.queue)
        self.world.reconcile()
        self.world.relay_all()
        after = self.world.messages(self.queue)
        ready = {task.task_id for task in self.tasks if task.status == "Queued"}
        assert ready <= set(after), "a ready task was left without a wake-up"
        assert {key: after[key] for key in before} == before, "a live wake-up was doubled"
        assert all(after[key] == 1 for key in after.keys() - before.keys())
        self.lost.clear()

    # The end

    def teardown(self) -> None:
        if sys.exc_info()[0] is None and self.tasks:
            self.drain()

    def drain(self) -> None:
        """Workers that know nothing but wake-ups, and loops that run: everything comes to its end."""
        for _ in range(12):
            self.let_leases_run_out()
            self.wait(STEPS[2])
            self.retry()
            self.reconcile()
            while deliveries := self.world.receive(self.queue, 50):
                for delivery in deliveries:
                    self.finish(delivery)
                self.world.ack(deliveries)
            self.rows_are_what_the_model_says()
            if all(task.final for task in self.tasks):
                break
        self.nothing_that_was_said_is_lost_or_doubled()
        assert all(task.final for task in self.tasks), [task for task in self.tasks if not task.final]

    def finish(self, delivery: Delivery) -> None:
        task = next(task for task in self.tasks if task.task_id == delivery.key)
        self.check_claim(task, None, self.harness.claim(task.task_id).body)
        if task.status == "Running":
            attempt = task.attempts[-1]
            body = {"task_id": task.task_id, "attempt": attempt.number, "lease_token": attempt.lease_token}
            body |= {"status": "Canceled" if task.cancel_requested else "Completed", "retryable": True}
            self.check(attempt, "complete", body, self.harness.task("complete", attempt.token, body))
