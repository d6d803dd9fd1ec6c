"""Events make exactly the tasks they must: cursors, partitions, joins, revisions, filters."""

from typing import Any

import pytest

from tests.routing.support import Flow, block
from tests.support import dags
from tracelake.errors import TraceError

FEED = """
name: d
defaults: {runtime: ecs_platform}
jobs:
  - {name: src, activation: source, source: {kind: manual}}
  - {name: feeder, activation: reactive, operator: noop, inputs: [{from: {job: src}}], outputs: 2}
  - {name: each, activation: reactive, operator: noop, inputs: [{from: {job: feeder}}]}
  - {name: after, activation: reactive, operator: noop, inputs: [{from: {job: each}}]}
  - name: part
    activation: reactive
    operator: noop
    execution_strategy: PerPartition
    inputs: [{from: {job: feeder}, where: {chain: [1, 10], kind: "x"}}]
  - name: join
    activation: reactive
    operator: noop
    execution_strategy: PerPartition
    inputs: [{from: {job: feeder}}, {from: {job: feeder, output_index: 1}}]
"""


class Feeder:
    """A running task of `feeder` that may say anything about its two outputs."""

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        flow.deploy(FEED)
        flow.trigger("d", "src", cursor=0)
        self.task = flow.tasks("feeder")[0]["task_id"]
        self.lease = flow.claim(self.task)

    def say(self, *events: dict[str, Any], index: int = 0) -> Any:
        return self.flow.say(self.task, self.lease, *(self.flow.event("d", "feeder", index, **item) for item in events))


@pytest.fixture
def feeder(flow: Flow) -> Feeder:
    return Feeder(flow)


def cursors(flow: Flow, job: str) -> list[tuple[int, int, str]]:
    return sorted(
        (task["unit"]["cursor"]["after"], task["unit"]["cursor"]["to"], task["revision"]) for task in flow.tasks(job)
    )


def test_a_trigger_of_a_source_makes_one_task_at_each_reader(flow: Flow) -> None:
    flow.deploy(FEED)
    reply = flow.trigger("d", "src", cursor=7)
    assert [str(task["task_id"]) for task in flow.tasks("feeder")] == [str(task) for task in reply.tasks]
    task = flow.tasks("feeder")[0]
    assert (task["edge"], task["unit_key"], task["unit"]) == (0, "c:7", {"cursor": {"after": -1, "to": 7}})
    assert flow.harness.sql("SELECT count(*) AS n FROM outbox WHERE key = $1", task["task_id"])[0]["n"] == 1


def test_each_cursor_reads_on_from_the_one_before(flow: Flow, feeder: Feeder) -> None:
    for cursor in (5, 6, 9):
        feeder.say({"cursor": cursor})
    assert cursors(flow, "each") == [(-1, 5, ""), (5, 6, ""), (6, 9, "")]


def test_cursors_of_one_call_are_taken_from_below(flow: Flow, feeder: Feeder) -> None:
    feeder.say({"cursor": 9}, {"cursor": 5}, {"cursor": 7})
    assert cursors(flow, "each") == [(-1, 5, ""), (5, 7, ""), (7, 9, "")]


def test_a_cursor_at_or_below_makes_a_task_only_in_a_new_revision(flow: Flow, feeder: Feeder) -> None:
    feeder.say({"cursor": 5})
    feeder.say({"cursor": 10})
    feeder.say({"cursor": 5})
    feeder.say({"cursor": 8})
    assert cursors(flow, "each") == [(-1, 5, ""), (5, 10, "")]
    for _ in range(2):
        feeder.say({"cursor": 10, "revision": "0xb"})
        feeder.say({"cursor": 8, "revision": "0xb"})
    assert cursors(flow, "each") == [(-1, 5, ""), (5, 8, "0xb"), (5, 10, ""), (5, 10, "0xb")]


def test_a_repeated_event_makes_nothing(flow: Flow, feeder: Feeder) -> None:
    said = feeder.say(block(0, 9), {"cursor": 3})
    assert [answer["duplicate"] for answer in said["events"]] == [False, False]
    before = flow.units("each")
    said = feeder.say(block(0, 9), {"cursor": 3})
    assert [answer["duplicate"] for answer in said["events"]] == [True, True]
    assert flow.units("each") == before == [("c:3", ""), ("p:0-9", "")]


def test_another_producer_with_the_same_unit_makes_nothing(flow: Flow) -> None:
    flow.deploy(FEED)
    flow.trigger("d", "src", range={"start": 0, "end": 9})
    flow.trigger("d", "src", range={"start": 0, "end": 9})
    assert flow.units("feeder") == [("p:0-9", "")]
    assert flow.harness.sql("SELECT count(*) AS n FROM events")[0]["n"] == 2


def test_filters_travel_in_the_payload(flow: Flow, feeder: Feeder) -> None:
    feeder.say(block(0, 9))
    lease = flow.claim(flow.tasks("part")[0]["task_id"])
    (read,) = lease["task"]["inputs"]
    assert read["where"] == {"chain": [1, 10], "kind": "x"}
    assert read["unit"] == block(0, 9)


def test_a_join_waits_until_every_input_has_the_unit(flow: Flow, feeder: Feeder) -> None:
    feeder.say(block(0, 9), block(10, 19))
    assert flow.tasks("join") == []
    feeder.say(block(10, 19), index=1)
    (task,) = flow.tasks("join")
    assert (task["edge"], task["unit_key"], task["revision"]) == (-1, "p:10-19", "")
    assert [item["unit"] for item in task["inputs"]] == [block(10, 19), block(10, 19)]
    feeder.say(block(10, 19) | {"revision": "r2"}, index=1)
    feeder.say(block(10, 19) | {"revision": "r2"}, index=1)
    assert flow.units("join") == [("p:10-19", "|r2")], "a task that nobody has claimed is brought up to date"
    lease = flow.claim(task["task_id"])
    feeder.say(block(10, 19) | {"revision": "r3"})
    feeder.say(block(10, 19) | {"revision": "r4"})
    assert flow.units("join") == [("p:10-19", "|r2")], "and one that runs is waited for"
    flow.complete(task["task_id"], lease)
    assert flow.units("join") == [("p:10-19", "r4|r2"), ("p:10-19", "|r2")]


def test_a_join_takes_a_unit_as_a_whole_and_never_a_part_of_it(flow: Flow, feeder: Feeder) -> None:
    feeder.say(block(0, 9), block(10, 19), block(5, 14))
    feeder.say(block(0, 19), block(0, 4), block(1, 10), index=1)
    assert flow.tasks("join") == []
    feeder.say(block(5, 14), {"cursor": 4}, {"partition_key": "eu"}, index=1)
    feeder.say({"cursor": 4}, {"partition_key": "eu"})
    assert flow.units("join") == [("c:4", ""), ("p:5-14", ""), ("p:eu", "")]


def test_work_flows_on_by_what_tasks_announce(flow: Flow, feeder: Feeder) -> None:
    feeder.say({"cursor": 1}, {"cursor": 2}, block(0, 9))
    flow.run_all("each", "after")
    assert flow.units("after") == [("c:1", ""), ("c:2", ""), ("p:0-9", "")]
    assert {task["status"] for task in flow.tasks("after")} == {"Completed"}


def test_what_a_rerun_announces_is_new_to_the_next(flow: Flow, feeder: Feeder) -> None:
    feeder.say(block(0, 9))
    flow.run_all("each", "after")
    feeder.say(block(0, 9) | {"revision": "0xbeef"})
    flow.run_all("each", "after")
    assert flow.units("after") == [("p:0-9", ""), ("p:0-9", "0xbeef")]


def test_a_reactive_job_can_be_triggered_for_one_unit(flow: Flow, feeder: Feeder) -> None:
    feeder.say({"cursor": 5}, block(0, 9))
    made = flow.trigger("d", "each", cursor=5, idempotency_key="again")
    assert flow.trigger("d", "each", cursor=5, idempotency_key="again").task_id == made.task_id
    assert ("c:5", "again") in flow.units("each")
    with pytest.raises(TraceError, match="trigger_conflict"):
        flow.trigger("d", "each", cursor=6, idempotency_key="again")
    with pytest.raises(TraceError, match="inputs_incomplete"):
        flow.trigger("d", "join", range={"start": 0, "end": 9})
    feeder.say(block(0, 9), index=1)
    flow.trigger("d", "join", range={"start": 0, "end": 9}, idempotency_key="k")
    assert flow.units("join") == [("p:0-9", ""), ("p:0-9", "k|")]
    feeder.say({"cursor": 6})
    assert dags.edge(flow.harness, "d", "each")["routed"] == 6


def test_events_of_files_wait_for_their_commit(flow: Flow) -> None:
    flow.deploy(
        """
name: files
defaults: {runtime: ecs_platform}
jobs:
  - {name: src, activation: source, source: {kind: manual}}
  - {name: write, activation: reactive, operator: decode_logs, inputs: [{from: {job: src}}]}
  - {name: read, activation: reactive, operator: noop, inputs: [{from: {job: write}}]}
publish:
  blocks: {from: {job: write}, storage: s3}
"""
    )
    flow.trigger("files", "src", range={"start": 0, "end": 9})
    for revision in ("1", "2"):
        task = flow.tasks("write", "Queued")[0]["task_id"]
        lease = flow.claim(task)
        flow.say(task, lease, flow.event("files", "write", **block(0, 9)))
        assert ("p:0-9", revision) not in flow.units("read")
        prefix = lease["task"]["outputs"][0]["storage"]["write_prefix"]
        for name in ("blocks_0_9.parquet", "_SUCCESS"):
            flow.harness.run(flow.harness.objects.put(prefix + name, b"x"))
        bucket, _, key = prefix.removeprefix("s3://").partition("/")
        published = flow.event("files", "write", range_start=0, range_end=9) | {
            "storage_ref": {"scheme": "s3", "bucket": bucket, "prefix": key, "glob": "*.parquet"}
        }
        flow.complete(task, lease, datasets_published=[published])
        assert ("p:0-9", revision) in flow.units("read")
        flow.trigger("files", "write", range={"start": 0, "end": 9})
    assert flow.units("read") == [("p:0-9", "1"), ("p:0-9", "2")]


def test_what_is_said_together_reads_on_from_each_other(flow: Flow, feeder: Feeder) -> None:
    feeder.say({"cursor": 6}, {"cursor": 6, "revision": "r"}, {"cursor": 5}, {"cursor": 5, "revision": "r"})
    assert cursors(flow, "each") == [(-1, 5, ""), (-1, 5, "r"), (5, 6, ""), (5, 6, "r")]
    feeder.say({"cursor": 20})
    feeder.say({"cursor": 9, "revision": "r"}, {"cursor": 8, "revision": "r"})
    assert cursors(flow, "each")[-3:] == [(6, 8, "r"), (6, 20, ""), (8, 9, "r")]


def test_a_new_revision_reads_on_from_a_cursor_and_from_nothing_else(flow: Flow, feeder: Feeder) -> None:
    feeder.say({"cursor": 5}, block(0, 9))
    feeder.say({"cursor": 20})
    flow.trigger("d", "each", cursor=10, idempotency_key="k")
    feeder.say({"cursor": 12, "revision": "r"})
    assert [task["unit"] for task in flow.tasks("each") if task["revision"] == "r"] == [
        {"cursor": {"after": 5, "to": 12}}
    ], "neither from the end of a range nor from what a person asked for"


def test_a_join_takes_each_revision_that_is_said_together(flow: Flow, feeder: Feeder) -> None:
    feeder.say(block(0, 9), index=1)
    feeder.say(block(0, 9), block(0, 9) | {"revision": "r1"}, block(0, 9) | {"revision": "r2"})
    assert flow.units("join") == [("p:0-9", "r2|")], "one task, brought up to date"
    feeder.say(block(0, 9) | {"revision": "s"}, index=1)
    assert ("p:0-9", "r2|s") in flow.units("join"), "with the newest of the others"
