"""A DAG with one of everything that a DAG can own, and work in all of it."""

from typing import Any

from tests.api.support import User
from tests.routing.support import Flow, block
from tests.sink.support import lines
from tests.sources.webhook_support import Hook
from tests.support.dispatcher import fence

ZOO = """
name: {name}
defaults: {{runtime: ecs_platform}}
jobs:
  - {{name: src, activation: source, source: {{kind: manual}}}}
  - {{name: clock, activation: source, source: {{kind: cron, schedule: "0 * * * *"}}}}
  - {{name: hook, activation: source, source: {{kind: webhook, webhook_path: {path}}}}}
  - {{name: ticks, activation: source, source: {{kind: always_on}}, operator: ticker, config: {{seconds: 10}}}}
  - name: write
    activation: reactive
    operator: spark_sql
    inputs: [{{from: {{job: src}}}}]
    config: {{inputs: {{t: 0}}, query: "SELECT {number} AS number FROM t"}}
  - name: fill
    activation: reactive
    operator: noop
    scaling: {{max_concurrency: 5}}
    max_queue_depth: 1000
    inputs: [{{from: {{job: src}}}}]
  - {{name: read, activation: reactive, operator: noop, inputs: [{{from: {{dataset: {name}_rows}}}}]}}
  - {{name: heard, activation: reactive, operator: noop, inputs: [{{from: {{job: hook}}}}]}}
publish:
  {name}_files: {{from: {{job: write}}, storage: s3}}
  {name}_rows:
    from: {{job: fill}}
    storage: postgres
    write_mode: buffered
    schema: {{columns: [{{name: k, type: int64, nullable: false}}], unique: [k]}}
"""


def text(name: str, number: int = 0) -> str:
    return ZOO.format(name=name, number=number, path=f"{name.replace('_', '-')}/hook")


def work(flow: Flow, name: str, start: int = 0) -> list[str]:
    """Files, batches, deliveries, attempts and events; returns the ids of the batches."""
    hook = Hook(flow.harness, flow.org, path=f"{name.replace('_', '-')}/hook", dag=name)
    hook.sent(delivery=f"{name}-{start}")
    flow.harness.run(flow.harness.dispatcher.monitor.run_once())
    flow.trigger(name, "src", range={"start": start, "end": start + 9})
    write_files(flow, name, start)
    batches = [publish(flow, name)]
    flow.run_all("heard")
    return batches


def own_tasks(flow: Flow, name: str, job: str, status: str = "Queued") -> list[Any]:
    """Of this DAG alone; several may have a job of the same name."""
    return flow.harness.sql(
        """SELECT t.task_id FROM tasks t JOIN jobs j USING (job_id) JOIN orgs o ON o.org_id = j.org_id
           WHERE j.dag_name = $1 AND j.name = $2 AND t.status = $3 AND o.name = $4 AND NOT t.held ORDER BY t.task_id""",
        name,
        job,
        status,
        flow.org,
    )


def write_files(flow: Flow, name: str, start: int) -> None:
    task = own_tasks(flow, name, "write")[-1]["task_id"]
    lease = flow.claim(task)
    output = lease["task"]["outputs"][0]
    prefix: str = output["storage"]["write_prefix"]
    for file in (f"blocks_{start}_{start + 9}.parquet", "_SUCCESS"):
        flow.harness.run(flow.harness.objects.put(prefix + file, b"x"))
    flow.harness.run(flow.harness.objects.put(f"s3://trace-scratch/scratch/{task}/1/left", b"x"))
    generation = {key: output[key] for key in ("dataset_uuid", "dataset_version")}
    bucket, _, key = prefix.removeprefix("s3://").partition("/")
    ref = {"scheme": "s3", "bucket": bucket, "prefix": key, "glob": "*.parquet"}
    said = {
        "datasets_published": [generation | {"range_start": start, "range_end": start + 9, "storage_ref": ref}],
        "events": [generation | block(start, start + 9)],
    }
    reply = flow.harness.task("complete", lease["capability_token"], fence(task, lease, status="Completed", **said))
    assert reply.status == 200, reply


def publish(flow: Flow, name: str, dataset: str | None = None) -> str:
    task = own_tasks(flow, name, "fill")[-1]["task_id"]
    lease = flow.claim(task)
    uri = lease["task"]["outputs"][0]["storage"]["buffer_prefix"] + "batch.jsonl"
    flow.harness.run(flow.harness.objects.put(uri, lines([{"k": 1}])))
    body = fence(task, lease, batch_uri=uri, dedupe_scope=dataset or f"{name}_rows")
    reply = flow.harness.task("buffer-publish", lease["capability_token"], body)
    assert reply.status == 200, reply
    flow.complete(task, lease)
    publish_id: str = reply.body["publish_id"]
    return publish_id


def observe(flow: Flow, name: str) -> dict[str, Any]:
    """What people see of a DAG, without times."""
    user = User(flow.harness, flow.org, "reader")
    datasets = user.call("GET", "/v1/datasets").body["datasets"]
    files = flow.harness.sql(
        """SELECT u.unit, u.revision
           FROM dataset_units u JOIN datasets d USING (dataset_uuid) JOIN orgs o USING (org_id)
           WHERE d.dag_name = $1 AND o.name = $2 ORDER BY 1, 2""",
        name,
        flow.org,
    )
    versions = user.call("GET", f"/v1/dags/{name}/versions").body["versions"]
    return {
        "datasets": [(row["name"], row["storage"], row["current_version"]) for row in datasets if row["dag"] == name],
        "versions": [(row["number"], row["state"]) for row in versions],
        "files": [tuple(row) for row in files],
        "objects": _objects(flow, name),
    }


def _objects(flow: Flow, name: str) -> list[str]:
    rows = flow.harness.sql("SELECT dataset_uuid::text AS id FROM datasets WHERE dag_name = $1", name)
    objects = flow.harness.run(flow.harness.objects.list("s3://trace-datasets/datasets/"))
    return sorted(meta.uri for meta in objects if any(row["id"] in meta.uri for row in rows))
