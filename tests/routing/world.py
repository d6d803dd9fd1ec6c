"""The real thing beside the model: one Dispatcher on real Postgres, one org for each example."""

import time
from itertools import count
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from tests.routing.model import Unit
from tests.support import dags
from tests.support.dispatcher import DispatcherHarness, fence
from tracelake.dispatcher.audit import Actor
from tracelake.wire.jobs import TriggerReply, TriggerRequest

_TASKS = """
    SELECT t.task_id, t.node_id, t.edge, t.unit_key, t.revision, t.revision_kind, t.status, t.held, t.held_by, t.unit,
           t.skipped_at, t.superseded, t.limit_keys, n.job_name, n.dag_name,
           (SELECT count(*) FROM outbox o WHERE o.key = t.task_id) AS wakeups
    FROM tasks t JOIN nodes n USING (node_id) WHERE t.org_id = $1 ORDER BY t.task_id"""

_NODES = """
    SELECT d.dag_name, j.name, j.node_id, v.dag_version_id = d.active_version AS active
    FROM dags d JOIN dag_version_jobs v ON v.dag_version_id IN (d.active_version, d.building_version)
    JOIN jobs j USING (job_id) WHERE d.org_id = $1"""

_OUTPUTS = """
    SELECT DISTINCT j.node_id, o.output_index, o.dataset_uuid, o.dataset_version
    FROM job_outputs o JOIN jobs j USING (job_id) WHERE j.org_id = $1"""

# A worker that took a wake-up is done with it; so is one that finds nothing to do.
_TAKE_WAKEUPS = """
    DELETE FROM outbox o USING tasks t WHERE t.task_id = o.key AND t.org_id = $1 AND (t.status <> 'Queued' OR t.held)"""


class World:
    def __init__(self, harness: DispatcherHarness) -> None:
        self.harness = harness
        self._examples = count(1)
        self.org = ""
        self.org_id = UUID(int=0)

    def begin(self) -> None:
        """An org that nobody used before."""
        self.org = f"org_{next(self._examples)}_{time.time_ns()}"
        self._leases: dict[UUID, Any] = {}

    @property
    def actor(self) -> Actor:
        return Actor(subject="tester", org=self.org, org_id=self.org_id)

    def deploy(self, text: str, **options: Any) -> Any:
        reply = dags.deploy(self.harness, text, self.org, **options)
        self.org_id = self.harness.sql("SELECT org_id FROM orgs WHERE name = $1", self.org)[0]["org_id"]
        return reply

    def activate(self, dag: str, version: int, *, now: bool) -> Any:
        return dags.activate(self.harness, dag, version, now=now, org=self.org)

    def trigger(self, dag: str, job: str, unit: Unit, key: str, **fields: Any) -> TriggerReply:
        body: dict[str, Any] = {"idempotency_key": key} | fields
        if unit.span is not None:
            body["range"] = {"start": unit.span[0], "end": unit.span[1]}
        else:
            body |= {"cursor": unit.cursor} if unit.cursor is not None else {"partition_key": unit.name}
        request = msgspec.convert(body, TriggerRequest)
        return self.harness.run(self.harness.dispatcher.actions.trigger(self.actor, dag, job, request))

    def person(self, verb: str, task_id: UUID) -> Any:
        return self.harness.run(getattr(self.harness.dispatcher.actions, verb)(self.actor, task_id))

    # Tasks

    def claim(self, task_id: UUID) -> Any:
        reply = self.harness.claim(str(task_id))
        assert reply.body["status"] == "Claimed", reply
        self._leases[task_id] = reply.body
        return reply.body

    def complete(self, task_id: UUID, **fields: Any) -> None:
        lease = self._leases.pop(task_id)
        body = fence(str(task_id), lease, **({"status": "Completed"} | fields))
        reply = self.harness.task("complete", lease["capability_token"], body)
        assert reply.status == 200, reply

    def say(self, task_id: UUID, events: list[dict[str, Any]]) -> list[bool]:
        """Which of them were said before."""
        lease = self._leases[task_id]
        body = fence(str(task_id), lease, events=events)
        reply = self.harness.task("events", lease["capability_token"], body)
        assert reply.status == 200, reply
        return [answer["duplicate"] for answer in reply.body["events"]]

    def invalidation_id(self, producer: str, generation: tuple[UUID, UUID], unit: str, revision: str) -> str:
        rows = self.harness.sql(
            "SELECT invalidation_id FROM events WHERE producer = $1 AND dataset_uuid = $2 AND dataset_version = $3 "
            "AND unit = $4 AND revision = $5",
            producer,
            *generation,
            unit,
            revision,
        )
        found: str = rows[0]["invalidation_id"]
        return found

    # Loops

    def drain(self) -> int:
        done = 0
        while more := self.harness.run(self.harness.dispatcher.drain.run_once()):
            done += more
        return done

    def reconcile(self) -> int:
        dispatcher = self.harness.dispatcher
        return self.harness.run(dispatcher.routing_reconciler.run_once()) + self.harness.run(
            dispatcher.reconciler.run_once()
        )

    def take_wakeups(self) -> None:
        self.harness.sql(_TAKE_WAKEUPS, self.org_id)

    # What the tables say

    def tasks(self) -> list[asyncpg.Record]:
        return self.harness.sql(_TASKS, self.org_id)

    def nodes(self) -> list[asyncpg.Record]:
        return self.harness.sql(_NODES, self.org_id)

    def outputs(self) -> dict[tuple[UUID, int], tuple[UUID, UUID]]:
        rows = self.harness.sql(_OUTPUTS, self.org_id)
        return {(row["node_id"], row["output_index"]): (row["dataset_uuid"], row["dataset_version"]) for row in rows}

    def edges(self) -> dict[tuple[UUID, int], asyncpg.Record]:
        rows = self.harness.sql("SELECT * FROM edges WHERE org_id = $1", self.org_id)
        return {(row["node_id"], row["input_index"]): row for row in rows}

    def pending_units(self, node_id: UUID) -> set[str]:
        """Keys of the units of a node that wait for something."""
        rows = self.harness.sql("SELECT unit_start, unit_end FROM pending_units WHERE node_id = $1", node_id)
        return {f"p:{row['unit_start']}-{row['unit_end']}" for row in rows}

    def limits(self) -> dict[str, tuple[int | None, int]]:
        rows = self.harness.sql("SELECT * FROM limits WHERE limit_key LIKE $1", f"job:{self.org_id}:%")
        return {row["limit_key"]: (row["max_running"], row["used"]) for row in rows}


def wire(unit: Unit) -> dict[str, Any]:
    """The unit as an event says it."""
    if unit.cursor is not None:
        return {"cursor": unit.cursor}
    if unit.span is None:
        return {"partition_key": unit.name}
    start, end = unit.span
    return {"partition_key": f"{start}-{end}", "start": start, "end": end}
