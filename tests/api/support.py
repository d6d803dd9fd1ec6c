"""Helpers of the API tests: users of any role and org, and rows written as the services would have left them."""

import itertools
import json
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple
from uuid import UUID

from tests.http.support import user_token
from tests.support.dispatcher import DispatcherHarness, Reply
from tracelake.dispatcher.public_ids import OrgIds, PublicIds
from tracelake.model.ids import new_id

_counter = itertools.count()


@dataclass(frozen=True)
class User:
    """A person with a token."""

    harness: DispatcherHarness
    org: str
    role: str = "reader"
    subject: str = "somebody"

    @property
    def headers(self) -> dict[str, str]:
        token = user_token(self.harness, org=self.org, subject=self.subject, roles=[self.role])
        return {"authorization": f"Bearer {token}"}

    def call(self, method: str, path: str, body: Any = None) -> Reply:
        return self.harness.call("public", method, path, body, self.headers)

    def get(self, path: str) -> Any:
        reply = self.call("GET", path)
        assert reply.status == 200, reply
        return reply.body

    def pages(self, path: str, name: str) -> list[Any]:
        """Every row of a paged list, page by page."""
        found: list[Any] = []
        cursor: str | None = None
        for _ in range(1000):
            page = self.get(f"{path}&cursor={cursor}" if cursor else path)
            found += page[name]
            cursor = page.get("next")
            if cursor is None:
                return found
        raise AssertionError("the pages never end")


class Generation(NamedTuple):
    dataset_uuid: UUID
    dataset_version: UUID


_DATASET = """
    WITH d AS (
        INSERT INTO datasets (dataset_uuid, org_id, name, storage, current_version, dag_name, published)
        VALUES ($1, $2, $3, $4, $5, $6, $7))
    INSERT INTO dataset_versions (dataset_uuid, dataset_version, node_id, schema) VALUES ($1, $5, $8, $9)"""

_STATES: dict[str, str] = {
    "Queued": "ready_at = trace_now()",
    "Held": "status = 'Queued', held = true, ready_at = trace_now()",
    "Running": "attempt = 1, lease_token = task_id, lease_expires_at = trace_now(), claimed_at = trace_now()",
    "Completed": "attempt = 1, lease_token = task_id, outcome = 'Completed', finished_at = trace_now()",
    "Failed": "attempt = 1, lease_token = task_id, outcome = 'Failed', finished_at = trace_now(), error = 'broken'",
    "Waiting": "status = 'Failed', attempt = 1, lease_token = task_id, outcome = 'Failed', next_retry_at = trace_now()",
    "Skipped": "status = 'Failed', attempt = 1, lease_token = task_id, outcome = 'Failed', finished_at = trace_now(), "
    "skipped_at = trace_now()",
    "Canceled": "finished_at = trace_now()",
}


def _state(name: str) -> dict[str, str]:
    columns = dict(item.split(" = ", 1) for item in _STATES[name].split(", "))
    return {"status": f"'{name}'"} | columns


@dataclass
class Seed:
    """Rows of one org."""

    harness: DispatcherHarness
    org: str = field(default_factory=lambda: f"seed_{next(_counter)}")
    org_id: UUID = field(default_factory=new_id)

    def __post_init__(self) -> None:
        self.sql("INSERT INTO orgs (org_id, name) VALUES ($1, $2)", self.org_id, self.org)

    def sql(self, query: str, *arguments: Any) -> Any:
        return self.harness.sql(query, *arguments)

    @cached_property
    def ids(self) -> OrgIds:
        """How the org sees numbers that all orgs share."""
        return self.harness.run(PublicIds(self.harness.dispatcher.ports.store).of(self.org_id))

    def user(self, role: str = "reader") -> User:
        return User(self.harness, self.org, role)

    def node(self, dag: str, job: str) -> UUID:
        node_id = new_id()
        self.sql("INSERT INTO nodes VALUES ($1, $2, $3, $4, $5)", node_id, self.org_id, dag, job, str(node_id))
        return node_id

    def dataset(
        self, name: str, storage: str = "none", *, dag: str | None = None, node: UUID | None = None, schema: Any = None
    ) -> Generation:
        made = Generation(new_id(), new_id())
        self.sql(
            _DATASET, made.dataset_uuid, self.org_id, name, storage, made.dataset_version, dag, dag is not None, node,
            None if schema is None else json.dumps(schema),
        )  # fmt: skip
        return made

    def generation(self, dataset: Generation) -> Generation:
        """A second generation, that does not count."""
        made = Generation(dataset.dataset_uuid, new_id())
        self.sql("INSERT INTO dataset_versions (dataset_uuid, dataset_version) VALUES ($1, $2)", *made)
        return made

    def job(
        self, dag: str, name: str, node: UUID | None = None, outputs: tuple[Generation, ...] = (), **document: Any
    ) -> UUID:
        job_id = new_id()
        text = json.dumps({"name": name, "activation": "reactive", "runtime": "lambda", "operator": "udf"} | document)
        self.sql(
            """INSERT INTO jobs (job_id, org_id, dag_name, name, runtime, operator, config, config_hash,
                                 definition_hash, lease_seconds, node_id, document)
               VALUES ($1, $2, $3, $4, 'lambda', 'udf', '{}', '', $1::uuid::text, 60, $5, $6)""",
            job_id, self.org_id, dag, name, node, text,
        )  # fmt: skip
        for index, output in enumerate(outputs):
            self.sql("INSERT INTO job_outputs VALUES ($1, $2, $3, $4)", job_id, index, *output)
        return job_id

    def version(self, dag: str, number: int, jobs: dict[str, UUID], source: str = "name: x\n") -> UUID:
        version = new_id()
        self.sql(
            """INSERT INTO dag_versions (dag_version_id, org_id, dag_name, number, document_hash, document, source,
                                         created_by) VALUES ($1, $2, $3, $4, $1::uuid::text, '{}', $5, 'tester')""",
            version, self.org_id, dag, number, source,
        )  # fmt: skip
        for name, job_id in jobs.items():
            self.sql("INSERT INTO dag_version_jobs VALUES ($1, $2, $3)", version, name, job_id)
        self.sql("INSERT INTO dags (org_id, dag_name) VALUES ($1, $2) ON CONFLICT DO NOTHING", self.org_id, dag)
        return version

    def point(self, dag: str, version: UUID, column: str = "active_version") -> None:
        self.sql(f"UPDATE dags SET {column} = $3 WHERE org_id = $1 AND dag_name = $2", self.org_id, dag, version)

    def activate(self, dag: str, version: UUID, state: str = "Active") -> int:
        self.point(dag, version, "active_version" if state == "Active" else "building_version")
        rows = self.sql(
            """INSERT INTO activations (org_id, dag_name, dag_version_id, state, requested_by, cutover_at)
               VALUES ($1, $2, $3, $4::text, 'tester', CASE WHEN $4 = 'Active' THEN trace_now() END)
               RETURNING activation_id""",
            self.org_id, dag, version, state,
        )  # fmt: skip
        activation: int = rows[0]["activation_id"]
        return activation

    def edge(self, node: UUID, job_id: UUID, reads: Generation, index: int = 0, **columns: Any) -> None:
        names = ", ".join(["phase", *columns] if "phase" not in columns else columns)
        values = list(columns.values()) if "phase" in columns else ["Active", *columns.values()]
        places = ", ".join(f"${number + 7}" for number in range(len(values)))
        self.sql(
            f"""INSERT INTO edges (node_id, input_index, org_id, job_id, dataset_uuid, dataset_version, {names})
                VALUES ($1, $2, $3, $4, $5, $6, {places})""",
            node, index, self.org_id, job_id, *reads, *values,
        )  # fmt: skip

    def task(
        self, job_id: UUID, state: str = "Queued", task_id: UUID | None = None, unit: Any = None, inputs: Any = ()
    ) -> UUID:
        task_id = task_id or new_id()
        columns = _state(state)
        self.sql(
            f"""INSERT INTO tasks (task_id, org_id, job_id, inputs, unit, {", ".join(columns)})
                SELECT $1, $2, $3, $4, $5, {", ".join(columns.values()).replace("task_id", "$1::uuid")}""",
            task_id, self.org_id, job_id, json.dumps(list(inputs)), None if unit is None else json.dumps(unit),
        )  # fmt: skip
        return task_id

    def event(
        self,
        of: Generation,
        cursor: int | None = None,
        key: str | None = None,
        *,
        blocks: tuple[int, int] | None = None,
        revision: str = "",
        producer: str | None = None,
        attempt: int | None = None,
        state: str = "Routed",
    ) -> int:
        if blocks is not None:
            key = f"{blocks[0]}-{blocks[1]}"
        start, end = blocks or (None, None)
        rows = self.sql(
            """INSERT INTO events (org_id, producer, attempt, dataset_uuid, dataset_version, unit, revision, cursor,
                                   partition_key, range_start, range_end, state, routed_seq, effective_revision)
               VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12::text,
                       CASE WHEN $12 = 'Routed' THEN nextval('events_routed_seq') END, $7) RETURNING event_id""",
            self.org_id, producer or f"cron:{next(_counter)}", attempt, *of,
            f"c:{cursor}" if key is None else f"p:{key}", revision, cursor, key, start, end, state,
        )  # fmt: skip
        return self.ids.events.seal(rows[0]["event_id"])

    def commit(self, of: Generation, blocks: tuple[int, int] | None, task_id: UUID, revision: int = 1) -> None:
        unit = "*" if blocks is None else f"p:{blocks[0]}-{blocks[1]}"
        manifest = new_id()
        self.sql(
            """INSERT INTO manifests (manifest_id, dataset_uuid, dataset_version, unit, revision, task_id, attempt,
                                      prefix, objects)
               VALUES ($1, $2, $3, $4, $5, $6, 1, 's3://b/x/', '[{"uri": "a"}, {"uri": "b"}]')""",
            manifest, *of, unit, revision, task_id,
        )  # fmt: skip
        self.sql(
            """INSERT INTO dataset_units VALUES ($1, $2, $3, $4, $5, $6, $7)
               ON CONFLICT (dataset_uuid, dataset_version, unit) DO UPDATE
               SET revision = excluded.revision, manifest_id = excluded.manifest_id""",
            *of, unit, *(blocks or (None, None)), revision, manifest,
        )  # fmt: skip


@dataclass
class World(Seed):
    """A source, a job that reads it, a job of another DAG that reads that one: all three kinds of storage."""

    ticks: Generation = field(init=False)
    blocks: Generation = field(init=False)
    alerts: Generation = field(init=False)
    clock: UUID = field(init=False)
    fetch: UUID = field(init=False)
    alert: UUID = field(init=False)
    fetch_node: UUID = field(init=False)
    activation: int = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        clock_node, self.fetch_node = self.node("chain", "clock"), self.node("chain", "fetch")
        alert_node = self.node("alarm", "alert")
        self.ticks = self.dataset("chain__clock_0", dag="chain", node=clock_node)
        self.blocks = self.dataset("blocks", "s3", dag="chain", node=self.fetch_node, schema={"columns": []})
        self.alerts = self.dataset("alerts", "postgres", dag="alarm", node=alert_node)
        source = {"activation": "source", "source": {"kind": "manual"}, "runtime": None, "operator": None}
        self.clock = self.job("chain", "clock", clock_node, (self.ticks,), **source)
        self.fetch = self.job("chain", "fetch", self.fetch_node, (self.blocks,))
        self.alert = self.job("alarm", "alert", alert_node, (self.alerts,))
        self.edge(self.fetch_node, self.fetch, self.ticks, routed=9)
        self.edge(alert_node, self.alert, self.blocks, filter='{"severity": ["high"]}')
        version = self.version("chain", 1, {"clock": self.clock, "fetch": self.fetch}, "name: chain # one\n")
        self.activation = self.activate("chain", version)
        self.activate("alarm", self.version("alarm", 1, {"alert": self.alert}))
