"""Driving a direct table and its dependants without Spark: the test is the table, and the tasks' rows are texts."""

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec

from tests.reorgs.live_chain import Block, Dependant, LiveChain, digest, rows_text
from tests.support.dispatcher import DispatcherHarness, fence
from tests.windows.support import WindowFlow
from tracelake.model.windows import Window

HEAD = """
name: live
defaults: {{runtime: ecs_platform}}
jobs:
  - name: head
    activation: source
    source: {{kind: always_on}}
    operator: block_follower
    outputs: 1
    config: {{chain_id: 1, tables: [blocks]}}
  - {{name: copy, activation: reactive, operator: spark_sql, execution_strategy: PerUpdate,
      config: {{query: 'SELECT 1L AS total, timestamp_seconds(0) AS timestamp'}}, inputs: [{{from: {{job: head}}}}]}}
  - {{name: onward, activation: reactive, operator: spark_sql, execution_strategy: PerUpdate,
      config: {{query: 'SELECT 1L AS total, timestamp_seconds(0) AS timestamp'}}, inputs: [{{from: {{job: copy}}}}]}}
"""
READERS = ("copy", "onward")
"""Jobs that get a task for each update of the table, one reading the other."""


class ReorgFlow(WindowFlow):
    """A table of blocks that the test writes as a follower does, with everything that depends on it."""

    def __init__(self, harness: DispatcherHarness, org: str, chain: LiveChain, dependants: Sequence[Dependant]) -> None:
        super().__init__(harness, org)
        self.chain = chain
        self.dependants = dependants
        self.names = [*READERS, *(job.name for job in dependants)]
        self.rewrites = 0
        self.newest_time = 0
        self.announced: list[dict[str, Any]] = []
        jobs = "".join(
            f"  - {{name: {job.name}, activation: reactive, operator: spark_sql, config: {{query: SELECT 1L AS total}},"
            f" units: {_grid_text(job)}, inputs: {job.inputs}}}\n"
            for job in dependants
        )
        publish = "".join(f"  {name}: {{from: {{job: {name}}}, storage: s3}}\n" for name in self.names)
        self.text = f"{HEAD.format()}{jobs}publish:\n  live: {{from: {{job: head}}, storage: postgres}}\n{publish}"
        self.deploy(self.text)
        self.start_source()

    def start_source(self) -> None:
        self.harness.run(self.harness.dispatcher.monitor.run_once())
        self.source = self.tasks("head", "Queued")[-1]["task_id"]
        self.lease = self.claim(self.source)

    def follow_anew(self) -> None:
        """Another version of the follower, whose outputs are new generations of the same table."""
        before = self.event("live", "head")["dataset_version"]
        self.deploy(self.text.replace("tables: [blocks]", "tables: [blocks], batch_size: 7"))
        self.harness.run(self.harness.dispatcher.builds.run_once())
        self.drain()
        assert self.event("live", "head")["dataset_version"] != before
        self.start_source()

    # --- the table

    def append(self, count: int) -> None:
        first = self.chain.tip + 1
        self.chain.append(count)
        self.announce(self.event_of(first))

    def pass_all(self) -> None:
        first = self.chain.tip + 1
        self.chain.pass_all(self.newest_time + 4_000)
        self.announce(self.event_of(first))

    def reorganise(self, depth: int, more: int) -> dict[str, Any]:
        """Writes another fork; the caller announces the event that is returned."""
        former = [block.time for block in self.chain.blocks[-depth:]]
        changed = self.chain.reorganise(depth, more)
        self.rewrites += 1
        wrong = {"start": changed.start, "end": changed.end, "reason": "reorganised"}
        return self.event_of(
            changed.start,
            revision=f"{self.chain.blocks[-1].hash}.{self.rewrites}",
            invalidates=wrong | {"time_min": min(former), "time_max": max(former)},
        )

    def event_of(self, first: int, **fields: Any) -> dict[str, Any]:
        times = [block.time for block in self.chain.between(first, self.chain.tip)]
        self.newest_time = max(self.newest_time, *times)
        return self.event("live", "head", cursor=self.chain.tip, first=first, times=times, **fields)

    def announce(self, *events: dict[str, Any]) -> None:
        self.say(self.source, self.lease, *events)
        self.announced += events

    def repeat(self, *events: dict[str, Any]) -> None:
        """Announces them once more, as an attempt does that does not know whether they have arrived."""
        if events:
            self.say(self.source, self.lease, *events)

    # --- the tasks

    def read_blocks(self, item: dict[str, Any]) -> list[Block]:
        scope, unit = item.get("scope"), item["unit"]
        if scope is not None:
            return [] if scope.get("empty") else self.chain.between(scope["start"], scope["end"])
        return self.chain.between(unit["cursor"]["after"] + 1, unit["cursor"]["to"])

    def compute_task(self, task_id: UUID, lease: Any) -> str:
        """The rows of a claimed task, from what its inputs are now."""
        task = lease["task"]
        if task["job"]["name"] == "copy":
            return rows_text(self.read_blocks(task["inputs"][0]))
        if task["job"]["name"] == "onward":
            return digest(self.read_files(task_id, lease, task["inputs"][0]))
        parts = []
        for item in task["inputs"]:
            if item["name"] == "live":
                parts.append(rows_text(self.read_blocks(item)))
            elif item["name"] == "copy":
                rows = [Block(*row) for text in self.read(task_id, lease, item) for row in json.loads(text)]
                scope = item["scope"]
                parts.append(rows_text(row for row in rows if scope["first"] <= row.time <= scope["last"]))
            else:
                parts.append(",".join(self.read(task_id, lease, item)))
        return digest(parts)

    def read_files(self, task_id: UUID, lease: Any, item: dict[str, Any]) -> list[str]:
        cursor = item["unit"]["cursor"]
        body = {name: item[name] for name in ("dataset_uuid", "dataset_version")}
        body |= {"start": cursor["after"] + 1, "end": cursor["to"]}
        reply = self.harness.task("files", lease["capability_token"], fence(str(task_id), lease, **body))
        assert reply.status == 200, reply
        return [self.contents[file["uri"]] for unit in reply.body["units"] for file in unit["files"]]

    def start(self, task_id: UUID) -> tuple[UUID, Any, str]:
        """Claims a task and computes its rows, which `end` commits."""
        lease = self.claim(task_id)
        return task_id, lease, self.compute_task(task_id, lease)

    def end(self, task_id: UUID, lease: Any, text: str) -> None:
        task = lease["task"]
        unit = task["inputs"][0]["unit"]
        if "cursor" in unit:
            start, end = unit["cursor"]["after"] + 1, unit["cursor"]["to"]
            said: dict[str, Any] = {"cursor": end}
        else:
            start, end = unit["start"], unit["end"]
            said = {name: unit[name] for name in ("partition_key", "start", "end")}
        (output,) = task["outputs"]
        prefix = output["storage"]["write_prefix"]
        uri = f"{prefix}rows.parquet"
        self.harness.run(self.harness.objects.put(uri, text.encode()))
        self.harness.run(self.harness.objects.put(f"{prefix}_SUCCESS", b""))
        self.contents[uri] = text
        bucket, _, key = prefix.removeprefix("s3://").partition("/")
        place = {name: output[name] for name in ("dataset_uuid", "dataset_version")}
        ref = {"scheme": "s3", "bucket": bucket, "prefix": key, "glob": "*.parquet"}
        published = [place | {"range_start": start, "range_end": end, "storage_ref": ref}]
        self.complete(task_id, lease, datasets_published=published, events=[place | said])

    def ready(self) -> list[tuple[str, UUID]]:
        """Queued tasks, in the order of their units."""
        rows = self.harness.sql(
            """SELECT j.name, t.task_id FROM tasks t JOIN jobs j USING (job_id) JOIN orgs o ON o.org_id = t.org_id
               WHERE o.name = $1 AND t.status = 'Queued' AND NOT t.held AND t.unit_end IS NOT NULL
               ORDER BY t.unit_end, j.name, t.task_id""",
            self.org,
        )
        return [(row["name"], row["task_id"]) for row in rows]

    def settle(self) -> int:
        """Runs whatever is ready until nothing is; returns how many tasks ran."""
        done = 0
        while True:
            self.drain()
            ready = self.ready()
            if not ready:
                return done
            for _, task_id in ready:
                self.end(*self.start(task_id))
                done += 1

    def counts(self) -> Counter[tuple[str, str]]:
        """Tasks by job and unit."""
        rows = self.harness.sql(
            """SELECT j.name, t.unit_key FROM tasks t JOIN jobs j USING (job_id) JOIN orgs o ON o.org_id = t.org_id
               WHERE o.name = $1 AND t.unit_end IS NOT NULL""",
            self.org,
        )
        return Counter((row["name"], row["unit_key"]) for row in rows)

    def count_unsettled(self) -> int:
        """Units that wait for a task, or to be looked at: none if nothing is open."""
        rows = self.harness.sql(
            """SELECT count(*) AS n FROM pending_units p JOIN orgs o USING (org_id)
               WHERE o.name = $1 AND (p.due OR p.waits_for IS NOT NULL)""",
            self.org,
        )
        count: int = rows[0]["n"]
        return count

    def results(self) -> dict[str, dict[tuple[int, int], str]]:
        return {name: self.rows(name) for name in self.names}

    def updates(self) -> list[Window]:
        """The units of the readers by cursor: what each update was."""
        rows = self.harness.sql(
            """SELECT DISTINCT t.unit::text AS unit
               FROM tasks t JOIN jobs j USING (job_id) JOIN orgs o ON o.org_id = t.org_id
               WHERE o.name = $1 AND j.name = 'copy'""",
            self.org,
        )
        cursors = [msgspec.json.decode(row["unit"])["cursor"] for row in rows]
        return sorted(Window(cursor["after"] + 1, cursor["to"]) for cursor in cursors)


def _grid_text(job: Dependant) -> str:
    grid = job.grid
    size = f"size: {grid.size}" if grid.by == "blocks" else f"grain: {grid.grain}"
    return f"{{by: {grid.by}, {size}, when: {grid.when}}}"
