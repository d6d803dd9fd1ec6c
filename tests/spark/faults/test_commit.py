"""From written files to a committed unit, on a real store: two attempts at once, and a store that is away meanwhile."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.routing.support import Flow, block
from tests.spark.faults.support import SHORT, Store, read_back
from tests.support.dispatcher import DispatcherHarness, Reply, fence
from tracelake.adapters.s3.object_store import S3ObjectStore
from tracelake.dispatcher.loops import uncommitted_files
from tracelake.ports import ObjectChangedError, ObjectExistsError, ObjectMeta
from tracelake.spark.reader import Reader, Selection
from tracelake.spark.writer import Target, Written, mark_success, write_frame
from tracelake.storage.file_cache import FileCache

DAG = """
name: files
defaults: {runtime: ecs_platform, heartbeat_timeout_seconds: 60}
jobs:
  - {name: src, activation: source, source: {kind: manual}}
  - {name: write, activation: reactive, operator: decode_logs, inputs: [{from: {job: src}}], max_attempts: 5}
  - {name: read, activation: reactive, operator: noop, inputs: [{from: {job: write}}]}
publish:
  blocks: {from: {job: write}, storage: s3}
"""
WEEK = 7 * 24 * 3600


@pytest.fixture
def flow(store: Store, state_dsn: str, queue_dsn: str, tmp_path: Path) -> Iterator[Flow]:
    objects = S3ObjectStore(store.embedded.access(), SHORT)
    harness = DispatcherHarness.start(state_dsn, queue_dsn, tmp_path / "home", store=objects)
    harness.use_movable_clock()
    flow = Flow(harness)
    flow.deploy(DAG)
    flow.trigger("files", "src", range={"start": 0, "end": 9})
    yield flow
    store.back()
    harness.stop()


def begin(flow: Flow) -> tuple[str, Any]:
    task = str(flow.tasks("write", "Queued")[0]["task_id"])
    return task, flow.claim(task)


def prefix_of(lease: Any) -> str:
    prefix: str = lease["task"]["outputs"][0]["storage"]["write_prefix"]
    return prefix


def write(spark: SparkSession, store: Store, lease: Any, value: int) -> Written:
    """What an operator does: ten blocks, each with this value."""
    target = Target(prefix_of(lease), "blocks", store.patient)
    frame = spark.range(10).selectExpr("id AS block_number", f"cast({value} AS int) AS value")
    written = write_frame(frame, target, 0, 9)
    mark_success(target, written.files)
    return written


def complete(flow: Flow, task: str, lease: Any) -> Reply:
    bucket, _, key = prefix_of(lease).removeprefix("s3://").partition("/")
    ref = {"scheme": "s3", "bucket": bucket, "prefix": key, "glob": "*.parquet"}
    published = flow.event("files", "write", range_start=0, range_end=9) | {"storage_ref": ref}
    said = {"datasets_published": [published], "events": [flow.event("files", "write", **block(0, 9))]}
    body = fence(task, lease, status="Completed", **said)
    return flow.harness.task("complete", lease["capability_token"], body)


def committed(flow: Flow) -> list[ObjectMeta]:
    """What a task that reads the dataset is told to read."""
    task = str(flow.tasks("read", "Queued")[0]["task_id"])
    lease = flow.claim(task)
    item = lease["task"]["inputs"][0]
    body = {"dataset_uuid": item["dataset_uuid"], "dataset_version": item["dataset_version"], "start": 0, "end": 9}
    reply = flow.harness.task("files", lease["capability_token"], fence(task, lease, **body))
    assert reply.status == 200, reply
    return [ObjectMeta(**file) for unit in reply.body["units"] for file in unit["files"]]


def listed(flow: Flow, lease: Any) -> list[str]:
    found = flow.harness.run(flow.harness.objects.list(prefix_of(lease)))
    return [meta.uri.rsplit("/", 1)[1] for meta in found]


def values(store: Store, spark: SparkSession, files: list[ObjectMeta], root: Path) -> set[int]:
    reader = Reader(spark, FileCache(root / uuid4().hex, store.patient), root / uuid4().hex, local=True)
    return {row["value"] for row in reader.read("blocks", files, Selection(0, 9)).collect()}


def test_two_attempts_at_once(flow: Flow, store: Store, spark: SparkSession, tmp_path: Path) -> None:
    """One was given up for lost and goes on all the same: whatever it writes, and whenever, nobody reads it."""
    task, zombie = begin(flow)
    while not flow.tasks("write", "Queued"):
        flow.harness.advance(61)
        flow.harness.reap()
        flow.harness.requeue_due()
    again, successor = begin(flow)
    assert (again, successor["attempt"]) == (task, 2)
    files: dict[int, Written] = {}

    def write_as(number: int, lease: Any) -> None:
        files[number] = write(spark, store, lease, number)

    both = [threading.Thread(target=write_as, args=said) for said in ((1, zombie), (2, successor))]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()

    assert complete(flow, task, zombie).status == 409
    assert complete(flow, task, successor).status == 200
    assert complete(flow, task, zombie).status == 409
    pinned = committed(flow)
    assert pinned == [file.meta for file in files[2].files]
    assert values(store, spark, pinned, tmp_path) == {2}

    # Files of the zombie again, and then even one below the prefix of its successor, or in the place of a file of it.
    with pytest.raises(ObjectExistsError, match="_SUCCESS is there already, with other bytes"):
        write(spark, store, zombie, 3)
    assert values(store, spark, pinned, tmp_path) == {2}
    other = tmp_path / "other.parquet"
    pq.write_table(pa.table({"block_number": [0], "value": [4]}), other)
    store.patient.upload(other, f"{prefix_of(successor)}blocks_0_9.late.parquet")
    with pytest.raises(ObjectExistsError, match="is there already, with other bytes"):
        store.patient.upload(other, pinned[0].uri)
    assert values(store, spark, pinned, tmp_path) == {2}
    flow.harness.run(flow.harness.objects.put(pinned[0].uri, other.read_bytes()))
    with pytest.raises(ObjectChangedError, match=r"blocks_0_9\..+\.parquet is not the file that was committed"):
        values(store, spark, pinned, tmp_path)

    flow.harness.advance(WEEK + 3600)
    while flow.harness.run(flow.harness.dispatcher.collector.run_once()) >= uncommitted_files.PAGE:
        pass
    assert listed(flow, zombie) == []
    assert listed(flow, successor) == ["_SUCCESS", Path(pinned[0].uri).name], "and not the late one"


HOW: dict[str, Callable[[Store], None]] = {"stands still": Store.stand_still, "is down": Store.kill}


@pytest.mark.parametrize("how", HOW)
def test_the_store_is_away_when_the_result_is_told(
    flow: Flow, store: Store, spark: SparkSession, tmp_path: Path, how: str
) -> None:
    task, lease = begin(flow)
    written = write(spark, store, lease, 7)
    HOW[how](store)
    refused = complete(flow, task, lease)
    assert (refused.status, refused.code) == (503, "store_unavailable")
    assert flow.harness.sql("SELECT count(*) AS n FROM manifests")[0]["n"] == 0
    assert flow.harness.row(task)["status"] == "Running"
    beat = flow.harness.task("heartbeat", lease["capability_token"], fence(task, lease))
    assert beat.status == 200, "nobody who runs is troubled by it"

    store.back()
    taken = complete(flow, task, lease)
    while taken.status == 503:  # it was just started
        taken = complete(flow, task, lease)
    assert taken.status == 200, "what was computed is not lost"
    assert committed(flow) == [file.meta for file in written.files]
    assert set(read_back(store.patient, written.files, tmp_path)["value"].to_pylist()) == {7}
