"""The machine: random events, workers, people, restarts and deploys, held against the model after every step.

Each step ends with the drain loop having nothing left to do. Then there are exactly the tasks that the model wants,
each reading what it must, every ready one with exactly one wake-up, and no limit with room while somebody waits.
"""

from typing import Any, ClassVar
from uuid import UUID

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.routing.model import FIRST, Key, Made, Node, Revision, Said, Unit
from tests.routing.versions import AnyVersion, Reader, Version, VersionedModel, generations_of
from tests.routing.world import World, wire
from tracelake.errors import TraceError

PICK = st.integers(0, 999)
CURSORS = st.builds(lambda cursor: Unit(cursor=cursor), st.integers(0, 9))
RANGES = st.sampled_from([Unit(span=span) for span in ((0, 4), (5, 9), (10, 14), (0, 9), (3, 7))])
NAMES = st.sampled_from([Unit(name="eu"), Unit(name="us")])
UNITS = st.one_of(CURSORS, CURSORS, RANGES, NAMES)
REVISIONS = st.sampled_from(["", "", "", "r1", "r2", "k1", "t:k1", "i:1"])
"""Texts of users, some of which look like ours."""
WRONG = st.sampled_from([None, None, None, None, (4, 6), (0, 3), (8, 20)])
EVENTS = st.lists(st.tuples(st.sampled_from([0, 0, 1]), UNITS, REVISIONS, WRONG), min_size=1, max_size=4)
VERSIONS: list[AnyVersion] = [
    Version(),
    Version(each=1),
    Version(each=2, part=False),
    Version(each=1, slow=1),
    Version(part=False, slow=3),
    Version(slow=None),
    Version(slow=0),
    Reader(),
    Reader(far=1),
    Reader(far=2),
]


class RoutingMachine(RuleBasedStateMachine):
    world: ClassVar[World]

    def __init__(self) -> None:
        super().__init__()
        self.model = VersionedModel()
        self.names: dict[UUID, str] = {}
        """node_id -> the model's name."""
        self.numbers: dict[AnyVersion, int] = {}
        self.producers: list[UUID] = []
        self.ids: dict[Key, UUID] = {}
        self.ready: list[Key] = []
        self.triggers = 0

    @initialize()
    def begin(self) -> None:
        self.world.begin()
        self.outputs: dict[tuple[UUID, int], tuple[UUID, UUID]] = {}
        for first in (Version(), Reader()):
            assert self.world.deploy(first.text).state == "Active"
            self.model.begin(first)
            self.numbers[first] = 1
        self.look_at_nodes()
        for cursor in (0, 1):
            self.trigger_source(Unit(cursor=cursor))
            self.promises_hold()
        for key in [("feeder", 0, "c:0", FIRST), ("feeder", 0, "c:1", FIRST)]:
            self.world.claim(self.ids[key])
            self.model.tasks[key].status = "Running"
            self.producers.append(self.ids[key])
        self.promises_hold()

    def look_at_nodes(self) -> None:
        """Which rows the model's nodes are, after a deploy."""
        for row in self.world.nodes():
            version = (self.model.active if row["active"] else self.model.building)[row["dag_name"]]
            name = next(name for name in (*version.nodes, "src") if name.partition(".")[0] == row["name"])
            assert self.names.setdefault(row["node_id"], name) == name
        assert len(set(self.names.values())) == len(self.names), "an unchanged job became another node"
        self.outputs = self.world.outputs()

    def node_id(self, name: str) -> UUID:
        return next(node_id for node_id, known in self.names.items() if known == name)

    def generation(self, name: str) -> tuple[UUID, UUID]:
        node, _, index = name.partition(":")
        return self.outputs[self.node_id(node), int(index or 0)]

    # Events

    @rule(producer=st.integers(0, 1), events=EVENTS)
    def emit(self, producer: int, events: list[tuple[int, Unit, str, Any]]) -> None:
        self.say(self.producers[producer], [(f"feeder:{index}", *rest) for index, *rest in events])

    @rule(producer=st.integers(0, 1), cursors=st.lists(st.integers(0, 60), min_size=1, max_size=4))
    def emit_cursors(self, producer: int, cursors: list[int]) -> None:
        self.say(self.producers[producer], [("feeder:0", Unit(cursor=cursor), "", None) for cursor in cursors])

    def say(self, task_id: UUID, events: list[Any], inherited: Revision = FIRST, *, outdated: bool = False) -> None:
        bodies = []
        for generation, unit, revision, wrong in events:
            uuid, version = self.generation(generation)
            body = {"dataset_uuid": str(uuid), "dataset_version": str(version)} | wire(unit)
            body |= {"revision": revision} if revision else {}
            body |= {"invalidates": {"start": wrong[0], "end": wrong[1], "reason": "test"}} if wrong else {}
            bodies.append(body)
        duplicates = self.world.say(task_id, bodies)
        said = []
        for generation, unit, revision, wrong in events:
            again = FIRST
            if wrong is not None:
                place = (str(task_id), self.generation(generation), unit.key, revision)
                again = Revision(self.world.invalidation_id(*place), "invalidation")
            said.append(Said(generation, unit, Revision(revision), wrong, again))
        assert self.model.say(str(task_id), said, inherited=inherited, outdated=outdated) == duplicates

    @rule(unit=st.one_of(CURSORS, RANGES))
    def trigger_source(self, unit: Unit) -> None:
        self.triggers += 1
        key = f"k{self.triggers}"
        reply = self.world.trigger("d", "src", unit, key)
        assert reply.event_id is not None
        self.model.say(f"manual:{key}", [Said("src", unit)])

    @rule(job=st.sampled_from(["each", "join", "far", "part"]), unit=UNITS, index=st.integers(0, 1))
    def trigger_job(self, job: str, unit: Unit, index: int) -> None:
        dag = "x" if job == "far" else "d"
        name = next((name for name in self.model.active[dag].nodes if name.partition(".")[0] == job), None)
        if name is None:
            return
        node = self.model.nodes[name]
        if index >= len(node.edges):
            return
        self.triggers += 1
        key = f"k{self.triggers}"
        if not self.model.covers(name, index, unit):
            with pytest.raises(TraceError, match="inputs_incomplete"):
                self.world.trigger(dag, job, unit, key, input_index=index)
            return
        self.world.trigger(dag, job, unit, key, input_index=index)
        assert self.model.by_hand(name, index, unit, Revision(key, "manual")) is not None

    @rule(producer=st.integers(0, 1), unit=UNITS, times=st.integers(2, 3), pick=PICK)
    def rewrite(self, producer: int, unit: Unit, times: int, pick: int) -> None:
        """Several revisions of one unit are worked on at once, and end in any order."""
        for _ in range(times):
            self.triggers += 1
            self.say(self.producers[producer], [("feeder:0", unit, f"v{self.triggers}", None)])
            self.settle()
        mine = [key for key in self.ready if key[0].startswith("each.") and key[2] == unit.key]
        for key in mine:
            self.start(key)
        self.settle()
        while mine:
            self.finish(mine.pop(pick % len(mine)), "pass")
            self.settle()

    # Workers

    @precondition(lambda self: self.ready)
    @rule(pick=PICK, word=st.sampled_from(["pass", "pass", "pass", "fail", "fail", "cancel", "give up"]))
    def work(self, pick: int, word: str) -> None:
        key = self.ready[pick % len(self.ready)]
        if word == "cancel":
            self.world.person("cancel", self.ids[key])
            self.model.end(key, "Canceled")
            return
        self.start(key)
        self.finish(key, word)

    @precondition(lambda self: self.ready)
    @rule(most=st.integers(2, 12))
    def work_much(self, most: int) -> None:
        for _ in range(most):
            if not self.ready:
                break
            self.start(self.ready[0])
            self.finish(self.ready[0], "pass")
            self.settle()

    @precondition(lambda self: self.ready and len(self.running()) < 5)
    @rule(pick=PICK)
    def begin_to_work(self, pick: int) -> None:
        self.start(self.ready[pick % len(self.ready)])

    @precondition(lambda self: self.running())
    @rule(pick=PICK, unit=UNITS)
    def speak_while_working(self, pick: int, unit: Unit) -> None:
        key = self.running()[pick % len(self.running())]
        events = [(generation, unit, "", None) for generation in generations_of(key[0])]
        self.say(self.ids[key], events, inherited=key[3], outdated=self.model.is_outdated(key))

    @precondition(lambda self: self.running())
    @rule(pick=PICK, word=st.sampled_from(["pass", "pass", "fail", "give up"]))
    def end_work(self, pick: int, word: str) -> None:
        key = self.running()[pick % len(self.running())]
        self.finish(key, "stop" if self.model.tasks[key].asked_to_stop else word)

    def running(self) -> list[Key]:
        return sorted(
            key
            for key, task in self.model.tasks.items()
            if task.status == "Running" and self.ids[key] not in self.producers
        )

    def start(self, key: Key) -> None:
        self.world.claim(self.ids[key])
        self.model.tasks[key].status = "Running"

    def finish(self, key: Key, word: str) -> None:
        task_id, unit = self.ids[key], self.model.tasks[key].unit
        if word == "fail":
            self.world.complete(task_id, status="Failed", error_message="no", retryable=False)
            self.model.end(key, "Failed")
        elif word == "give up":
            self.world.complete(task_id, status="Canceled")  # nobody asked for it
            self.model.end(key, "Failed")
        elif word == "stop":
            self.world.complete(task_id, status="Canceled")
            self.model.end(key, "Canceled")
        else:
            events = []
            for generation in generations_of(key[0]):
                uuid, version = self.generation(generation)
                events.append({"dataset_uuid": str(uuid), "dataset_version": str(version)} | wire(unit))
            outdated = self.model.is_outdated(key)
            self.world.complete(task_id, events=events)
            self.model.end(key, "Completed")
            said = [Said(generation, unit) for generation in generations_of(key[0])]
            self.model.say(str(task_id), said, inherited=key[3], outdated=outdated)

    # People

    @precondition(lambda self: self.failed())
    @rule(pick=PICK, verb=st.sampled_from(["retry", "skip"]))
    def decide_on_a_failure(self, pick: int, verb: str) -> None:
        key = self.failed()[pick % len(self.failed())]
        task = self.model.tasks[key]
        if verb == "retry" and self.model.nodes[key[0]].superseded:
            with pytest.raises(TraceError, match="task_finished"):
                self.world.person(verb, self.ids[key])
            return
        self.world.person(verb, self.ids[key])
        if verb == "retry":
            task.status, task.skipped = "Queued", False
        else:
            task.skipped = True

    def failed(self) -> list[Key]:
        return sorted(key for key, task in self.model.tasks.items() if task.status == "Failed")

    # Deploys, restarts, loops

    @rule(version=st.sampled_from(VERSIONS), now=st.booleans())
    def deploy(self, version: AnyVersion, now: bool) -> None:
        if now and version not in self.numbers:
            self.numbers[version] = self.world.deploy(version.text, activate=False).plan.version
        if now:
            reply = self.world.activate(version.dag, self.numbers[version], now=True)
        else:
            reply = self.world.deploy(version.text)
            self.numbers[version] = reply.plan.version
        assert reply.state == self.model.deploy(version, now=now)
        self.look_at_nodes()

    @rule()
    def end_builds(self) -> None:
        self.world.harness.run(self.world.harness.dispatcher.builds.run_once())
        self.model.finish_builds()

    @precondition(lambda self: self.model.building)
    @rule(most=st.integers(1, 40))
    def work_on_the_build(self, most: int) -> None:
        for _ in range(most):
            mine = [key for key in self.ready if self.model.nodes[key[0]].edges[0].phase == "Staged"]
            if not mine:
                break
            self.start(mine[0])
            self.finish(mine[0], "pass")
            self.settle()
        self.end_builds()

    @rule(each=st.integers(0, 2), far=st.integers(0, 2), most=st.integers(5, 60))
    def rebuild(self, each: int, far: int, most: int) -> None:
        """One of the builds from its beginning to its end, if there is enough time; the other one meanwhile."""
        for version in (Version(each=each), Reader(far=far)):
            self.deploy(version, False)
            self.settle()
        for _ in range(2):
            if self.model.building:
                self.work_on_the_build(most)
                self.settle()

    @precondition(lambda self: any(key[0].startswith("each.") for key in self.ready))
    @rule(pick=PICK, units=st.lists(UNITS, min_size=1, max_size=3), returns=st.booleans())
    def speak_too_late(self, pick: int, units: list[Unit], returns: bool) -> None:
        """A task whose version stops to count says something more; it is heard when the version is active again."""
        mine = [key for key in self.ready if key[0].startswith("each.")]
        key = mine[pick % len(mine)]
        before = self.model.active["d"]
        assert isinstance(before, Version)
        self.start(key)
        self.deploy(Version(each=(before.each + 1) % 3), True)
        self.settle()
        said = [(key[0], unit, "", None) for unit in units]
        self.say(self.ids[key], said, inherited=key[3], outdated=self.model.is_outdated(key))
        self.settle()
        if returns:
            self.deploy(before, False)

    @rule()
    def restart(self) -> None:
        self.world.harness.restart()

    @rule()
    def reconcile(self) -> None:
        assert self.world.reconcile() == 0, "nothing is stranded, so there is nothing to repair"

    # Promises

    @invariant()
    def promises_hold(self) -> None:
        if self.names:
            self.settle()

    def settle(self) -> None:
        self.world.drain()
        self.model.drain()
        rows = self.world.tasks()
        self.tasks_are_what_the_model_says(rows)
        self.edges_are_what_the_model_says()
        self.limits_are_kept(rows)
        ready = [row for row in rows if row["status"] == "Queued" and not row["held"]]
        for row in ready:
            assert row["wakeups"] == 1, "a ready task has exactly one wake-up"
        self.world.take_wakeups()
        self.ready = sorted(self.key(row) for row in ready)

    def key(self, row: Any) -> Key:
        revision = Revision(row["revision"], row["revision_kind"])
        return (self.names[row["node_id"]], row["edge"], row["unit_key"], revision)

    def tasks_are_what_the_model_says(self, rows: list[Any]) -> None:
        found = {self.key(row): row for row in rows}
        self.ids = {key: row["task_id"] for key, row in found.items()}
        self.adopt_joins(found)
        missing, extra = self.model.tasks.keys() - found.keys(), found.keys() - self.model.tasks.keys()
        assert (missing, extra) == (set(), set()), f"missing {sorted(missing)}, too many {sorted(extra)}"
        for key, row in found.items():
            task = self.model.tasks[key]
            unit = msgspec.json.decode(row["unit"])
            if task.unit.cursor is not None:
                assert unit == {"cursor": {"after": task.after, "to": task.unit.cursor}}, key
            else:
                assert unit == wire(task.unit), key
            assert row["status"] == task.status, key
            assert (row["skipped_at"] is not None) == task.skipped, key
            assert row["superseded"] == task.superseded, key
            if self.model.nodes[key[0]].superseded:
                assert row["status"] != "Queued", "a task of a superseded node is ready"

    def adopt_joins(self, found: dict[Key, Any]) -> None:
        """A join that was shown old news made a task for the same units; in which revisions is its own."""
        for name, node in self.model.nodes.items():
            if not node.approximate:
                continue
            wanted = {key: task for key, task in self.model.tasks.items() if key[0] == name}
            real = [key for key in found if key[0] == name]
            # What is made from a unit that somebody upstream still works on waits for its end.
            pending = self.world.pending_units(self.node_id(name))
            assert {key[2] for key in wanted} - pending == {key[2] for key in real} - pending, f"units of {name}"
            units = {key[2]: task for key, task in wanted.items()}
            for key in real:
                low, _, high = key[2].removeprefix("p:").partition("-")
                if key[2] not in units:  # it waited, and was left out meanwhile
                    units[key[2]] = Made(Unit(span=(int(low), int(high))), None)
            settled = {key: task for key, task in units.items() if key not in pending}
            self.newest_are_made(node, settled, [found[key] for key in real])
            for key in wanted.keys() - set(real):
                del self.model.tasks[key]
            for key in set(real) - wanted.keys():
                made = units[key[2]]
                self.model.tasks[key] = type(made)(made.unit, made.after)
            node.approximate = bool(pending)

    def newest_are_made(self, node: Node, units: dict[str, Made], rows: list[Any]) -> None:
        """Each unit of a live join has a task for the newest revision of every input, unless one of it still runs."""
        if not all(edge.live and edge.phase == "Active" for edge in node.edges):
            return
        for unit_key, task in units.items():
            mine = [row for row in rows if row["unit_key"] == unit_key]
            newest = self.model.newest_texts(node, task.unit)
            if newest and mine and not any(row["status"] == "Running" for row in mine):
                assert newest & {row["revision"] for row in mine}, f"{unit_key} of {node.name} lacks {newest}"

    def edges_are_what_the_model_says(self) -> None:
        rows = self.world.edges()
        wanted = self.model.edges()
        assert len(rows) == len(wanted)
        for node, index, edge in wanted:
            row = rows[self.node_id(node.name), index]
            place = (node.name, index)
            assert row["phase"] == edge.phase, place
            assert row["routed"] == edge.routed or node.per_partition, place
            assert row["failed_units"] == self.model.failed(node, index), place
            assert (row["position"] is None) == edge.live, place
            assert (row["dataset_uuid"], row["dataset_version"]) == self.generation(edge.generation), place

    def limits_are_kept(self, rows: list[Any]) -> None:
        limits = self.world.limits()
        used = dict.fromkeys(limits, 0)
        for row in rows:
            if row["status"] == "Running" or (row["status"] == "Queued" and not row["held"]):
                for key in row["limit_keys"] or ():
                    used[key] += 1
        assert used == {key: count for key, (_, count) in limits.items()}
        for row in rows:
            if row["held"]:
                most, count = limits[row["held_by"]]
                assert most is not None, "held by a limit that is none"
                assert count >= most, "held while there is room"
