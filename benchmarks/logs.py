"""What the log of an attempt costs: its lines in the worker, its row in the state database, an object instead of a row.

    python -m benchmarks.logs [--quick | --smoke]

All subjects take turns in one run. The last line is one JSON object of medians.

- `capture_ms`: the lines of one attempt, redacted and kept, in the worker. `lines` is their number.
- `row_ms`: storing a log, as one of `batch` in a call of the Dispatcher's function. `row_bytes`: its packed size.
- `object_ms`: creating an object of the same bytes in the embedded object store, one after the other.
"""

import json
import os
import tempfile
import time
import zlib
from pathlib import Path
from uuid import UUID, uuid4

import msgspec
from tests.support.dispatcher import DispatcherHarness
from tests.support.object_store import object_store
from tests.support.postgres import TestCluster

from benchmarks.support.options import parse_scale, say
from benchmarks.support.stats import interleave
from tracelake.adapters.s3.object_store import S3ObjectStore
from tracelake.dispatcher.run_logs.attempt_logs import store_logs
from tracelake.ports import ObjectStore
from tracelake.wire.run_logs import StoreLogsRequest
from tracelake.worker.attempt_log import AttemptLog

BATCH = 50
LINES = (
    "attempt 1 of spark_sql claimed by worker worker-host:16530:7155009e",
    "input transfers: unit 18000000-18000999",
    "output totals",
    "input transfers: 3 files, 12.4 MB",
    "the query runs",
    "output totals: wrote 1,000 rows in 1 file, 41.2 kB",
    "Spark: 1 job, 2 tasks, 0 failed, 0.4 s in executors",
    "completed",
)


def write_log(task_id: UUID) -> AttemptLog:
    log = AttemptLog(task_id, 1)
    for text in LINES:
        log.add("info", "worker", text)
    log.end("completed")
    return log


async def time_capture() -> float:
    began = time.perf_counter()
    for _ in range(BATCH):
        write_log(uuid4())
    return (time.perf_counter() - began) * 1000 / BATCH


async def measure(harness: DispatcherHarness, objects: ObjectStore, task_ids: list[UUID]) -> dict[str, object]:
    rounds = parse_scale(__doc__).pick(100, 20, 2)
    reports = [write_log(task_id).report() for task_id in task_ids]
    request = StoreLogsRequest(worker_id="bench", logs=reports)
    body = zlib.compress(msgspec.json.encode(reports[0]))
    store = harness.dispatcher.ports.store

    async def time_rows() -> float:
        began = time.perf_counter()
        reply = await store_logs(store, objects, harness.config, request)
        assert reply.stored == BATCH
        return (time.perf_counter() - began) * 1000 / BATCH

    async def time_objects() -> float:
        began = time.perf_counter()
        for _ in range(BATCH):
            await objects.put(f"s3://{harness.config.bundle_bucket}/runs/{uuid4()}/final.json", body)
        return (time.perf_counter() - began) * 1000 / BATCH

    subjects = {"capture": time_capture, "row": time_rows, "object": time_objects}
    series = await interleave(subjects, rounds, say, show=lambda value: f"{value:.3f} ms")
    figures: dict[str, object] = {}
    for name, values in series.items():
        figures[f"{name}_ms"] = round(values.median, 3)
        figures[f"{name}_quartiles"] = values.spread
    return figures | {"row_bytes": len(body), "lines": len(LINES), "batch": BATCH, "cores": os.cpu_count()}


def main() -> None:
    with object_store() as running_store, tempfile.TemporaryDirectory(prefix="trace-bench-") as directory:
        cluster = TestCluster.start()
        try:
            harness = DispatcherHarness.start(
                cluster.fresh("state"), cluster.fresh("queue", role="trace_queue"), Path(directory)
            )
            job = harness.make_job(operator="sleep", config={"seconds": 1})
            task_ids = [UUID(harness.make_task(job["job_id"])) for _ in range(BATCH)]
            for task_id in task_ids:
                assert harness.claim(str(task_id), worker_id="bench").body["status"] == "Claimed"
            objects = S3ObjectStore(running_store.access())
            print(json.dumps(harness.run(measure(harness, objects, task_ids), timeout=600)))
            harness.stop()
        finally:
            cluster.stop()


if __name__ == "__main__":
    main()
