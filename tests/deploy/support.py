"""Small DAGs as text, and rows that routing would make, by SQL: these tests are about deploying alone."""

from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import yaml

from tests.support.dags import ORG, job, output
from tests.support.dispatcher import DispatcherHarness
from tracelake.db.transaction import Store
from tracelake.model.ids import new_id, new_secret_id

Generation = tuple[UUID, UUID]


@dataclass
class Text:
    """A DAG that tests edit: a manual source `tick`, and jobs that sleep."""

    name: str = "d"
    jobs: dict[str, dict[str, Any]] = field(default_factory=dict)
    publish: dict[str, dict[str, Any]] = field(default_factory=dict)

    def source(self, name: str = "tick", **fields: Any) -> "Text":
        self.jobs[name] = {"activation": "source", "source": {"kind": "manual"}} | fields
        return self

    def job(self, name: str, *reads: str, seconds: int = 0, **fields: Any) -> "Text":
        """`reads` are jobs of this DAG (`job` or `job:1` for an output), or `dataset.NAME`."""
        self.jobs[name] = {
            "activation": "reactive",
            "runtime": "ecs_platform",
            "operator": "sleep",
            "config": {"seconds": seconds},
            "inputs": [{"from": _from(item)} for item in reads],
        } | fields
        return self

    def published(self, name: str, job: str, storage: str = "postgres", **fields: Any) -> "Text":
        self.publish[name] = {"from": {"job": job}, "storage": storage} | fields
        return self

    def copy(self) -> "Text":
        return deepcopy(self)

    def __str__(self) -> str:
        document: dict[str, Any] = {
            "name": self.name,
            "jobs": [{"name": name} | fields for name, fields in self.jobs.items()],
        }
        if self.publish:
            document["publish"] = self.publish
        return yaml.safe_dump(document, sort_keys=False)


def _from(text: str) -> dict[str, Any]:
    if text.startswith("dataset."):
        return {"dataset": text.removeprefix("dataset.")}
    name, _, index = text.partition(":")
    return {"job": name, "output_index": int(index or 0)}


def chain(name: str = "d", *, a: int = 1, b: int = 1, **fields: Any) -> Text:
    """tick -> a -> b; `b` is published as `{name}_out`."""
    text = Text(name).source().job("a", "tick", seconds=a, **fields).job("b", "a", seconds=b)
    return text.published(f"{name}_out", "b")


def say(harness: DispatcherHarness, generation: Generation, cursor: int, *, state: str = "Routed") -> int | None:
    """An event of a generation, without anybody who hears it."""
    row = harness.sql(
        """INSERT INTO events (org_id, producer, dataset_uuid, dataset_version, unit, cursor, state, routed_seq)
           SELECT org_id, 'test', $1, $2, 'c:' || $3::bigint, $3, $4::text,
                  CASE WHEN $4 = 'Routed' THEN nextval('events_routed_seq') END
           FROM datasets WHERE dataset_uuid = $1 RETURNING routed_seq""",
        *generation,
        cursor,
        state,
    )[0]
    seq: int | None = row["routed_seq"]
    return seq


_TASK = """
    INSERT INTO tasks (task_id, org_id, job_id, status, attempt, max_attempts, outcome, lease_token, lease_expires_at,
                       ready_at, next_retry_at, finished_at, held, held_by, limit_keys, inputs,
                       node_id, edge, unit_key, unit_start, unit_end)
    SELECT $1, org_id, job_id, $3, $4, 3, $5, $6, CASE WHEN $3 = 'Running' THEN trace_now() + interval '1 hour' END,
           CASE WHEN $3 = 'Queued' THEN trace_now() END, CASE WHEN $7 THEN trace_now() + interval '1 hour' END,
           CASE WHEN ($3 = 'Failed' AND NOT $7) OR $3 IN ('Completed', 'Canceled') THEN trace_now() END,
           $8, CASE WHEN $8 THEN ($9::text[])[1] END, $9, '[]', node_id, 0, 'c:' || $10::bigint, $10, $10
    FROM jobs WHERE job_id = $2"""


def task(
    harness: DispatcherHarness,
    job_id: UUID,
    status: str = "Queued",
    *,
    waits: bool = False,
    held: bool = False,
    limits: list[str] | None = None,
    cursor: int = 0,
    attempt: int | None = None,
) -> UUID:
    """A task of the job in that state; `waits` for its retry, when it failed."""
    task_id = new_id()
    attempt = attempt or (0 if status == "Queued" else 1)
    outcome = {"Failed": "Failed", "Completed": "Completed", "Canceled": "Canceled"}.get(status)
    token = new_secret_id() if attempt else None
    harness.sql(_TASK, task_id, job_id, status, attempt, outcome, token, waits, held, limits, cursor)
    return task_id


def state_of(harness: DispatcherHarness, task_id: UUID) -> tuple[str, bool]:
    row = harness.row(str(task_id))
    return row["status"], row["cancel_requested"]


def dataset(harness: DispatcherHarness, name: str, org: str = ORG) -> Any:
    return harness.sql(
        "SELECT d.* FROM datasets d JOIN orgs o USING (org_id) WHERE o.name = $1 AND d.name = $2", org, name
    )[0]


def generations(harness: DispatcherHarness, dag: str, *names: str) -> dict[str, Generation]:
    """What each job of the active version writes as its first output."""
    return {name: output(harness, dag, name) for name in names}


def node(harness: DispatcherHarness, dag: str, name: str, *, building: bool = False) -> UUID:
    found: UUID = job(harness, dag, name, building=building)["node_id"]
    return found


class PassingStore(Store):
    """A store that passes everything on to the one of a Dispatcher; tests override what they interfere with."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def connection(self, **options: Any) -> Any:
        return self._store.connection(**options)

    def transaction(self, **options: Any) -> Any:
        return self._store.transaction(**options)


TABLES = (
    "orgs", "dag_versions", "dags", "activations", "nodes", "jobs", "job_outputs", "dag_version_jobs", "datasets",
    "dataset_versions", "dataset_pointers", "edges", "events", "tasks", "limits", "outbox", "audit_log",
)  # fmt: skip


def everything(harness: DispatcherHarness, *, without: tuple[str, ...] = ()) -> dict[str, list[str]]:
    """Every row of every table that a deploy may touch."""
    return {
        table: sorted(row[0] for row in harness.sql(f"SELECT to_jsonb(t)::text FROM {table} t"))
        for table in TABLES
        if table not in without
    }
