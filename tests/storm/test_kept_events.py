"""A hundred thousand events for a DAG that is stopped: all are kept, and each becomes its task once, in order.

The Dispatcher is a real process that is killed in the middle of the drain. Its peak of memory is printed, not judged:
what is judged is that it does not grow with what is kept.
"""

import pytest

from tests.http.support import user_token
from tests.routing.support import Flow
from tests.storm.support import Storm, hold_run

EVENTS = 100_000
A_CALL = 1_000

# head -> each, and beside it other -> free, which nothing can stop.
FEED = """
name: d
defaults: {runtime: ecs_platform}
jobs:
  - {name: head, activation: source, source: {kind: always_on}, operator: ticker, config: {seconds: 10}}
  - {name: each, activation: reactive, operator: noop, inputs: [{from: {job: head}}]}
  - {name: other, activation: source, source: {kind: manual}}
  - {name: free, activation: reactive, operator: noop, inputs: [{from: {job: other}}]}
"""
LIMITED = FEED.replace("inputs: [{from: {job: head}}]", "inputs: [{from: {job: head}}], max_queue_depth: 2000")

_COUNT = "SELECT count(*) AS number FROM tasks t JOIN nodes n USING (node_id) WHERE n.job_name = 'each'"

# Units that do not begin where the one before them ended, or that were made before it.
_OUT_OF_ORDER = """
    SELECT count(*) AS number FROM (
        SELECT t.unit_start, t.unit_end, lag(t.unit_end) OVER (ORDER BY t.unit_end) AS before, t.created_at,
               lag(t.created_at) OVER (ORDER BY t.unit_end) AS made_before
        FROM tasks t JOIN nodes n USING (node_id) WHERE n.job_name = 'each') u
    WHERE u.unit_start <> coalesce(u.before, -1) + 1 OR u.unit_end <> u.unit_start
       OR u.created_at < u.made_before - interval '250 ms'"""
"""The tasks of a page are made by a few statements of one transaction, each at its own time."""

_KEPT = """
    SELECT count(*) AS number FROM events v JOIN edges e USING (dataset_uuid, dataset_version)
    JOIN nodes n ON n.node_id = e.node_id
    WHERE n.job_name = 'each' AND e.position IS NOT NULL AND v.routed_seq > e.position"""

# Of one moment: the drain goes on meanwhile.
_BOTH = f"SELECT ({_COUNT}) + ({_KEPT}) AS number"


class Feed:
    """The org under the storm, and another one on the same Dispatcher."""

    def __init__(self, storm: Storm, text: str) -> None:
        self.storm, self.flow = storm, Flow(storm.harness)
        self.neighbour = Flow(storm.harness, "neighbour")
        self.flow.deploy(text)
        self.neighbour.deploy(FEED)
        self.task_id, self.lease = hold_run(self.flow)
        storm.others |= {str(self.task_id), str(hold_run(self.neighbour)[0])}
        self.generation = self.flow.event("d", "head")
        self.aside = 0

    def accept(self, first: int, number: int) -> None:
        for start in range(first, first + number, A_CALL):
            cursors = range(start, min(start + A_CALL, first + number))
            self.storm.say(self.task_id, self.lease, [self.generation | {"cursor": cursor} for cursor in cursors])

    def number(self, statement: str) -> int:
        found: int = self.storm.harness.sql(statement)[0]["number"]
        return found

    def others_go_on(self) -> None:
        """An event of another branch, or of another org, has its task at once."""
        self.aside += 1
        for flow in (self.flow, self.neighbour):
            flow.trigger("d", "other", cursor=self.aside)
            tasks = flow.tasks("free")
            assert len(tasks) == self.aside
            self.storm.others |= {str(task["task_id"]) for task in tasks}

    def resume(self) -> None:
        token = user_token(self.storm.harness, org=self.flow.org)
        assert self.storm.user("/dags/d/jobs/head/resume", token)["paused"] is False

    def depth(self) -> tuple[int, int]:
        row = self.storm.harness.sql("SELECT depth, level FROM pressure")[0]
        return row["depth"], row["level"]


def report(capsys: pytest.CaptureFixture[str], what: str, storm: Storm, before_kb: int) -> None:
    peak, before = storm.measure() / 1024, before_kb / 1024
    with capsys.disabled():
        print(f"\n{what}: peak of the Dispatcher {peak:.0f} MB, {before:.0f} MB after the first call")


def check_paused(storm: Storm, capsys: pytest.CaptureFixture[str], events: int, completed: int) -> None:
    feed = Feed(storm, FEED)
    harness = storm.harness
    harness.run(harness.dispatcher.pauses.pause(feed.flow.actor, "d", "head"))
    feed.accept(0, A_CALL)
    first = storm.measure()
    feed.accept(A_CALL, events // 2 - A_CALL)
    feed.others_go_on()
    storm.kill()
    feed.accept(events // 2, events - events // 2)
    assert (feed.number(_COUNT), feed.number(_KEPT)) == (0, events), "all are kept, and none is a task"
    feed.resume()
    done = storm.receive(events // 10, complete=completed // 2)
    feed.others_go_on()
    storm.kill()
    done += storm.receive(events // 2, complete=completed - done)
    feed.others_go_on()
    storm.receive(events)
    assert feed.number(_COUNT) == events
    assert feed.number(_OUT_OF_ORDER) == 0
    assert feed.number(_KEPT) == 0
    assert statuses(storm)["Completed"] == done == completed
    report(capsys, f"{events} events kept by a pause", storm, first)


def check_full(storm: Storm, capsys: pytest.CaptureFixture[str], events: int, completed: int) -> None:
    feed = Feed(storm, LIMITED)
    most = 2_000
    feed.accept(0, A_CALL)
    first = storm.measure()
    feed.accept(A_CALL, events - A_CALL)
    assert feed.depth() == (most, 2)
    assert (feed.number(_COUNT), feed.number(_KEPT)) == (most, events - most), "the others wait before it"
    feed.others_go_on()
    done = 0
    while done < completed:
        done += storm.receive(0, complete=min(500, completed - done))
        assert feed.depth()[0] <= most
        if done in (1_000, 5_000):
            storm.kill()
            feed.others_go_on()
    assert feed.number(_BOTH) == events, "nothing is lost, and nothing is there twice"
    assert feed.number(_OUT_OF_ORDER) == 0
    assert statuses(storm)["Completed"] == done
    if completed == events:
        assert (feed.number(_COUNT), feed.number(_KEPT), feed.depth()) == (events, 0, (0, 0))
    report(capsys, f"{events} events before a full queue", storm, first)


def statuses(storm: Storm) -> dict[str, int]:
    rows = storm.harness.sql(
        "SELECT t.status, count(*) AS number FROM tasks t JOIN nodes n USING (node_id) "
        "WHERE n.job_name = 'each' GROUP BY t.status"
    )
    return {row["status"]: row["number"] for row in rows}


def test_events_for_a_paused_source(storm: Storm, capsys: pytest.CaptureFixture[str]) -> None:
    check_paused(storm, capsys, EVENTS, 5_000)


def test_events_for_a_full_queue(storm: Storm, capsys: pytest.CaptureFixture[str]) -> None:
    check_full(storm, capsys, EVENTS, 10_000)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_a_paused_source_to_the_last_task(storm: Storm, capsys: pytest.CaptureFixture[str]) -> None:
    check_paused(storm, capsys, EVENTS, EVENTS)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_a_full_queue_to_the_last_task(storm: Storm, capsys: pytest.CaptureFixture[str]) -> None:
    check_full(storm, capsys, EVENTS, EVENTS)
