"""Batch queries as the Query Service submits them, and workers that run them without Spark."""

from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from tests.http.support import fresh
from tests.routing.support import Flow
from tests.support.dispatcher import DispatcherHarness, Reply, fence
from tracelake.catalogue.sql.query_config import result_unit
from tracelake.model.ids import new_id

COLUMNS = [{"name": "n", "type": "bigint"}]


@dataclass
class Person:
    """A person of an org, whose queries read the dataset `blocks`."""

    flow: Flow
    subject: str = "ann"
    admin: bool = False
    sql: str = "SELECT count(*) AS n FROM blocks"
    relations: tuple[str, ...] = ("blocks",)
    others: list["Person"] = field(default_factory=list)

    @property
    def harness(self) -> DispatcherHarness:
        return self.flow.harness

    def call(self, what: str, **fields: Any) -> Reply:
        who = {"org": self.flow.org, "subject": self.subject}
        return self.harness.service("POST", f"/internal/batch-query-{what}", who | fields)

    def submit(self, query_id: str | None = None, **fields: Any) -> Reply:
        body = {
            "query_id": query_id or str(new_id()), "sql": self.sql, "relations": list(self.relations),
            "sql_sha256": "ab" * 32,
        }  # fmt: skip
        return self.call("submit", **(body | fields))

    def submitted(self, **fields: Any) -> tuple[str, str]:
        """The ids of a new query and its task."""
        reply = self.submit(**fields)
        assert reply.status == 200, reply
        query_id = reply.body["query"]["query_id"]
        return query_id, self.task_of(query_id)

    def task_of(self, query_id: str) -> str:
        return str(self.harness.sql("SELECT task_id FROM batch_queries WHERE query_id = $1", query_id)[0]["task_id"])

    def show(self, query_id: str) -> Reply:
        return self.call("show", query_id=query_id, admin=self.admin)

    def state(self, query_id: str) -> str:
        reply = self.show(query_id)
        assert reply.status == 200, reply
        state: str = reply.body["query"]["state"]
        return state

    def cancel(self, query_id: str) -> Any:
        reply = self.call("cancel", query_id=query_id, admin=self.admin)
        assert reply.status == 200, reply
        return reply.body

    def outcomes(self) -> list[str]:
        rows = self.harness.sql("SELECT outcome FROM query_audit WHERE org = $1 ORDER BY run_id", self.flow.org)
        return [row["outcome"] for row in rows]


def claimed(person: Person, task: str) -> Any:
    reply = person.harness.claim(task)
    assert reply.body["status"] == "Claimed", reply
    return reply.body


def write_result(person: Person, task: str, lease: Any, rows: int = 7) -> Reply:
    """The final report of an attempt that has written its result."""
    output = lease["task"]["outputs"][0]
    prefix = output["storage"]["write_prefix"]
    for name in ("_query_results_0_0.abc.parquet", "_SUCCESS"):
        person.harness.run(person.harness.objects.put(prefix + name, name.encode()))
    bucket, _, key = prefix.removeprefix("s3://").partition("/")
    dataset = {"dataset_uuid": output["dataset_uuid"], "dataset_version": output["dataset_version"]}
    unit = result_unit(UUID(task))
    body = fence(
        task,
        lease,
        status="Completed",
        outputs=[dataset | {"output_index": 0, "row_count": rows, "columns": COLUMNS}],
        datasets_published=[
            dataset
            | {
                "storage_ref": {"scheme": "s3", "bucket": bucket, "prefix": key, "glob": "*.parquet"},
                "range_start": unit,
                "range_end": unit,
            }
        ],
    )
    return person.harness.task("complete", lease["capability_token"], body)


def report(person: Person, task: str, lease: Any, status: str, **fields: Any) -> Reply:
    body = fence(task, lease, status=status, **fields)
    return person.harness.task("complete", lease["capability_token"], body)


def fresh_flow(harness: DispatcherHarness) -> Flow:
    return Flow(harness, fresh("batch"))
