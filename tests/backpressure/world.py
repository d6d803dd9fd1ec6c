"""Two Dispatchers on one real Postgres, a clock that moves for both, and every way in which a source says something.

Each change of a `pressure` row is recorded by a trigger of the test's own, with the time it happened: whatever a
transaction did in between, each of its levels can be compared with the rule.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from tests.backpressure.shapes import Shape, Source, Version, text
from tests.routing.model import Unit
from tests.routing.world import World, wire
from tests.support.dispatcher import DispatcherHarness, fence
from tracelake.wire.sources import FireRequest
from tracelake.wire.webhooks import signature_header

FIRST_SLOT = datetime(2026, 1, 1, tzinfo=UTC)

RECORD = """
    CREATE TABLE IF NOT EXISTS pressure_log (
        number bigserial, node_id uuid, max_depth int, max_age_seconds int, before int, level int, depth int,
        oldest timestamptz, at timestamptz);
    CREATE OR REPLACE FUNCTION record_pressure() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        INSERT INTO pressure_log (node_id, max_depth, max_age_seconds, before, level, depth, oldest, at)
        VALUES (NEW.node_id, NEW.max_depth, NEW.max_age_seconds, OLD.level, NEW.level, NEW.depth, NEW.oldest_ready_at,
                trace_now());
        RETURN NEW; END $$;
    CREATE OR REPLACE TRIGGER recorded AFTER UPDATE OF level ON pressure
        FOR EACH ROW EXECUTE FUNCTION record_pressure();"""

_TASKS = """
    SELECT t.task_id, t.node_id, t.edge, t.unit_key, t.status, t.held, t.ready_at, t.counted, t.next_retry_at,
           t.superseded
    FROM tasks t WHERE t.org_id = $1 ORDER BY t.task_id"""

_QUEUES = """
    SELECT node_id, max_depth, max_age_seconds, depth, level, oldest_ready_at FROM pressure WHERE org_id = $1"""

_LOGGED = "DELETE FROM pressure_log RETURNING *"


@dataclass(frozen=True)
class Look:
    """The tables at one moment, by the names of the shape."""

    tasks: dict[tuple[str, int, str], asyncpg.Record]
    queues: dict[str, asyncpg.Record]
    edges: dict[tuple[str, int], asyncpg.Record]

    def queued(self, name: str) -> list[asyncpg.Record]:
        return [row for (job, _, _), row in self.tasks.items() if job == name and row["status"] == "Queued"]

    def ready(self, name: str) -> list[asyncpg.Record]:
        return [row for row in self.queued(name) if not row["held"]]


class PressedWorld(World):
    def __init__(self, both: list[DispatcherHarness]) -> None:
        super().__init__(both[0])
        self.both = both

        async def record() -> None:
            async with both[0].dispatcher.ports.store.connection() as connection:
                await connection.execute(RECORD)

        both[0].use_movable_clock()
        both[0].run(record())

    def begin_with(self, shape: Shape, version: Version) -> None:
        self.begin()
        self.shape = shape
        self.runs: dict[str, Any] = {}
        self.deploy_version(version)
        self.names = {row["node_id"]: row["name"] for row in self.nodes()}
        self.ids = {name: node_id for node_id, name in self.names.items()}
        self.made = self.outputs()

    def turn(self, which: int) -> None:
        """From now on the other one is asked."""
        self.harness = self.both[which]

    def deploy_version(self, version: Version) -> None:
        for dag in (0, 1):
            if any(job.dag == dag and job.name not in version.without for job in self.shape.jobs):
                reply = self.deploy(text(self.shape, version, dag, self.org))
                if reply.state == "Building":
                    self.activate(f"dag{dag}", reply.plan.version, now=True)

    def advance(self, seconds: float) -> None:
        self.harness.advance(seconds)
        now = self.harness.sql("SELECT trace_now() AS now")[0]["now"]
        for harness in self.both:
            harness.dispatcher.clock.observe(now)

    def look(self) -> Look:
        rows = self.harness.sql(_TASKS, self.org_id)
        keys = [(self.names[row["node_id"]], row["edge"], row["unit_key"]) for row in rows]
        assert len(set(keys)) == len(keys), "a unit has two tasks"
        queues = {self.names[row["node_id"]]: row for row in self.harness.sql(_QUEUES, self.org_id)}
        edges = {(self.names[node], index): row for (node, index), row in self.edges().items()}
        return Look(dict(zip(keys, rows, strict=True)), queues, edges)

    def logged(self) -> list[asyncpg.Record]:
        return self.harness.sql(_LOGGED)

    # Sources

    def announce(self, source: Source, first: int, number: int) -> list[list[str]]:
        """Units from `first` on, as the source says them; the keys, by transaction."""
        units = [Unit(name=f"u{first + offset}") for offset in range(number)]
        match source.kind:
            case "manual":
                for unit in units:
                    self.trigger("dag0", source.name, unit, f"{source.name}-{unit.name}")
            case "webhook":
                for unit in units:
                    self._deliver(source, unit)
            case "always_on":
                self._emit(source, units)
                return [[unit.key for unit in units]]
            case "cron":
                return [[self._fire(source, first + offset)] for offset in range(number)]
        return [[unit.key] for unit in units]

    def _deliver(self, source: Source, unit: Unit) -> None:
        path = f"{self.org}/{source.name}".replace("_", "-")
        secret = self.harness.credentials.webhooks.secret(self.org_id, "dag0", source.name, 1)
        body = msgspec.json.encode({"partition_key": unit.name})
        now = int(self.harness.sql("SELECT trace_now() AS now")[0]["now"].timestamp())
        signature = signature_header([secret], now, f"d-{unit.name}", body)
        head = {"x-trace-delivery": f"d-{unit.name}", "x-trace-signature": signature}
        reply = self.harness.call("public", "POST", f"/v1/webhooks/{path}", body, head)
        assert reply.status == 200, reply

    def _emit(self, source: Source, units: list[Unit]) -> None:
        task_id, lease = self.hold_run(source)
        dataset_uuid, dataset_version = self.made[self.ids[source.name], 0]
        place = {"dataset_uuid": str(dataset_uuid), "dataset_version": str(dataset_version)}
        events = [place | wire(unit) for unit in units]
        reply = self.harness.task("events", lease["capability_token"], fence(str(task_id), lease, events=events))
        assert reply.status == 200, reply

    def _fire(self, source: Source, number: int) -> str:
        slot = FIRST_SLOT + timedelta(minutes=number)
        job_id = self.harness.sql(
            """SELECT j.job_id FROM dags d JOIN dag_version_jobs v ON v.dag_version_id = d.active_version
               JOIN jobs j USING (job_id) WHERE d.org_id = $1 AND d.dag_name = 'dag0' AND j.name = $2""",
            self.org_id,
            source.name,
        )[0]["job_id"]
        reply = self.harness.run(self.harness.dispatcher.cron.fire(job_id, FireRequest(slot=slot)))
        assert not reply.duplicate
        return f"c:{int(slot.timestamp())}"

    def hold_run(self, source: Source) -> tuple[UUID, Any]:
        """The run of an always_on source, claimed; again if its lease was lost meanwhile."""
        self.harness.run(self.harness.dispatcher.monitor.run_once())
        (row,) = self.harness.sql(
            "SELECT task_id, attempt, status FROM tasks WHERE node_id = $1 AND unit_key = 'run'", self.ids[source.name]
        )
        held = self.runs.get(source.name)
        if held is not None and row["status"] == "Running" and held[1]["attempt"] == row["attempt"]:
            task_id, lease = held
            reply = self.harness.task("heartbeat", lease["capability_token"], fence(str(task_id), lease))
            if reply.status == 200:
                lease["capability_token"] = reply.body.get("capability_token", lease["capability_token"])
                lease["pause"] = reply.body["pause"]
                return task_id, lease
        if row["status"] == "Failed":
            self.advance(601)
            self.harness.requeue_due()
        reply = self.harness.claim(str(row["task_id"]))
        assert reply.body["status"] == "Claimed", reply
        self.runs[source.name] = (row["task_id"], reply.body)
        return row["task_id"], reply.body

    def says_pause(self, source: Source) -> bool:
        """What the next heartbeat of its run is told."""
        task_id, lease = self.hold_run(source)
        reply = self.harness.task("heartbeat", lease["capability_token"], fence(str(task_id), lease))
        assert reply.status == 200, reply
        told: bool = reply.body["pause"]
        return told

    def pause(self, source: str, *, paused: bool) -> None:
        pauses = self.harness.dispatcher.pauses
        self.harness.run((pauses.pause if paused else pauses.resume)(self.actor, "dag0", source))

    # Workers

    def finish(self, task_id: UUID, word: str) -> None:
        if word == "fail":
            self.complete(task_id, status="Failed", error_message="no", retryable=True)
        elif word == "fail for good":
            self.complete(task_id, status="Failed", error_message="no", retryable=False)
        elif word == "stop":
            self.complete(task_id, status="Canceled")
        else:
            task = self._leases[task_id]["task"]
            unit = task["inputs"][0]["unit"]
            said = {"cursor": unit["cursor"]["to"]} if "cursor" in unit else unit
            names = ("dataset_uuid", "dataset_version")
            self.complete(task_id, events=[{name: out[name] for name in names} | said for out in task["outputs"]])

    def work(self, task_ids: list[UUID]) -> None:
        """All of them in two calls, as a worker with many slots does."""
        claims = [{"task_id": str(task_id), "worker_id": "w"} for task_id in task_ids]
        reply = self.harness.worker("POST", "/internal/task-claim-batch", {"claims": claims})
        assert reply.status == 200, reply
        answers = reply.body["answers"]
        calls = []
        for task_id, answer in zip(task_ids, answers, strict=True):
            lease = answer["body"]
            assert lease["status"] == "Claimed", lease
            unit = lease["task"]["inputs"][0]["unit"]
            said = {"cursor": unit["cursor"]["to"]} if "cursor" in unit else unit
            names = ("dataset_uuid", "dataset_version")
            events = [{name: out[name] for name in names} | said for out in lease["task"]["outputs"]]
            body = fence(str(task_id), lease, status="Completed", events=events)
            calls.append({"call": "complete", "capability_token": lease["capability_token"], "body": body})
        replies = self.harness.task_batch(calls)
        assert {reply["status"] for reply in replies} <= {200}, replies

    # Loops

    def drain_once(self) -> int:
        return self.harness.run(self.harness.dispatcher.drain.run_once())

    def watch(self) -> int:
        return self.harness.run(self.harness.dispatcher.pressure.run_once())

    def builds(self) -> int:
        return self.harness.run(self.harness.dispatcher.builds.run_once())
