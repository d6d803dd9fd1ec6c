"""A plain model of routing, written from the contract: which tasks there must be, and what each of them reads.

A generation is a list of what was said about it. An edge is a place in such a list. Everything that deploys do to
edges, and everything that holds them, is a matter of who has seen how much of which list.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tracelake.dispatcher.engine.routing.coverage import NewestRevision
from tracelake.dispatcher.engine.routing.units import combine
from tracelake.model.task import RevisionKind


class Revision(NamedTuple):
    """A text, and whose it is. Manual ones are a person's, and of what follows from it: nobody announced that a unit
    ends there."""

    text: str = ""
    kind: str = "event"

    @property
    def manual(self) -> bool:
        return self.kind == "manual"


FIRST = Revision()
Key = tuple[str, int, str, Revision]
"""node, edge, unit, revision."""
EVERY_INPUT = -1
TABLES = {"feeder:1"}
"""Generations that are kept in tables, besides those of `each`."""


@dataclass(frozen=True)
class Unit:
    """A cursor, a range of blocks, or a named partition."""

    cursor: int | None = None
    span: tuple[int, int] | None = None
    name: str | None = None

    @property
    def key(self) -> str:
        if self.cursor is not None:
            return f"c:{self.cursor}"
        return f"p:{self.name}" if self.span is None else f"p:{self.span[0]}-{self.span[1]}"


@dataclass(frozen=True)
class Said:
    """An event as its readers see it."""

    generation: str
    unit: Unit
    revision: Revision = FIRST
    wrong: tuple[int, int] | None = None
    """The blocks that it declares wrong,"""
    again: Revision = FIRST
    """and the revision that what is made again for it has."""
    number: int = 0
    """Events are numbered as they are routed."""


@dataclass
class Made:
    """A task."""

    unit: Unit
    after: int | None
    status: str = "Queued"
    skipped: bool = False
    asked_to_stop: bool = False
    superseded: str | None = None
    order: tuple[int, int] = (0, 0)
    """How new its input is: since when its edge reads the generation, and which event said its revision."""
    completed: bool = False

    @property
    def holds(self) -> bool:
        return self.status == "Failed" and not self.skipped and self.unit.cursor is not None


@dataclass
class Edge:
    generation: str
    phase: str = "Active"
    routed: int = -1
    seen: int = 0
    live: bool = True
    until: int | None = None
    """Of a build: how much it may see before the cutover."""
    pinned: int = 0
    """The number of the last event when it was told to read another generation."""


@dataclass
class Node:
    name: str
    edges: list[Edge]
    per_partition: bool
    approximate: bool = False
    """A join that was shown old news, or has a unit that changed again: a task that waits is brought up to date, and
    one that runs is waited for. So not every revision has a task of its own; the newest has one."""

    @property
    def joins(self) -> bool:
        return self.per_partition and len(self.edges) > 1

    @property
    def superseded(self) -> bool:
        return bool(self.edges) and all(edge.phase == "Parked" for edge in self.edges)


@dataclass
class RoutingModel:
    nodes: dict[str, Node] = field(default_factory=dict)
    tasks: dict[Key, Made] = field(default_factory=dict)
    log: dict[str, list[Said]] = field(default_factory=dict)
    kept: dict[str, list[Said]] = field(default_factory=dict)
    """Said about a generation that did not count."""
    counting: set[str] = field(default_factory=set)
    """Generations that count, or are being built."""
    units: dict[str, dict[Unit, Revision]] = field(default_factory=dict)
    """By generation: the units that are there, with their newest revision."""
    number: int = 0
    """Of the last event that was routed."""
    heard: set[tuple[str, str, str, str]] = field(default_factory=set)

    # What callers do

    def say(
        self, producer: str, events: Iterable[Said], *, inherited: Revision = FIRST, outdated: bool = False
    ) -> list[bool]:
        """Events of one transaction. Answers which of them were said before.

        What an outdated task says is kept and goes no further: a newer one has spoken for its unit."""
        new: list[Said] = []
        duplicates = []
        known = set(self.heard)
        for event in events:
            name = (producer, event.generation, event.unit.key, event.revision.text)
            duplicates.append(name in known)
            if name in self.heard:
                continue
            self.heard.add(name)
            if outdated:
                continue
            effective = replace(event, revision=_effective(event.revision, inherited))
            if event.generation in self.counting:
                new.append(effective)
            else:
                self.kept.setdefault(event.generation, []).append(effective)
        hearers = self.edges(lambda edge: edge.live)
        new = self._route(new)
        for event in new:
            self.log.setdefault(event.generation, []).append(event)
        before = dict(self.tasks)
        for node, index, edge in hearers:
            self._show(node, index, [event for event in new if event.generation == edge.generation], before)
            edge.seen = len(self.log.get(edge.generation, ()))
        return duplicates

    def is_outdated(self, key: Key) -> bool:
        """A task of the same unit has completed, and was made for newer inputs."""
        mine = self.tasks[key]
        return any(
            task.completed and task.order > mine.order for other, task in self.tasks.items() if other[:3] == key[:3]
        )

    def end(self, key: Key, status: str) -> None:
        """The last word on a task."""
        task = self.tasks[key]
        task.status = status
        task.completed = status == "Completed"
        self.nodes[key[0]].approximate |= self.nodes[key[0]].joins  # what waited for its end is made now
        if task.holds:
            self._hold(key)

    def _hold(self, key: Key) -> None:
        node, index, _, _ = key
        if index != EVERY_INPUT:
            self.nodes[node].edges[index].live = False

    def covers(self, node: str, index: int, unit: Unit) -> bool:
        """Everything is there that a task of the unit would read."""
        made = self.nodes[node]
        edge = made.edges[index]
        units = self.units.get(edge.generation, {})
        if made.joins or unit.name is not None:
            return all(unit in self.units.get(each.generation, {}) for each in (made.edges if made.joins else [edge]))
        if unit.span is not None and edge.generation not in TABLES and not edge.generation.startswith("each."):
            first, last = unit.span
        elif unit.span is not None:
            return True  # a table is live
        else:
            assert unit.cursor is not None
            after = unit.cursor - 1 if made.per_partition else self._before(node, index, unit.cursor)
            first, last = after + 1, unit.cursor
        pending = [] if edge.live else self.log.get(edge.generation, [])[edge.seen :]
        cursors = [event.unit.cursor for event in pending if not event.revision.manual]
        highest = max([edge.routed, *(cursor for cursor in cursors if cursor is not None)])
        blocks = set(range(highest + 1)) | {unit.cursor for unit in units if unit == Unit(cursor=last)}
        for other in units:
            blocks |= set() if other.span is None else set(range(other.span[0], other.span[1] + 1))
        return set(range(first, last + 1)) <= blocks

    def by_hand(self, node: str, index: int, unit: Unit, revision: Revision) -> Key | None:
        """The task that a person asks for, unless a join lacks the unit. It reads what is there now: as new as anything
        that the unit was made for."""
        made = self.nodes[node]
        after = None
        if made.joins:
            revisions = self._revisions(made, index, unit, revision)
            if revisions is None:
                return None
            revision = _combine(revisions, index)
        elif unit.cursor is not None and not made.per_partition:
            after = self._before(node, index, unit.cursor)
        key = (node, EVERY_INPUT if made.per_partition else index, unit.key, revision)
        order = max((task.order for other, task in self.tasks.items() if other[:3] == key[:3]), default=(0, 0))
        self.tasks[key] = Made(unit, _after(made, unit, after), order=order)
        return key

    # What loops do

    def drain(self) -> None:
        for node, index, edge in self.edges(lambda edge: edge.phase != "Parked" and not edge.live):
            if self.failed(node, index):
                continue
            log = self.log.get(edge.generation, [])
            pending = log[edge.seen : edge.until]
            if pending and node.joins:
                node.approximate = True
            self._show(node, index, pending, dict(self.tasks))
            edge.seen = max(edge.seen, len(log) if edge.until is None else edge.until)
            edge.live = edge.until is None

    def failed(self, node: Node, index: int) -> int:
        return sum(task.holds for key, task in self.tasks.items() if key[:2] == (node.name, index))

    def edges(self, chosen: Callable[[Edge], bool] = lambda _: True) -> list[tuple[Node, int, Edge]]:
        return [
            (node, index, edge) for node in self.nodes.values() for index, edge in enumerate(node.edges) if chosen(edge)
        ]

    # The rules

    def _route(self, events: list[Said]) -> list[Said]:
        """They are numbered, and there from now on."""
        routed = []
        for event in events:
            self.number += 1
            routed.append(replace(event, number=self.number))
            known = self.units.setdefault(event.generation, {})
            known[event.unit] = event.revision if event.revision.text else known.get(event.unit, FIRST)
        return routed

    def _show(self, node: Node, index: int, events: list[Said], before: dict[Key, Made]) -> None:
        """Cursors that are shown together are taken from below; what they declare wrong is what was made before."""
        for event in sorted(events, key=lambda event: (event.unit.cursor is not None, event.unit.cursor or 0)):
            again = self._wrong(node, index, event, before)
            if event.unit not in again:
                number = event.number if event.revision.text else 0
                self._ask(node, index, event.unit, event.revision, number)
            for unit in again:
                self._ask(node, index, unit, event.again, event.number, again=True)

    def _wrong(self, node: Node, index: int, event: Said, before: dict[Key, Made]) -> set[Unit]:
        if event.wrong is None:
            return set()
        low, high = event.wrong
        place = (node.name, EVERY_INPUT if node.per_partition else index)
        ranges = {
            unit
            for unit in self.units.get(event.generation, ())
            if unit.span is not None and unit.span[0] <= high and unit.span[1] >= low
        }
        cursors = {
            task.unit
            for key, task in before.items()
            if key[:2] == place and task.after is not None and task.after + 1 <= high
            if task.unit.cursor is not None and task.unit.cursor >= low and not key[3].manual
        }
        return ranges | cursors

    def _ask(self, node: Node, index: int, unit: Unit, revision: Revision, number: int, *, again: bool = False) -> None:
        edge = node.edges[index]
        order = (edge.pinned, number)
        if node.joins:
            revisions = self._revisions(node, index, unit, revision)
            if revisions is not None:
                node.approximate |= unit.span is not None and revision != FIRST and not again
                self._make((node.name, EVERY_INPUT, unit.key, _combine(revisions, index)), node, unit, None, order)
        elif node.per_partition:
            self._make((node.name, EVERY_INPUT, unit.key, revision), node, unit, None, order)
        elif unit.cursor is None:
            self._make((node.name, index, unit.key, revision), node, unit, None, order)
        elif unit.cursor > edge.routed and not again and not revision.manual:
            self._make((node.name, index, unit.key, revision), node, unit, edge.routed, order)
            edge.routed = unit.cursor
        elif revision.text:
            before = self._before(node.name, index, unit.cursor)
            self._make((node.name, index, unit.key, revision), node, unit, before, order)

    def _revisions(self, node: Node, index: int, unit: Unit, revision: Revision) -> list[Revision] | None:
        """Of every input, if all have the unit."""
        found = []
        for number, edge in enumerate(node.edges):
            known = self.units.get(edge.generation, {})
            if unit not in known:
                return None
            found.append(revision if number == index else known[unit])
        return found

    def _before(self, node: str, index: int, cursor: int) -> int:
        """Where a unit below the edge's cursor begins: as before, or at the end of the unit before it."""
        units = {
            task.unit.cursor: task.after
            for key, task in self.tasks.items()
            if key[:2] == (node, index) and task.unit.cursor is not None and not key[3].manual
        }
        after = units.get(cursor)
        return max((end for end in units if end < cursor), default=-1) if after is None else after

    def newest_texts(self, node: Node, unit: Unit) -> set[str]:
        """How a join may spell the newest revisions of a unit; none if an input lacks it."""
        revisions = [self.units.get(edge.generation, {}).get(unit) for edge in node.edges]
        known = [revision for revision in revisions if revision is not None]
        if len(known) < len(revisions):
            return set()
        return {_combine(known, own).text for own in range(len(known))}

    def _make(self, key: Key, node: Node, unit: Unit, after: int | None, order: tuple[int, int]) -> None:
        self.tasks.setdefault(key, Made(unit, _after(node, unit, after), order=order))


def _effective(said: Revision, inherited: Revision) -> Revision:
    """What a re-run says is new, also where it does not say so; what a manual one says is manual."""
    if not said.text:
        return inherited
    return Revision(said.text, "manual") if inherited.manual else said


def _combine(revisions: list[Revision], own: int) -> Revision:
    newest = [NewestRevision(revision.text, RevisionKind(revision.kind)) for revision in revisions]
    return Revision(combine(newest, own), revisions[own].kind)


def _after(node: Node, unit: Unit, after: int | None) -> int | None:
    if unit.cursor is None:
        return None
    return unit.cursor - 1 if node.per_partition else after
