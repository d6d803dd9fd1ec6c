"""Driving a live dataset without Spark: the test is the table, and jobs commit texts for files."""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

import jwt

from tests.routing.support import block
from tests.support.dispatcher import fence
from tests.windows.support import WindowFlow

TABLE_START = 20
DAG = """
name: live
defaults: {runtime: ecs_platform}
jobs:
  - {name: src, activation: source, source: {kind: manual}}
  - name: head
    activation: source
    source: {kind: always_on}
    operator: block_follower
    outputs: 3
    config: {chain_id: 1, start: 0, tables: [blocks], unit_blocks: 10, finality_depth_blocks: 5}
  - name: history
    activation: reactive
    operator: evm_ingest
    execution_strategy: PerPartition
    config: {chain_id: 1, tables: [blocks]}
    inputs: [{from: {job: src}}]
  - name: compact
    activation: reactive
    operator: parquet_compact
    execution_strategy: PerPartition
    config: {tables: [blocks]}
    inputs: [{from: {job: head, output_index: 2}}]
  - name: copy
    activation: reactive
    operator: spark_sql
    execution_strategy: PerPartition
    config: {query: SELECT 1 AS a}
    inputs: [{from: {dataset: blocks}}]
  - name: tens
    activation: reactive
    operator: spark_sql
    units: {by: blocks, size: 10, when: updated}
    config: {query: SELECT 1 AS a}
    inputs: [{from: {dataset: blocks}}]
publish:
  blocks: {from: [{job: head}, {job: history}, {job: compact}], storage: live}
  copies: {from: {job: copy}, storage: s3}
  sums: {from: {job: tens}, storage: s3}
"""


@dataclass
class LiveFlow(WindowFlow):
    """`blocks` is a live dataset; `copy` reads it by its own units, `tens` by windows of ten blocks."""

    source: UUID | None = None
    lease: Any = None

    def begin(self, document: str = DAG) -> None:
        self.deploy(document)
        self.harness.run(self.harness.dispatcher.monitor.run_once())
        self.source = self.tasks("head", "Queued")[-1]["task_id"]
        self.lease = self.claim(self.source)

    @property
    def run_id(self) -> UUID:
        """The run of the follower."""
        assert self.source is not None
        return self.source

    # --- what the follower says

    def append(self, start: int, end: int) -> None:
        self.announce(self.table_event(start, end, revision="1"))

    def reorganise(self, start: int, end: int, revision: str) -> None:
        wrong = {"start": start, "end": end, "reason": "reorganised"}
        self.announce(self.table_event(start, end, revision=revision, invalidates=wrong))

    def seal(self, start: int, end: int) -> UUID:
        """A unit is final; returns the task that makes its files."""
        self.announce(self.event("live", "head", 2, **block(start, end)))
        return self.task_of("compact", start, end)

    def table_event(self, start: int, end: int, **fields: Any) -> dict[str, Any]:
        times = [10 * number for number in range(start, end + 1)]
        return self.event("live", "head", 0, first=start, times=times, **block(start, end), **fields)

    def announce(self, *events: dict[str, Any]) -> None:
        self.say(self.run_id, self.lease, *events)

    # --- the jobs that make files

    def task_of(self, job: str, start: int, end: int) -> UUID:
        keys = {task["unit_key"]: task["task_id"] for task in self.tasks(job, "Queued")}
        task_id: UUID = keys[f"p:{start}-{end}"]
        return task_id

    def backfill(self, start: int, end: int, text: str) -> None:
        self.commit_source("live", "history", start, end, text)

    def compact(self, task_id: UUID, text: str) -> Any:
        """Commits files of rows of the table, without an event; returns what the attempt was told of its output."""
        lease = self.claim(task_id)
        task = lease["task"]
        (output,) = task["outputs"]
        place = {name: output[name] for name in ("dataset_uuid", "dataset_version")}
        told = self.harness.task("files", lease["capability_token"], fence(str(task_id), lease, **place)).body
        unit = task["inputs"][0]["unit"]
        prefix = output["storage"]["write_prefix"]
        uri = f"{prefix}rows.parquet"
        self.harness.run(self.harness.objects.put(uri, text.encode()))
        self.harness.run(self.harness.objects.put(f"{prefix}_SUCCESS", b""))
        self.contents[uri] = text
        bucket, _, key = prefix.removeprefix("s3://").partition("/")
        published = place | {
            "range_start": unit["start"],
            "range_end": unit["end"],
            "table_start": TABLE_START,
            "storage_ref": {"scheme": "s3", "bucket": bucket, "prefix": key, "glob": "*.parquet"},
        }
        self.complete(task_id, lease, datasets_published=[published], events=[])
        return told

    # --- readers

    def look(self, task_id: UUID, lease: Any, start: int, end: int) -> tuple[list[str], int | None]:
        """The files of the range that a claimed task may read, and its boundary."""
        item = lease["task"]["inputs"][0]
        body = {name: item[name] for name in ("dataset_uuid", "dataset_version")} | {"start": start, "end": end}
        reply = self.harness.task("files", lease["capability_token"], fence(str(task_id), lease, **body))
        assert reply.status == 200, reply
        assert reply.body["live"]
        assert reply.body["by_position"]
        assert [column["name"] for column in reply.body["columns"]]
        files = [self.contents[file["uri"]] for unit in reply.body["units"] for file in unit["files"]]
        return files, reply.body.get("boundary")

    def grant(self, lease: Any) -> Any:
        claims = jwt.decode(lease["capability_token"], options={"verify_signature": False})
        return claims["datasets"][0]

    def boundary(self) -> int | None:
        rows = self.harness.sql("SELECT boundary FROM live_boundaries")
        return rows[0]["boundary"] if rows else None
