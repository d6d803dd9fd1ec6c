"""Files that nobody committed go after their retention; committed ones never, and nothing goes too early."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.routing.support import Flow, block
from tests.support import dags
from tests.support.dispatcher import DispatcherHarness, fence
from tests.support.state import allow_one_attempt
from tracelake.dispatcher.loops import uncommitted_files
from tracelake.errors import StoreUnavailableError

DAG = """
name: files
defaults: {runtime: ecs_platform, heartbeat_timeout_seconds: 60}
jobs:
  - {name: src, activation: source, source: {kind: manual}}
  - {name: write, activation: reactive, operator: decode_logs, inputs: [{from: {job: src}}], max_attempts: 2}
publish:
  blocks: {from: {job: write}, storage: s3}
"""
WEEK = 7 * 24 * 3600


@pytest.fixture
def flow(state_dsn: str, queue_dsn: str, tmp_path: Path) -> Iterator[Flow]:
    harness = DispatcherHarness.start(state_dsn, queue_dsn, tmp_path)
    harness.use_movable_clock()
    flow = Flow(harness)
    flow.deploy(DAG)
    yield flow
    harness.stop()


def begin(flow: Flow, start: int = 0) -> tuple[Any, Any, str]:
    """A claimed attempt that has written its files."""
    if not flow.tasks("write", "Queued"):
        flow.trigger("files", "src", range={"start": start, "end": start + 9})
    task = flow.tasks("write", "Queued")[0]["task_id"]
    lease = flow.claim(task)
    prefix = lease["task"]["outputs"][0]["storage"]["write_prefix"]
    for name in (f"blocks_{start}_{start + 9}.parquet", "_SUCCESS"):
        flow.harness.run(flow.harness.objects.put(prefix + name, b"x"))
    return task, lease, prefix


def published(flow: Flow, prefix: str, start: int = 0) -> dict[str, Any]:
    bucket, _, key = prefix.removeprefix("s3://").partition("/")
    ref = {"scheme": "s3", "bucket": bucket, "prefix": key, "glob": "*.parquet"}
    said = flow.event("files", "write", range_start=start, range_end=start + 9) | {"storage_ref": ref}
    return {"datasets_published": [said], "events": [flow.event("files", "write", **block(start, start + 9))]}


def retry(flow: Flow) -> None:
    flow.harness.advance(3600)
    flow.harness.run(flow.harness.dispatcher.retries.run_once())


def collect(flow: Flow) -> None:
    while flow.harness.run(flow.harness.dispatcher.collector.run_once()) >= uncommitted_files.PAGE:
        pass


def files(flow: Flow, prefix: str) -> int:
    return len(flow.harness.run(flow.harness.objects.list(prefix)))


def test_the_attempt_that_failed_goes_and_the_one_that_was_committed_stays(flow: Flow) -> None:
    task, lease, lost = begin(flow)
    flow.complete(task, lease, status="Failed", error_message="no")
    retry(flow)
    task, lease, kept = begin(flow)
    flow.complete(task, lease, **published(flow, kept))
    flow.harness.advance(WEEK - 7200)
    collect(flow)
    assert (files(flow, lost), files(flow, kept)) == (2, 2), "not before its time"
    flow.harness.advance(7300)
    collect(flow)
    assert (files(flow, lost), files(flow, kept)) == (0, 2)
    flow.harness.advance(100 * WEEK)
    collect(flow)
    assert files(flow, kept) == 2


def test_older_revisions_stay(flow: Flow) -> None:
    prefixes = []
    for _ in range(2):
        task, lease, prefix = begin(flow)
        flow.complete(task, lease, **published(flow, prefix))
        prefixes.append(prefix)
        flow.trigger("files", "write", range={"start": 0, "end": 9})
    flow.harness.advance(2 * WEEK)
    collect(flow)
    assert [files(flow, prefix) for prefix in prefixes] == [2, 2]


def test_a_task_that_is_still_at_work_is_looked_at_later(flow: Flow) -> None:
    task, lease, prefix = begin(flow)
    flow.complete(task, lease, status="Failed", error_message="no")
    flow.harness.advance(2 * WEEK)  # and waits for its retry all the time
    collect(flow)
    assert files(flow, prefix) == 2
    retry(flow)
    task, lease, _ = begin(flow)
    flow.complete(task, lease, status="Failed", error_message="no", retryable=False)
    collect(flow)
    assert files(flow, prefix) == 2
    flow.harness.advance(WEEK + 60)
    collect(flow)
    flow.harness.advance(WEEK + 60)
    collect(flow)
    assert files(flow, prefix) == 0
    assert flow.harness.sql("SELECT FROM collect_later") == []


def test_a_late_word_comes_too_late_when_its_files_are_gone(flow: Flow) -> None:
    task, lease, prefix = begin(flow)
    allow_one_attempt(flow.harness, task)
    flow.harness.advance(3600)
    flow.harness.run(flow.harness.dispatcher.reaper.run_once())
    flow.harness.advance(3600)
    flow.harness.run(flow.harness.dispatcher.reaper.run_once())
    assert flow.tasks("write")[0]["status"] == "Failed"
    flow.harness.advance(WEEK + 60)
    collect(flow)
    assert files(flow, prefix) == 0
    token = flow.harness.sql("SELECT lease_token FROM tasks")[0]["lease_token"]
    assert str(token) != lease["lease_token"]
    body = fence(str(task), lease, status="Completed", **published(flow, prefix))
    reply = flow.harness.task("complete", lease["capability_token"], body)
    assert reply.status in (401, 409), "the token has ended, and the attempt is not current"


def test_what_a_retry_writes_meanwhile_stays(flow: Flow) -> None:
    task, lease, lost = begin(flow)
    flow.complete(task, lease, status="Failed", error_message="no", retryable=False)
    begun = lost.removesuffix("1/") + "2/"
    flow.harness.run(flow.harness.objects.put(f"{begun}blocks_0_9.parquet", b"x"))
    flow.harness.advance(WEEK + 60)
    collect(flow)
    assert (files(flow, lost), files(flow, begun)) == (0, 1)


def test_a_task_that_was_met_before_its_first_attempt_is_looked_at_later(flow: Flow) -> None:
    flow.trigger("files", "src", range={"start": 0, "end": 9})
    flow.harness.advance(2 * WEEK)
    collect(flow)
    task, lease, prefix = begin(flow)
    flow.complete(task, lease, status="Failed", error_message="no", retryable=False)
    for _ in range(2):
        flow.harness.advance(WEEK + 60)
        collect(flow)
    assert files(flow, prefix) == 0
    assert flow.harness.sql("SELECT FROM collect_later") == []


def test_a_task_that_is_tried_again_after_its_files_went_is_looked_at_again(flow: Flow) -> None:
    task, lease, lost = begin(flow)
    flow.complete(task, lease, status="Failed", error_message="no", retryable=False)
    flow.harness.advance(WEEK + 60)
    collect(flow)
    assert files(flow, lost) == 0
    flow.harness.run(flow.harness.dispatcher.actions.retry(dags.actor(flow.harness), task))
    collect(flow)
    task, lease, lost = begin(flow)
    flow.complete(task, lease, status="Failed", error_message="no", retryable=False)
    collect(flow)
    assert files(flow, lost) == 2
    flow.harness.advance(WEEK + 60)
    collect(flow)
    assert files(flow, lost) == 0
    assert flow.harness.sql("SELECT FROM collect_later") == []


def test_pages(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uncommitted_files, "PAGE", 2)
    prefixes = []
    for start in range(0, 50, 10):
        task, lease, prefix = begin(flow, start)
        flow.complete(task, lease, status="Failed", error_message="no", retryable=False)
        prefixes.append(prefix)
    flow.harness.advance(WEEK + 60)
    collect(flow)
    assert [files(flow, prefix) for prefix in prefixes] == [0] * 5


def test_a_unit_is_not_committed_before_its_files_are_on_the_disk(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail() -> None:
        raise StoreUnavailableError("The disk is away.")

    task, lease, prefix = begin(flow)
    said = fence(task, lease, status="Completed", **published(flow, prefix))
    with monkeypatch.context() as patch:
        patch.setattr(flow.harness.objects, "sync", fail)
        assert flow.harness.task("complete", lease["capability_token"], said).status == 503
        assert [row["status"] for row in flow.tasks("write")] == ["Running"]
        assert not flow.harness.sql("SELECT FROM manifests")
    assert flow.harness.task("complete", lease["capability_token"], said).status == 200
    assert len(flow.harness.sql("SELECT FROM manifests")) == 1


def test_scratch_files_go_also_of_the_attempt_that_was_committed(flow: Flow) -> None:
    task, lease, kept = begin(flow)
    scratch = flow.harness.config.layout.scratch_prefix(task, lease["attempt"])
    flow.harness.run(flow.harness.objects.put(f"{scratch}part", b"x"))
    flow.complete(task, lease, **published(flow, kept))
    flow.harness.advance(WEEK - 3600)
    collect(flow)
    assert files(flow, scratch) == 1
    flow.harness.advance(7200)
    collect(flow)
    assert (files(flow, scratch), files(flow, kept)) == (0, 2)
