"""The DAGs of the machine in their versions, and what a deploy does to the model of routing."""

from dataclasses import dataclass, field
from typing import Any

import yaml

from tests.routing.model import Edge, Made, Node, RoutingModel

DATASET = "each"
"""The job whose output is published, read by another DAG, and rebuilt by an edit."""


@dataclass(frozen=True)
class Version:
    """What a document says, as far as documents differ here."""

    each: int = 0
    part: bool = True
    slow: int | None = 2
    """How many may run at once; 0: the job is not there."""

    @property
    def text(self) -> str:
        def reads(*sources: Any) -> dict[str, Any]:
            return {"activation": "reactive", "operator": "noop", "inputs": [{"from": source} for source in sources]}

        first, second = {"job": "feeder"}, {"job": "feeder", "output_index": 1}
        jobs: dict[str, Any] = {
            "src": {"activation": "source", "source": {"kind": "manual"}},
            "feeder": reads({"job": "src"}) | {"outputs": 2},
            "each": reads(first) | {"operator": "sleep", "config": {"seconds": self.each}},
            "after": reads({"job": "each"}),
            "join": reads(first, second) | {"execution_strategy": "PerPartition"},
        }
        if self.part:
            jobs["part"] = reads(first) | {"execution_strategy": "PerPartition"}
        if self.slow != 0:
            limit = {} if self.slow is None else {"scaling": {"max_concurrency": self.slow}}
            jobs["slow"] = reads(first) | limit
        document = {
            "name": "d",
            "defaults": {"runtime": "ecs_platform"},
            "jobs": [{"name": name} | job for name, job in jobs.items()],
            "publish": {
                "pub": {"from": {"job": "each"}, "storage": "postgres"},
                "side": {"from": second, "storage": "postgres"},
            },
        }
        return yaml.safe_dump(document, sort_keys=False)

    @property
    def nodes(self) -> dict[str, Node]:
        each, after = f"each.{self.each}", f"after.{self.each}"
        made = [
            Node("feeder", [Edge("src")], False),
            Node(each, [Edge("feeder:0")], False),
            Node(after, [Edge(each)], False),
            Node("join", [Edge("feeder:0"), Edge("feeder:1")], True),
        ]
        made += [Node("part", [Edge("feeder:0")], True)] if self.part else []
        made += [Node("slow", [Edge("feeder:0")], False)] if self.slow != 0 else []
        return {node.name: node for node in made}

    @property
    def generations(self) -> set[str]:
        return {"src", "feeder:0", "feeder:1", "join", "part", "slow", f"each.{self.each}", f"after.{self.each}"}


OTHER = """
name: x
defaults: {runtime: ecs_platform}
jobs:
  - {name: far, activation: reactive, operator: noop, inputs: [{from: {dataset: pub}}]}
  - name: meet
    activation: reactive
    operator: noop
    execution_strategy: PerPartition
    inputs: [{from: {dataset: pub}}, {from: {dataset: side}}]
"""


def generations_of(node: str) -> list[str]:
    """What a node writes."""
    return ["feeder:0", "feeder:1"] if node == "feeder" else [node]


@dataclass
class VersionedModel(RoutingModel):
    active: Version | None = None
    building: Version | None = None
    counted: set[str] = field(default_factory=set)
    """Nodes that have counted."""

    def begin(self, version: Version) -> None:
        """The first deploy of both DAGs."""
        self.nodes = version.nodes
        self.active = version
        self.counted |= set(version.nodes)
        each = f"each.{version.each}"
        self.nodes["far"] = Node("far", [Edge(each)], False)
        self.nodes["meet"] = Node("meet", [Edge(each), Edge("feeder:1")], True)
        self._count()

    def deploy(self, version: Version, *, now: bool = False) -> str:
        """The state that the answer names."""
        assert self.active is not None
        if version == self.active:
            if self.building is not None:
                self._drop(set(self.building.nodes) - set(self.active.nodes))
                self.building = None
                self._count()
            return "Active"
        fresh = set(version.nodes) - set(self.active.nodes) - self.counted
        builds = any(self.log.get(edge.generation) for name in fresh for edge in version.nodes[name].edges)
        if not builds or now:
            self.cut_over(version)
            return "Active"
        if version != self.building:
            self._build(version, fresh)
        return "Building"

    def finish_builds(self) -> None:
        """One round of the loop that ends builds, and takes up what had to stop first."""
        if self.building is not None and not self._unfinished():
            self.cut_over(self.building)
        for task in self.tasks.values():
            if task.superseded == "Returning" and task.status == "Canceled":
                _revive(task)

    def _unfinished(self) -> bool:
        staged = {node.name for node, _, _ in self.edges(lambda edge: edge.phase == "Staged")}
        behind = self.edges(
            lambda edge: edge.phase == "Staged" and bool(self.log.get(edge.generation, [])[edge.seen : edge.until])
        )
        return bool(behind) or any(
            key[0] in staged
            and (task.status in ("Queued", "Running") or (task.status == "Failed" and not task.skipped))
            for key, task in self.tasks.items()
        )

    def _build(self, version: Version, fresh: set[str]) -> None:
        assert self.active is not None
        stays = set(self.active.nodes)
        self._drop(set() if self.building is None else set(self.building.nodes) - stays - set(version.nodes))
        own = {generation for name in fresh for generation in generations_of(name)}
        self.building = version
        self._count()
        for name in fresh:
            node = self.nodes.setdefault(name, Node(name, [_new(edge) for edge in version.nodes[name].edges], False))
            for edge in node.edges:
                edge.phase = "Staged"
                edge.until = None if edge.generation in own else len(self.log.get(edge.generation, ()))
            self._take_up(name)

    def cut_over(self, version: Version) -> None:
        assert self.active is not None
        active = set(self.active.nodes)
        building = set() if self.building is None else set(self.building.nodes)
        self._drop((active | building) - set(version.nodes))
        self.active, self.building = version, None
        self.counted |= set(version.nodes)
        self._count()
        for name in set(version.nodes) - active:
            fresh = version.nodes[name]
            node = self.nodes.setdefault(name, Node(name, [_new(edge) for edge in fresh.edges], fresh.per_partition))
            for edge in node.edges:
                edge.phase, edge.until = "Active", None
            self._take_up(name)
        each = f"each.{version.each}"
        for name in ("far", "meet"):
            edge = self.nodes[name].edges[0]
            if edge.generation != each:
                edge.generation, edge.seen, edge.live = each, 0, False

    def _count(self) -> None:
        """What was said too late, or too early, is heard when its generation counts."""
        versions = [version for version in (self.active, self.building) if version is not None]
        self.counting = {generation for version in versions for generation in version.generations}
        for generation in self.counting & self.kept.keys():
            events = self.kept.pop(generation)
            self._there(events)
            heard = [node.name for node, _, edge in self.edges(lambda edge: edge.live) if edge.generation == generation]
            assert not heard, "nobody listens to a generation that does not count"
            self.log.setdefault(generation, []).extend(events)

    def _drop(self, names: set[str]) -> None:
        for name in names & self.nodes.keys():
            for edge in self.nodes[name].edges:
                edge.phase, edge.live, edge.until = "Parked", False, None
        for key, task in self.tasks.items():
            if key[0] not in names:
                continue
            if task.status == "Queued":
                task.status, task.superseded = "Canceled", "Dropped"
            elif task.status == "Running":
                if task.superseded == "Returning" or not task.asked_to_stop:
                    task.superseded = "Dropped"
                task.asked_to_stop = True

    def _take_up(self, name: str) -> None:
        for key, task in self.tasks.items():
            if key[0] == name and task.superseded == "Dropped":
                if task.status == "Canceled":
                    _revive(task)
                elif task.status == "Running":
                    task.superseded = "Returning"


def _new(edge: Edge) -> Edge:
    return Edge(edge.generation, live=False)


def _revive(task: Made) -> None:
    task.status, task.superseded, task.asked_to_stop = "Queued", None, False
