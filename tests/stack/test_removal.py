"""A DAG with files and a table, removed, restored and purged by commands on a whole stack."""

import asyncio
import json
from typing import Any

import asyncpg

from tests.support.real_stack import RealStack
from tracelake.adapters.s3.access import read_access
from tracelake.adapters.s3.object_store import S3ObjectStore

DAG = """\
name: removable
defaults: { runtime: by_hand }
jobs:
  - { name: head, activation: source, source: { kind: manual } }
  - { name: fill, activation: reactive, operator: noop, inputs: [{ from: { job: head } }] }
  - name: copy
    activation: reactive
    runtime: ecs_platform
    operator: spark_sql
    inputs: [{ from: { dataset: removable_rows } }]
    config: { query: "SELECT key FROM removable_rows" }
publish:
  removable_files: { from: { job: copy }, storage: s3 }
  removable_rows:
    from: { job: fill }
    storage: postgres
    write_mode: buffered
    schema: { columns: [{ name: key, type: int64, nullable: false }], unique: [key] }
"""


def store_of(stack: RealStack) -> S3ObjectStore:
    return S3ObjectStore(read_access(stack.home.object_store_file))


def fill_table(stack: RealStack) -> None:
    task_id = stack.tasks("removable", "fill", "queued")[0]
    claimed = stack.claim(task_id)
    uri = claimed["task"]["outputs"][0]["storage"]["buffer_prefix"] + "batch.jsonl"
    asyncio.run(store_of(stack).put(uri, json.dumps({"key": 7}).encode() + b"\n"))
    status, reply = stack.say("buffer-publish", task_id, claimed, batch_uri=uri, dedupe_scope="removable_rows")
    assert status == 200, reply
    assert stack.say("complete", task_id, claimed, status="Completed")[0] == 200


def data_sql(stack: RealStack, statement: str) -> list[Any]:
    async def read() -> list[Any]:
        connection = await asyncpg.connect(stack.home.data_dsn_file.read_text().strip())
        try:
            return [tuple(row) for row in await connection.fetch(statement)]
        except asyncpg.UndefinedTableError:
            return []
        finally:
            await connection.close()

    return asyncio.run(read())


def stored(stack: RealStack, ids: list[str]) -> list[str]:
    objects = asyncio.run(store_of(stack).list("s3://trace-datasets/datasets/"))
    objects += asyncio.run(store_of(stack).list("s3://trace-scratch/buffers/"))
    return [meta.uri for meta in objects if any(one in meta.uri for one in ids)]


def test_remove_undo_and_purge(shared_stack: RealStack) -> None:
    stack = shared_stack
    stack.deploy("removable", DAG)
    stack.shell("trace trigger removable/head --range 0-9")
    stack.wait_until(lambda: bool(stack.tasks("removable", "fill", "queued")), "the tasks")
    fill_table(stack)
    rows = "SELECT key FROM org_default.removable_rows"
    stack.wait_until(lambda: data_sql(stack, rows) == [(7,)], "the row in the table")
    stack.wait_until(lambda: bool(stack.tasks("removable", "copy", "completed")), "the files of Spark")
    found = stack.sql(
        """SELECT dataset_uuid::text AS id FROM datasets WHERE dag_name = 'removable'
           UNION SELECT task_id::text FROM tasks JOIN jobs USING (job_id) WHERE dag_name = 'removable'"""
    )
    ids = [row["id"] for row in found]
    assert any(uri.endswith(".parquet") for uri in stored(stack, ids))
    assert any(uri.endswith("batch.jsonl") for uri in stored(stack, ids))

    plan = stack.shell("trace remove removable --plan")
    assert "removable: 1 version, version 1 is active, 3 jobs" in plan
    assert "pass --yes" in stack.shell("trace remove removable", fine=(2,))
    assert stack.trace("remove removable --yes")["state"] == "removed"
    assert all(row["name"] != "removable" for row in stack.trace("dags")["dags"])
    for command in ("read removable_rows", "datasets removable_files", "why removable_rows", "lineage removable_files"):
        text = stack.shell(f"trace {command}", fine=(1,))
        assert "was removed with the DAG removable on" in text, text
        assert "trace remove --undo removable" in text
    assert "was removed on" in stack.shell("trace deploy removable.yaml", fine=(1,))
    assert "removable" in stack.shell("trace remove --list")

    assert stack.trace("remove --undo removable")["version"] == 1
    assert stack.trace("read removable_rows") == stack.trace("read removable_files") == [{"key": 7}]
    stack.shell("trace trigger removable/head --range 10-19")
    stack.wait_until(lambda: bool(stack.tasks("removable", "fill", "queued")), "new tasks")

    assert "removable is deleted." in stack.shell("trace remove --purge removable --yes --wait")
    assert "There is no DAG" in stack.shell("trace remove --undo removable", fine=(1,))
    stack.wait_until(lambda: not stack.sql("SELECT FROM removed_tables"), "the sink to drop the table")
    relations = "SELECT relname FROM pg_class WHERE relname LIKE '%{}%'"
    assert [data_sql(stack, relations.format(one)) for one in ids] == [[] for _ in ids]
    assert data_sql(stack, rows) == []
    stack.wait_until(lambda: not stored(stack, ids), "the files to go")
    stack.deploy("removable", DAG)
    assert stack.trace("datasets removable_rows")["dataset"]["dataset_uuid"] not in ids
