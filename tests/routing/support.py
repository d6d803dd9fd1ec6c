"""Driving deployed DAGs: emit events, run the tasks they make, read what came of it."""

from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

import msgspec

from tests.support import dags
from tests.support.dispatcher import DispatcherHarness, fence
from tracelake.dispatcher.audit import Actor
from tracelake.wire.dags import DeployReply
from tracelake.wire.jobs import TriggerReply, TriggerRequest


@dataclass
class Flow:
    """DAGs of one org. Tests that share a Dispatcher have an org each."""

    harness: DispatcherHarness
    org: str = dags.ORG

    @property
    def actor(self) -> Actor:
        return dags.actor(self.harness, self.org)

    def deploy(self, text: str, **options: Any) -> DeployReply:
        return dags.deploy(self.harness, text, self.org, **options)

    def trigger(self, dag: str, job: str, **unit: Any) -> TriggerReply:
        body = msgspec.convert({"idempotency_key": str(uuid4())} | unit, TriggerRequest)
        actions = self.harness.dispatcher.actions
        return self.harness.run(actions.trigger(self.actor, dag, job, body))

    def person(self, verb: str, task_id: UUID) -> Any:
        """`cancel`, `retry` or `skip` by a user."""
        return self.harness.run(getattr(self.harness.dispatcher.actions, verb)(self.actor, task_id))

    def tasks(self, job: str, status: str | None = None) -> list[dict[str, Any]]:
        """Tasks of a job by name, oldest first, with unit and inputs decoded."""
        rows = self.harness.sql(
            """SELECT t.task_id, t.status, t.attempt, t.held, t.edge, t.unit_key, t.revision, t.unit, t.inputs,
                      t.skipped_at
               FROM tasks t JOIN jobs j USING (job_id)
               WHERE j.name = $1 AND ($2::text IS NULL OR t.status = $2)
                 AND j.org_id = (SELECT org_id FROM orgs WHERE name = $3) ORDER BY t.task_id""",
            job,
            status,
            self.org,
        )
        found = []
        for row in rows:
            item = dict(row)
            item["unit"] = msgspec.json.decode(item["unit"]) if item["unit"] else None
            item["inputs"] = msgspec.json.decode(item["inputs"])
            found.append(item)
        return found

    def units(self, job: str) -> list[tuple[str, str]]:
        """`(unit_key, revision)` of every task of the job, sorted."""
        return sorted((task["unit_key"], task["revision"]) for task in self.tasks(job))

    def claim(self, task_id: UUID | str) -> Any:
        reply = self.harness.claim(str(task_id))
        assert reply.body["status"] == "Claimed", reply
        return reply.body

    def complete(self, task_id: UUID | str, lease: Any, **fields: Any) -> Any:
        body = fence(str(task_id), lease, **({"status": "Completed"} | fields))
        reply = self.harness.task("complete", lease["capability_token"], body)
        assert reply.status == 200, reply
        return reply.body

    def say(self, task_id: UUID | str, lease: Any, *events: dict[str, Any]) -> Any:
        reply = self.harness.task("events", lease["capability_token"], fence(str(task_id), lease, events=list(events)))
        assert reply.status == 200, reply
        return reply.body

    def pass_on(self, task_id: UUID | str) -> None:
        """Run the task as `noop` does: each output announces the unit of the first input."""
        lease = self.claim(task_id)
        task = lease["task"]
        unit = task["inputs"][0]["unit"]
        said = {"cursor": unit["cursor"]["to"]} if "cursor" in unit else unit
        events = [
            {"dataset_uuid": out["dataset_uuid"], "dataset_version": out["dataset_version"]} | said
            for out in task["outputs"]
            if out["storage"]["kind"] in ("none", "postgres")
        ]
        self.complete(task_id, lease, events=events)

    def run_all(self, *jobs: str) -> int:
        """Pass on everything that is ready in these jobs, until nothing is; cursors from below: each is news."""
        done = 0
        while True:
            ready = [task for job in jobs for task in self.tasks(job, "Queued") if not task["held"]]
            if not ready:
                return done
            for task in sorted(ready, key=lambda task: task["unit"].get("cursor", {"to": -1})["to"]):
                self.pass_on(task["task_id"])
                done += 1

    def fail(self, task_id: UUID | str) -> None:
        lease = self.claim(task_id)
        self.complete(task_id, lease, status="Failed", error_message="no", retryable=False)

    def drain(self) -> int:
        done = 0
        while more := self.harness.run(self.harness.dispatcher.drain.run_once()):
            done += more
        return done

    def event(self, dag: str, job: str, index: int = 0, **fields: Any) -> dict[str, Any]:
        """The body of an event on that output."""
        dataset_uuid, dataset_version = dags.output(self.harness, dag, job, index, org=self.org)
        return {"dataset_uuid": str(dataset_uuid), "dataset_version": str(dataset_version)} | fields


def block(start: int, end: int) -> dict[str, Any]:
    return {"partition_key": f"{start}-{end}", "start": start, "end": end}
