"""Revisions of units: which of them wins, which of them are ours, and what a manual run may do."""

import asyncio
from itertools import permutations
from typing import Any

import asyncpg
import pytest

from tests.routing.support import Flow, block
from tests.routing.test_routing import Feeder
from tests.support import dags
from tests.support.dispatcher import Reply, fence
from tracelake.errors import TraceError

FILES = """
name: files
defaults: {runtime: ecs_platform}
jobs:
  - {name: src, activation: source, source: {kind: manual}}
  - {name: feeder, activation: reactive, operator: noop, inputs: [{from: {job: src}}]}
  - {name: write, activation: reactive, operator: decode_logs, inputs: [{from: {job: feeder}}]}
  - {name: read, activation: reactive, operator: noop, inputs: [{from: {job: write}}]}
publish:
  blocks: {from: {job: write}, storage: s3}
"""


class Files:
    """A job that keeps its output in files; its input is announced at will."""

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        flow.deploy(FILES)
        flow.trigger("files", "src", cursor=0)
        self.feeder = flow.tasks("feeder")[0]["task_id"]
        self.lease = flow.claim(self.feeder)

    def say(self, *events: dict[str, Any]) -> None:
        self.flow.say(self.feeder, self.lease, *(self.flow.event("files", "feeder", **event) for event in events))

    def claim(self, unit: str, revision: str = "") -> tuple[Any, Any]:
        for task in self.flow.tasks("write", "Queued"):
            if (task["unit_key"], task["revision"]) == (unit, revision):
                return task["task_id"], self.flow.claim(task["task_id"])
        raise AssertionError(f"no task for {unit} {revision}: {self.flow.units('write')}")

    def complete(
        self, task: tuple[Any, Any], start: int, end: int, *events: dict[str, Any], publish: bool = True
    ) -> Reply:
        """Publishes the range, and announces it where nothing else is said."""
        task_id, lease = task
        prefix = lease["task"]["outputs"][0]["storage"]["write_prefix"]
        for name in ("blocks.parquet", "_SUCCESS"):
            self.flow.harness.run(self.flow.harness.objects.put(prefix + name, b"x"))
        bucket, _, key = prefix.removeprefix("s3://").partition("/")
        ref = {"scheme": "s3", "bucket": bucket, "prefix": key, "glob": "*.parquet"}
        published = self.flow.event("files", "write", range_start=start, range_end=end) | {"storage_ref": ref}
        said = [self.flow.event("files", "write", **event) for event in events or (block(start, end),)]
        body = {"status": "Completed", "events": said, "datasets_published": [published] if publish else []}
        return self.flow.harness.task("complete", lease["capability_token"], fence(str(task_id), lease, **body))

    def pointers(self) -> list[tuple[str, int, str]]:
        """Unit, revision and task of every pointer."""
        rows = self.flow.harness.sql(
            "SELECT u.unit, u.revision, m.task_id FROM dataset_units u JOIN manifests m USING (manifest_id) ORDER BY 1"
        )
        return [(row["unit"], row["revision"], str(row["task_id"])) for row in rows]

    def states(self) -> list[tuple[str, str]]:
        """Unit and state of the events of the files, in their order."""
        rows = self.flow.harness.sql(
            "SELECT e.unit, e.state FROM events e JOIN datasets d USING (dataset_uuid) WHERE d.name = 'blocks' "
            "ORDER BY event_id"
        )
        return [(row["unit"], row["state"]) for row in rows]


@pytest.fixture
def files(flow: Flow) -> Files:
    return Files(flow)


def test_a_cursor_unit_is_committed_again_under_its_key(files: Files) -> None:
    files.say({"cursor": 9})
    first = files.claim("c:9")
    assert files.complete(first, 0, 9, {"cursor": 9}).status == 200
    files.say({"cursor": 9, "revision": "r1"})
    assert files.complete(files.claim("c:9", "r1"), 0, 9, {"cursor": 9}).status == 200
    files.say({"cursor": 10, "invalidates": {"start": 3, "end": 4, "reason": "wrong"}})
    again = files.flow.harness.sql("SELECT invalidation_id FROM invalidations")[0]["invalidation_id"]
    assert files.complete(files.claim("c:9", again), 0, 9).status == 200
    files.flow.trigger("files", "write", cursor=9, idempotency_key="by hand")
    last = files.claim("c:9", "by hand")
    assert files.complete(last, 0, 9).status == 200
    assert files.pointers() == [("p:0-9", 4, str(last[0]))]
    assert files.flow.units("read") == [("c:9", "2"), ("p:0-9", "3"), ("p:0-9", "4")], "the first was not claimed yet"


@pytest.mark.parametrize("early", [False, True])
def test_an_event_on_files_comes_with_the_publication_of_its_unit(files: Files, early: bool) -> None:
    files.say(block(0, 9))
    task_id, lease = files.claim("p:0-9")
    if early:
        files.flow.say(task_id, lease, files.flow.event("files", "write", **block(10, 19)))
    extra = () if early else (block(10, 19),)
    for publish in (True, False):
        reply = files.complete((task_id, lease), 0, 9, block(0, 9), *extra, publish=publish)
        assert (reply.status, reply.code) == (422, "event_without_publication")
    assert reply.body["error"]["details"]["dataset"] == "blocks"
    assert files.pointers() == []
    assert files.states() == ([("p:10-19", "AwaitsCommit")] if early else [])
    assert files.flow.tasks("write")[0]["status"] == "Running", "nothing of the call is kept"


def test_events_of_an_attempt_that_failed_do_not_stop_the_next(files: Files) -> None:
    files.say(block(0, 9))
    task_id, lease = files.claim("p:0-9")
    files.flow.say(task_id, lease, files.flow.event("files", "write", **block(10, 19)))
    files.flow.complete(task_id, lease, status="Failed", error_message="no")
    files.flow.harness.advance(700)
    files.flow.harness.run(files.flow.harness.dispatcher.retries.run_once())
    assert files.complete((task_id, files.flow.claim(task_id)), 0, 9).status == 200
    assert files.states() == [("p:10-19", "AwaitsCommit"), ("p:0-9", "Routed")]


@pytest.mark.parametrize("early", [False, True])
def test_the_newest_inputs_win_whoever_completes_last(files: Files, early: bool) -> None:
    files.say(block(0, 9))
    old = files.claim("p:0-9")
    files.say(block(0, 9) | {"revision": "r1"})
    new = files.claim("p:0-9", "r1")
    if early:
        files.flow.say(*old, files.flow.event("files", "write", **block(0, 9)))
    assert files.complete(new, 0, 9).status == 200
    for _ in range(2):
        assert files.complete(old, 0, 9).status == 200, "it is accepted"
    assert files.pointers() == [("p:0-9", 1, str(new[0]))]
    assert sorted(files.states()) == [("p:0-9", "Outdated"), ("p:0-9", "Routed")]
    assert files.flow.units("read") == [("p:0-9", "1")]
    manifests = files.flow.harness.sql("SELECT task_id, revision FROM manifests ORDER BY created_at")
    assert [(row["task_id"], row["revision"]) for row in manifests] == [(new[0], 1), (old[0], None)]
    files.say(block(0, 9) | {"revision": "r2"})
    assert files.complete(files.claim("p:0-9", "r2"), 0, 9).status == 200
    assert files.flow.units("read") == [("p:0-9", "1"), ("p:0-9", "2")]


def test_in_their_order_each_of_them_is_committed(files: Files) -> None:
    files.say(block(0, 9))
    old = files.claim("p:0-9")
    files.say(block(0, 9) | {"revision": "r1"})
    new = files.claim("p:0-9", "r1")
    for task in (old, new):
        assert files.complete(task, 0, 9).status == 200
    assert files.pointers() == [("p:0-9", 2, str(new[0]))]


def test_a_manual_run_with_the_same_inputs_is_committed_whenever_it_ends(files: Files) -> None:
    files.say(block(0, 9) | {"revision": "r1"})
    first = files.claim("p:0-9", "r1")
    files.flow.trigger("files", "write", range={"start": 0, "end": 9}, idempotency_key="again")
    again = files.claim("p:0-9", "again")
    for task in (again, first):
        assert files.complete(task, 0, 9).status == 200
    assert files.pointers() == [("p:0-9", 2, str(first[0]))]


def test_revisions_of_users_are_free_text(flow: Flow) -> None:
    feeder = Feeder(flow)
    feeder.say({"cursor": 5}, block(0, 9))
    flow.trigger("d", "each", cursor=5, idempotency_key="k")
    texts = ["k", "t:k", "i:1", "manual", "manual:k", "1"]
    feeder.say(*({"cursor": 5, "revision": text} for text in texts))
    assert flow.units("each") == sorted([("c:5", ""), ("p:0-9", ""), ("c:5", "k"), *(("c:5", text) for text in texts)])
    failed = next(task for task in flow.tasks("each") if task["revision"] == "t:k")
    flow.fail(failed["task_id"])
    assert dags.edge(flow.harness, "d", "each")["failed_units"] == 1, "it is a unit of the edge like any other"
    feeder.say({"cursor": 9, "invalidates": {"start": 5, "end": 5, "reason": "wrong"}})
    flow.person("skip", failed["task_id"])
    flow.drain()
    again = flow.harness.sql("SELECT invalidation_id FROM invalidations")[0]["invalidation_id"]
    assert ("c:5", again) in flow.units("each")
    assert flow.harness.run(flow.harness.dispatcher.routing_reconciler.run_once()) == 0


def test_texts_of_a_join_are_told_apart(flow: Flow) -> None:
    feeder = Feeder(flow)
    feeder.say(block(0, 9) | {"revision": "a|b"}, block(10, 19) | {"revision": "a"})
    feeder.say(block(0, 9) | {"revision": "c"}, block(10, 19) | {"revision": "b|c"}, index=1)
    first, second = (text for _, text in flow.units("join"))
    assert first != second


def test_a_manual_run_takes_no_cursor_downstream_on(flow: Flow) -> None:
    feeder = Feeder(flow)
    feeder.say({"cursor": 50})
    flow.trigger("d", "each", cursor=50, idempotency_key="k")
    manual = next(task for task in flow.tasks("each") if task["revision"] == "k")
    lease = flow.claim(manual["task_id"])
    said = [flow.event("d", "each", cursor=50), flow.event("d", "each", cursor=40, revision="own")]
    flow.complete(manual["task_id"], lease, events=said)
    assert flow.units("after") == [("c:40", "own"), ("c:50", "k")], "it is passed on"
    assert dags.edge(flow.harness, "d", "after")["routed"] == -1
    flow.pass_on(next(task["task_id"] for task in flow.tasks("each") if task["revision"] == ""))
    assert ("c:50", "") in flow.units("after")
    assert dags.edge(flow.harness, "d", "after")["routed"] == 50
    assert flow.harness.run(flow.harness.dispatcher.routing_reconciler.run_once()) == 0


def test_a_trigger_over_what_the_input_lacks_is_refused(files: Files) -> None:
    for start, end in ((0, 9), (20, 29)):
        files.say(block(start, end))
        assert files.complete(files.claim(f"p:{start}-{end}"), start, end).status == 200
    with pytest.raises(TraceError, match="inputs_incomplete") as refusal:
        files.flow.trigger("files", "read", range={"start": 5, "end": 39})
    missing = {"input_index": 0, "dataset": "blocks", "ranges": ["10-19", "30-39"]}
    assert refusal.value.details == {"field": "range", "missing": [missing]}
    with pytest.raises(TraceError, match="inputs_incomplete"):
        files.flow.trigger("files", "read", cursor=30)
    assert files.flow.trigger("files", "read", range={"start": 2, "end": 9}).task_id is not None
    assert len(files.flow.harness.sql("SELECT FROM triggers")) == 2, "a refusal leaves no trace"


def test_what_counts_as_announced_where_there_are_no_files(flow: Flow) -> None:
    feeder = Feeder(flow)
    feeder.say({"cursor": 9}, block(20, 29), {"partition_key": "eu"})
    for unit in ({"cursor": 9}, {"cursor": 3}, {"range": {"start": 0, "end": 9}}, {"partition_key": "eu"}):
        assert flow.trigger("d", "each", **unit).task_id is not None
    for lacking in ({"cursor": 10}, {"range": {"start": 5, "end": 25}}, {"partition_key": "us"}):
        with pytest.raises(TraceError, match="inputs_incomplete"):
            flow.trigger("d", "each", **lacking)
    flow.fail(next(task["task_id"] for task in flow.tasks("each") if task["revision"] == "" and task["edge"] == 0
                   and task["unit_key"] == "c:9"))  # fmt: skip
    feeder.say({"cursor": 12})
    assert flow.trigger("d", "each", cursor=12).task_id is not None, "its edge waits, but the input is there"


def test_an_invalidation_finds_a_long_unit_behind_many_short_ones(flow: Flow) -> None:
    feeder = Feeder(flow)
    feeder.say({"cursor": 1_000})
    feeder.say(*({"cursor": cursor, "revision": "r"} for cursor in range(100, 200)))
    feeder.say({"cursor": 2_000, "invalidates": {"start": 50, "end": 60, "reason": "wrong"}})
    again = flow.harness.sql("SELECT invalidation_id FROM invalidations")[0]["invalidation_id"]
    made = [unit for unit, revision in flow.units("each") if revision == again]
    assert sorted(made) == ["c:100", "c:1000"]


ROWS = """
name: rows
defaults: {runtime: ecs_platform}
jobs:
  - {name: src, activation: source, source: {kind: manual}}
  - {name: feeder, activation: reactive, operator: noop, inputs: [{from: {job: src}}]}
  - {name: load, activation: reactive, operator: noop, inputs: [{from: {job: feeder}}]}
publish:
  large:
    from: {job: load}
    storage: postgres
    write_mode: buffered
    schema:
      columns: [{name: key, type: int64, nullable: false}]
      unique: [key]
"""


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_rows_of_the_newest_inputs_have_the_highest_number(flow: Flow, order: tuple[int, ...]) -> None:
    """Published from the newest to the oldest, completed in any order."""
    flow.deploy(ROWS)
    flow.trigger("rows", "src", cursor=0)
    feeder = flow.tasks("feeder")[0]["task_id"]
    lease = flow.claim(feeder)
    for revision in ("", "r1", "r2"):
        flow.say(feeder, lease, flow.event("rows", "feeder", **block(0, 9), revision=revision))
    leases = [(task["task_id"], flow.claim(task["task_id"])) for task in flow.tasks("load")]
    assert [task["revision"] for task in flow.tasks("load")] == ["", "r1", "r2"]
    for task_id, attempt in reversed(leases):
        prefix = attempt["task"]["outputs"][0]["storage"]["buffer_prefix"]
        for name in ("a", "b"):
            uri = f"{prefix}{name}.jsonl"
            flow.harness.run(flow.harness.objects.put(uri, b'{"key": 1}\n'))
            body = fence(str(task_id), attempt, batch_uri=uri, dedupe_scope="large")
            assert flow.harness.task("buffer-publish", attempt["capability_token"], body).status == 200
    for number in order:
        flow.complete(*leases[number])
    rows = flow.harness.sql(
        "SELECT task_id, batch_uri FROM buffer_publishes WHERE released_at IS NOT NULL ORDER BY publish_seq"
    )
    released = [(row["task_id"], row["batch_uri"][-7]) for row in rows]
    winners = [number for place, number in enumerate(order) if number == max(order[: place + 1])]
    assert released == [(leases[number][0], name) for number in winners for name in ("a", "b")]


_WAITERS = (
    "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')"
)
# By another connection, in a transaction that the test holds open.
_COMPLETE = """
    UPDATE tasks SET status = 'Completed', outcome = 'Completed', finished_at = trace_now(), lease_expires_at = NULL
    WHERE task_id = $1"""


def test_who_speaks_for_a_unit_waits_for_others_who_speak_for_it(flow: Flow) -> None:
    """A task with newer inputs is being completed elsewhere: whether this one is outdated shows when that is over."""
    flow.deploy(ROWS)
    flow.trigger("rows", "src", cursor=0)
    feeder = flow.tasks("feeder")[0]["task_id"]
    lease = flow.claim(feeder)
    for revision in ("", "r1"):
        flow.say(feeder, lease, flow.event("rows", "feeder", **block(0, 9), revision=revision))
    old, new = (task["task_id"] for task in flow.tasks("load"))
    attempt, _ = flow.claim(old), flow.claim(new)
    uri = attempt["task"]["outputs"][0]["storage"]["buffer_prefix"] + "a.jsonl"
    flow.harness.run(flow.harness.objects.put(uri, b'{"key": 1}\n'))
    headers = {"x-trace-task-capability": attempt["capability_token"]}
    publish = fence(str(old), attempt, batch_uri=uri, dedupe_scope="large")
    assert flow.harness.task("buffer-publish", attempt["capability_token"], publish).status == 200
    complete = fence(str(old), attempt, status="Completed")

    async def scenario() -> Reply:
        elsewhere, observer = [await asyncpg.connect(flow.harness.state_dsn) for _ in range(2)]
        try:
            async with elsewhere.transaction():
                await elsewhere.execute("SELECT FROM tasks WHERE task_id = $1 FOR UPDATE", new)
                late = asyncio.ensure_future(
                    flow.harness.call_async("task", "POST", "/v1/task/complete", complete, headers)
                )
                async with asyncio.timeout(30):
                    while not late.done() and not await observer.fetchval(_WAITERS):
                        await asyncio.sleep(0.005)
                assert not late.done()
                await elsewhere.execute(_COMPLETE, new)
            return await late
        finally:
            await elsewhere.close()
            await observer.close()

    assert flow.harness.run(scenario()).body == {"status": "Completed"}
    assert flow.harness.sql("SELECT FROM buffer_publishes WHERE released_at IS NOT NULL") == [], "it is outdated"
