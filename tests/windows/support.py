"""Driving DAGs with windows: commit units of blocks, run the tasks of windows, and see what each of them read.

No Spark runs here. A task's "rows" are a text in the one file that it commits: what it read, file by file. So a test
can compare what a dataset is made of with what it should be made of.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any
from uuid import UUID

import msgspec

from tests.routing.support import Flow, block
from tests.support.dispatcher import fence

SECONDS_PER_BLOCK = 10


def unit_times(start: int, end: int) -> tuple[int, int]:
    """Block n has the time 10 n."""
    return start * SECONDS_PER_BLOCK, end * SECONDS_PER_BLOCK


@dataclass
class WindowFlow(Flow):
    contents: dict[str, str] = field(default_factory=dict)
    """By address: the text of each committed file."""
    times: Any = unit_times
    compute: Callable[[list[str]], str] = lambda inputs: f"({'|'.join(inputs)})"
    """The rows of a task, from what its inputs are."""

    def commit_source(self, dag: str, job: str, start: int, end: int, text: str, source: str = "src") -> None:
        """One unit of blocks, computed by a job that reads a source; again if it is there."""
        if any(task["unit_key"] == f"p:{start}-{end}" for task in self.tasks(job, "Completed")):
            reply = self.trigger(dag, job, range={"start": start, "end": end})
            assert reply.task_id is not None
            task_id: Any = reply.task_id
        else:
            if not any(task["unit_key"] == f"p:{start}-{end}" for task in self.tasks(job, "Queued")):
                self.trigger(dag, source, range={"start": start, "end": end})
            task_id = next(
                task["task_id"] for task in self.tasks(job, "Queued") if task["unit_key"] == f"p:{start}-{end}"
            )
        self.finish(task_id, text)

    def finish(self, task_id: UUID | str, text: str, lease: Any = None, file: bytes | None = None) -> None:
        """Completes the task of a unit; `file` is what its file holds, instead of the text."""
        lease = lease or self.claim(task_id)
        self.complete(task_id, lease, **self.write(lease, text, file))

    def write(self, lease: Any, text: str, file: bytes | None = None) -> dict[str, Any]:
        """Writes the files of a claimed task. Returns what its final report says of them."""
        task = lease["task"]
        unit = task["inputs"][0]["unit"]
        start, end = unit.get("start"), unit.get("end")
        if start is None:  # of a cursor, what it passed
            start, end = unit["cursor"]["after"] + 1, unit["cursor"]["to"]
        published, events = [], []
        for output in task["outputs"]:
            prefix = output["storage"]["write_prefix"]
            uri = f"{prefix}rows.parquet"
            self.harness.run(self.harness.objects.put(uri, text.encode() if file is None else file))
            self.harness.run(self.harness.objects.put(f"{prefix}_SUCCESS", b""))
            self.contents[uri] = text
            bucket, _, key = prefix.removeprefix("s3://").partition("/")
            place = {name: output[name] for name in ("dataset_uuid", "dataset_version")}
            ref = {"scheme": "s3", "bucket": bucket, "prefix": key, "glob": "*.parquet"}
            times = {}
            known = self.times(start, end) if "scope" not in task["inputs"][0] and self.times is not None else None
            if known is not None:
                times = dict(zip(("time_min", "time_max"), known, strict=True))
            published.append(place | {"range_start": start, "range_end": end, "storage_ref": ref} | times)
            events.append(place | block(start, end))
        return {"datasets_published": published, "events": events}

    def read(self, task_id: UUID | str, lease: Any, item: dict[str, Any]) -> list[str]:
        """The texts of what an input of a claimed task is."""
        scope = item.get("scope") or {}
        if scope.get("empty"):
            return []
        body = {name: item[name] for name in ("dataset_uuid", "dataset_version")}
        if scope and scope.get("start") is not None:
            body |= {"start": scope["start"], "end": scope["end"]}
        elif not scope:
            body |= {"start": item["unit"]["start"], "end": item["unit"]["end"]}
        reply = self.harness.task("files", lease["capability_token"], fence(str(task_id), lease, **body))
        assert reply.status == 200, reply
        return [self.contents[file["uri"]] for unit in reply.body["units"] for file in unit["files"]]

    def run(self, task_id: UUID | str) -> str:
        """Runs a task of windows: its rows are what its inputs are, in order."""
        lease = self.claim(task_id)
        inputs = [",".join(self.read(task_id, lease, item)) for item in lease["task"]["inputs"]]
        text = self.compute(inputs)
        self.finish(task_id, text, lease)
        return text

    def run_windows(self, *jobs: str, pick: Callable[[list[UUID]], UUID] = itemgetter(0), at_most: int = 1000) -> int:
        """Runs whatever is ready of these jobs, one task after another, the earliest window first, until nothing is.

        Ids of tasks that were created in one millisecond have no order."""
        done = 0
        while done < at_most:
            self.drain()
            queued = [task for job in jobs for task in self.tasks(job, "Queued") if not task["held"]]
            ready = [task["task_id"] for task in sorted(queued, key=lambda task: task["unit"].get("start", 0))]
            if not ready:
                return done
            self.run(pick(ready))
            done += 1
        return done

    def rows(self, dataset: str) -> dict[tuple[int, int], str]:
        """What each unit of a dataset's current generation consists of."""
        rows = self.harness.sql(
            """SELECT u.range_start, u.range_end, m.objects
               FROM datasets d JOIN dataset_units u ON u.dataset_uuid = d.dataset_uuid
                 AND u.dataset_version = d.current_version JOIN manifests m USING (manifest_id)
               WHERE d.name = $1 AND d.org_id = (SELECT org_id FROM orgs WHERE name = $2) ORDER BY 1""",
            dataset,
            self.org,
        )
        return {
            (row["range_start"], row["range_end"]): "".join(
                self.contents[item["uri"]] for item in msgspec.json.decode(row["objects"])
            )
            for row in rows
        }

    def pending(self) -> list[tuple[int, int, str]]:
        rows = self.harness.sql("SELECT unit_start, unit_end, reason FROM pending_units ORDER BY 1, 2")
        return [tuple(row) for row in rows]
