"""Which files a task is told: those that were committed, of its own inputs, as long as it is current."""

from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from tests.routing.support import Flow, block
from tests.support.dispatcher import Reply, fence
from tracelake.dispatcher.views import files as view

FILES = """
name: files
defaults: {runtime: ecs_platform}
jobs:
  - {name: src, activation: source, source: {kind: manual}}
  - {name: write, activation: reactive, operator: decode_logs, inputs: [{from: {job: src}}]}
  - {name: read, activation: reactive, operator: noop, inputs: [{from: {job: write}}]}
publish:
  blocks: {from: {job: write}, storage: s3}
"""


def write(flow: Flow, start: int, end: int, *names: str) -> None:
    """One unit, committed."""
    flow.trigger("files", "src", range={"start": start, "end": end})
    task = next(task["task_id"] for task in flow.tasks("write", "Queued"))
    lease = flow.claim(task)
    prefix = lease["task"]["outputs"][0]["storage"]["write_prefix"]
    for name in (*names, "_SUCCESS"):
        flow.harness.run(flow.harness.objects.put(prefix + name, name.encode()))
    bucket, _, key = prefix.removeprefix("s3://").partition("/")
    ref = {"scheme": "s3", "bucket": bucket, "prefix": key, "glob": "*.parquet"}
    published = flow.event("files", "write", range_start=start, range_end=end) | {"storage_ref": ref}
    event = flow.event("files", "write", **block(start, end))
    flow.complete(task, lease, datasets_published=[published], events=[event])


def ask(flow: Flow, task: Any, lease: Any, **fields: Any) -> Reply:
    item = lease["task"]["inputs"][0]
    body = {"dataset_uuid": item["dataset_uuid"], "dataset_version": item["dataset_version"]} | fields
    return flow.harness.task("files", lease["capability_token"], fence(str(task), lease, **body))


def names(reply: Reply) -> list[tuple[int, int, list[str]]]:
    assert reply.status == 200, reply
    return [
        (unit["start"], unit["end"], [file["uri"].rsplit("/", 1)[1] for file in unit["files"]])
        for unit in reply.body["units"]
    ]


@pytest.fixture
def reader(flow: Flow) -> tuple[Any, Any]:
    """A claimed task that reads `blocks`, which has three units."""
    flow.deploy(FILES)
    write(flow, 0, 9, "blocks_0_4.parquet", "blocks_5_9.parquet")
    write(flow, 10, 19, "blocks_10_19.parquet")
    write(flow, 30, 39, "blocks_30_39.parquet")
    task = flow.tasks("read", "Queued")[0]["task_id"]
    return task, flow.claim(task)


FIRST = (0, 9, ["blocks_0_4.parquet", "blocks_5_9.parquet"])
SECOND = (10, 19, ["blocks_10_19.parquet"])
THIRD = (30, 39, ["blocks_30_39.parquet"])


@pytest.mark.parametrize(
    ("blocks", "expected"),
    [
        ((None, None), [FIRST, SECOND, THIRD]),
        ((0, 9), [FIRST]),
        ((9, 10), [FIRST, SECOND]),
        ((12, 15), [SECOND]),
        ((19, 29), [SECOND]),
        ((20, 29), []),
        ((20, 30), [THIRD]),
        ((39, 2**62), [THIRD]),
        ((40, 50), []),
    ],
)
def test_the_units_of_a_range(
    flow: Flow, reader: tuple[Any, Any], blocks: tuple[int | None, int | None], expected: list[Any]
) -> None:
    start, end = blocks
    fields = {} if start is None else {"start": start, "end": end}
    assert names(ask(flow, *reader, **fields)) == expected


def test_pages(flow: Flow, reader: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view, "PAGE", 1)
    first = ask(flow, *reader)
    assert names(first) == [FIRST]
    second = ask(flow, *reader, after=first.body["next"])
    assert names(second) == [SECOND]
    third = ask(flow, *reader, after=second.body["next"])
    assert names(third) == [THIRD]
    assert "next" not in third.body


def test_pages_are_of_one_moment(flow: Flow, reader: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view, "PAGE", 1)
    first = ask(flow, *reader)
    write_again(flow, 30, 39)
    write(flow, 50, 59, "blocks_50_59.parquet")
    second = ask(flow, *reader, after=first.body["next"], as_of=first.body["as_of"])
    third = ask(flow, *reader, after=second.body["next"], as_of=second.body["as_of"])
    assert names(third) == [THIRD], "neither the new commit of the unit, nor the new unit"
    assert "next" not in third.body
    assert names(ask(flow, *reader, start=30, end=39)) == [THIRD], "an attempt reads one moment: that of its claim"
    for fields in ({"as_of": first.body["as_of"]}, {"after": 10, "as_of": "2026-01-31T00:00:00"}):
        assert ask(flow, *reader, **fields).status == 422


def test_what_was_committed_and_nothing_else(flow: Flow, reader: tuple[Any, Any]) -> None:
    before = ask(flow, *reader, start=0, end=9)
    prefix = before.body["units"][0]["files"][0]["uri"].rsplit("/", 1)[0]
    flow.harness.run(flow.harness.objects.put(f"{prefix}/late.parquet", b"late"))
    flow.harness.run(flow.harness.objects.put(f"{prefix}/blocks_0_4.parquet", b"changed"))
    assert ask(flow, *reader, start=0, end=9).body == before.body


def write_again(flow: Flow, start: int, end: int) -> None:
    flow.trigger("files", "write", range={"start": start, "end": end})
    task = next(task["task_id"] for task in flow.tasks("write", "Queued"))
    lease = flow.claim(task)
    prefix = lease["task"]["outputs"][0]["storage"]["write_prefix"]
    for name in ("again.parquet", "_SUCCESS"):
        flow.harness.run(flow.harness.objects.put(prefix + name, b"x"))
    bucket, _, key = prefix.removeprefix("s3://").partition("/")
    ref = {"scheme": "s3", "bucket": bucket, "prefix": key, "glob": "*.parquet"}
    published = flow.event("files", "write", range_start=start, range_end=end) | {"storage_ref": ref}
    flow.complete(task, lease, datasets_published=[published])


def test_a_new_commit_of_a_unit_takes_its_place(flow: Flow, reader: tuple[Any, Any]) -> None:
    write_again(flow, 10, 19)
    assert names(ask(flow, *reader, start=10, end=19)) == [SECOND], "what an attempt reads is fixed by its claim"
    later = flow.tasks("read", "Queued")[0]["task_id"]
    reply = ask(flow, later, flow.claim(later), start=10, end=19)
    assert names(reply) == [(10, 19, ["again.parquet"])]
    assert reply.body["units"][0]["revision"] == 2


TABLE = """
name: rows
defaults: {runtime: ecs_platform}
jobs:
  - {name: src, activation: source, source: {kind: manual}}
  - {name: write, activation: reactive, operator: noop, inputs: [{from: {job: src}}]}
  - {name: read, activation: reactive, operator: noop, inputs: [{from: {dataset: large}}]}
publish:
  large:
    from: {job: write}
    storage: postgres
    write_mode: buffered
    schema:
      columns:
        - {name: key, type: int64, nullable: false}
        - {name: value, type: decimal, precision: 9, scale: 2}
      unique: [key]
"""


OTHER = """
name: other
defaults: {runtime: ecs_platform}
jobs:
  - {name: far, activation: reactive, operator: noop, inputs: [{from: {dataset: large}}]}
"""
DECLARED = [{"name": "key", "type": "int64"}, {"name": "value", "type": "decimal", "precision": 9, "scale": 2}]
GROWN = [
    {"name": "key", "type": "int256"},
    {"name": "value", "type": "decimal", "precision": 12, "scale": 3},
    {"name": "memo", "type": "text"},
]


def test_a_table_has_columns_and_no_files(flow: Flow) -> None:
    """A job of the same DAG is told what its own version declares, however the table grows; all others what is declared
    now: a dataset keeps its generation meanwhile."""

    def claimed(job: str) -> tuple[Any, Any]:
        task = flow.tasks(job, "Queued")[0]["task_id"]
        return task, flow.claim(task)

    def served() -> Any:
        return flow.harness.service("POST", "/internal/dataset-files", {"org": flow.org, "name": "large"}).body

    flow.deploy(TABLE)
    flow.deploy(OTHER)
    flow.trigger("rows", "read", range={"start": 0, "end": 9})
    flow.trigger("other", "far", range={"start": 0, "end": 9})
    before, far = claimed("read"), claimed("far")
    for body in (ask(flow, *before).body, ask(flow, *far).body, served()):
        assert (body["units"], body["columns"]) == ([], DECLARED)
    grown = TABLE.replace("{name: key, type: int64", "{name: key, type: int256")
    grown = grown.replace("precision: 9, scale: 2}", "precision: 12, scale: 3}\n        - {name: memo, type: text}")
    flow.deploy(grown)
    assert ask(flow, *before).body["columns"] == DECLARED
    assert ask(flow, *far).body["columns"] == served()["columns"] == GROWN
    flow.trigger("rows", "read", range={"start": 0, "end": 9})
    assert ask(flow, *claimed("read")).body["columns"] == GROWN


def test_a_writer_of_a_table_is_told_its_schema(flow: Flow) -> None:
    flow.deploy(TABLE)
    flow.trigger("rows", "src", cursor=1)
    task = flow.tasks("write", "Queued")[0]["task_id"]
    lease = flow.claim(task)
    own = {key: lease["task"]["outputs"][0][key] for key in ("dataset_uuid", "dataset_version")}

    def schema(**fields: Any) -> Reply:
        return flow.harness.task("files", lease["capability_token"], fence(str(task), lease, **(own | fields)))

    columns = [column["name"] for column in schema().body["schema"]["columns"]]
    assert columns == ["key", "value"]
    grown = TABLE.replace("precision: 9, scale: 2}", "precision: 9, scale: 2}\n        - {name: memo, type: text}")
    flow.deploy(grown)
    columns = [column["name"] for column in schema().body["schema"]["columns"]]
    assert columns == ["key", "value", "memo"], "as sinks judge rows now"
    assert schema(dataset_version=str(uuid4())).code == "dataset_forbidden"


def test_what_a_reader_declares_is_found_by_indexes(flow: Flow) -> None:
    async def explain() -> str:
        settings = {"plan_cache_mode": "force_generic_plan", "enable_seqscan": "off"}
        connection = await asyncpg.connect(flow.harness.state_dsn, server_settings=settings)
        try:
            await connection.execute(f"PREPARE wanted AS {view._DECLARED}")
            return "\n".join(row[0] for row in await connection.fetch("EXPLAIN EXECUTE wanted (NULL, NULL)"))
        finally:
            await connection.close()

    plan = flow.harness.run(explain())
    assert "Seq Scan" not in plan, plan
    assert "Index Cond: (job_id = $1)" in plan, plan


def test_another_dataset_is_refused(flow: Flow, reader: tuple[Any, Any]) -> None:
    own = flow.event("files", "read")
    for fields in (own, {"dataset_version": str(uuid4())}, {"dataset_uuid": str(uuid4())}):
        reply = ask(flow, *reader, **fields)
        assert (reply.status, reply.code) == (403, "dataset_forbidden")


def test_a_range_needs_both_ends_in_order(flow: Flow, reader: tuple[Any, Any]) -> None:
    for fields in ({"start": 1}, {"end": 1}, {"start": 2, "end": 1}, {"start": -1, "end": 1}):
        assert ask(flow, *reader, **fields).status == 422
