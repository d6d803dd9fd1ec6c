"""The DAGs of the machine in their versions, and what a deploy does to the model of routing."""

from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

import yaml

from tests.routing.model import Edge, Made, Node, RoutingModel

PUB = "pub"
"""What `each` writes, as others name it: whichever generation counts."""


@dataclass(frozen=True)
class Version:
    """What a document says, as far as documents differ here."""

    dag: ClassVar[str] = "d"
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


@dataclass(frozen=True)
class Reader:
    """Another DAG, which reads what the first one publishes."""

    dag: ClassVar[str] = "x"
    far: int = 0

    @property
    def text(self) -> str:
        return f"""
name: x
defaults: {{runtime: ecs_platform}}
jobs:
  - name: far
    activation: reactive
    operator: sleep
    config: {{seconds: {self.far}}}
    inputs: [{{from: {{dataset: pub}}}}]
  - name: meet
    activation: reactive
    operator: noop
    execution_strategy: PerPartition
    inputs: [{{from: {{dataset: pub}}}}, {{from: {{dataset: side}}}}]
"""

    @property
    def nodes(self) -> dict[str, Node]:
        far = f"far.{self.far}"
        return {far: Node(far, [Edge(PUB)], False), "meet": Node("meet", [Edge(PUB), Edge("feeder:1")], True)}

    @property
    def generations(self) -> set[str]:
        return {f"far.{self.far}", "meet"}


AnyVersion: TypeAlias = Version | Reader


def generations_of(node: str) -> list[str]:
    """What a node writes."""
    return ["feeder:0", "feeder:1"] if node == "feeder" else [node]


@dataclass
class VersionedModel(RoutingModel):
    active: dict[str, AnyVersion] = field(default_factory=dict)
    building: dict[str, AnyVersion] = field(default_factory=dict)
    """In the order in which the builds began."""
    counted: set[str] = field(default_factory=set)
    """Nodes that have counted."""

    def begin(self, version: AnyVersion) -> None:
        """The first deploy of a DAG."""
        self.active[version.dag] = version
        self._count()
        for name, node in version.nodes.items():
            self.nodes[name] = Node(name, [Edge(self.generation(edge)) for edge in node.edges], node.per_partition)
            self.counted.add(name)

    def generation(self, edge: Edge) -> str:
        """What an edge of a document reads now."""
        if edge.generation != PUB:
            return edge.generation
        first = self.active["d"]
        assert isinstance(first, Version)
        return f"each.{first.each}"

    def deploy(self, version: AnyVersion, *, now: bool = False) -> str:
        """The state that the answer names."""
        active, building = self.active[version.dag], self.building.get(version.dag)
        if version == active:
            if building is not None:
                self._drop(set(building.nodes) - set(active.nodes))
                del self.building[version.dag]
                self._count()
            return "Active"
        fresh = set(version.nodes) - set(active.nodes) - self.counted
        builds = any(self.log.get(self.generation(edge)) for name in fresh for edge in version.nodes[name].edges)
        if not builds or now:
            self.cut_over(version)
            return "Active"
        if version != building:
            self._build(version, fresh)
        return "Building"

    def finish_builds(self) -> None:
        """One round of the loop that ends builds, and takes up what had to stop first."""
        ready = [version for version in self.building.values() if not self._unfinished(version)]
        for version in ready:
            if not self._unfinished(version):
                self.cut_over(version)
        for task in self.tasks.values():
            if task.superseded == "Returning" and task.status == "Canceled":
                _revive(task)

    def _unfinished(self, version: AnyVersion) -> bool:
        staged = self.edges(lambda edge: edge.phase == "Staged")
        mine = [(node, edge) for node, _, edge in staged if node.name in version.nodes]
        if any(self.log.get(edge.generation, [])[edge.seen : edge.until] for _, edge in mine):
            return True
        names = {node.name for node, _ in mine}
        return any(
            key[0] in names and (task.status in ("Queued", "Running") or (task.status == "Failed" and not task.skipped))
            for key, task in self.tasks.items()
        )

    def _build(self, version: AnyVersion, fresh: set[str]) -> None:
        old = self.building.pop(version.dag, None)
        stays = set(self.active[version.dag].nodes)
        self._drop(set() if old is None else set(old.nodes) - stays - set(version.nodes))
        own = {generation for name in fresh for generation in generations_of(name)}
        self.building[version.dag] = version
        self._count()
        for name in fresh:
            for edge in self._arrive(version, name):
                edge.phase = "Staged"
                edge.until = None if edge.generation in own else len(self.log.get(edge.generation, ()))

    def cut_over(self, version: AnyVersion) -> None:
        active = set(self.active[version.dag].nodes)
        old = self.building.pop(version.dag, None)
        building = set() if old is None else set(old.nodes)
        self._drop((active | building) - set(version.nodes))
        self.active[version.dag] = version
        self.counted |= set(version.nodes)
        self._count()
        for name in set(version.nodes) - active:
            for edge in self._arrive(version, name):
                edge.phase, edge.until = "Active", None
        if isinstance(version, Version):
            self._follow(f"each.{version.each}")

    def _follow(self, each: str) -> None:
        """Readers of other DAGs see all of the current generation now."""
        for node, _, edge in self.edges(lambda edge: edge.phase != "Parked"):
            other = node.name == "meet" or node.name.startswith("far.")
            if other and edge.generation.startswith("each.") and edge.generation != each:
                edge.generation, edge.seen, edge.live, edge.pinned = each, 0, False, self.number
                edge.until = len(self.log.get(each, ())) if edge.phase == "Staged" else None

    def _arrive(self, version: AnyVersion, name: str) -> list[Edge]:
        """The node's edges, from where they stopped; from the beginning if they read something else now."""
        fresh = version.nodes[name]
        edges = [Edge(self.generation(edge), live=False) for edge in fresh.edges]
        node = self.nodes.setdefault(name, Node(name, edges, fresh.per_partition))
        for edge, new in zip(node.edges, edges, strict=True):
            if edge.generation != new.generation:
                edge.generation, edge.seen, edge.pinned = new.generation, 0, self.number
        for key, task in self.tasks.items():
            if key[0] == name and task.superseded == "Dropped":
                if task.status == "Canceled":
                    _revive(task)
                elif task.status == "Running":
                    task.superseded = "Returning"
        return node.edges

    def _count(self) -> None:
        """What was said too late, or too early, is heard when its generation counts."""
        versions = [*self.active.values(), *self.building.values()]
        self.counting = {generation for version in versions for generation in version.generations}
        for generation in self.counting & self.kept.keys():
            events = self.kept.pop(generation)
            events = self._route(events)
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
            if task.superseded == "Returning" or (task.status == "Running" and not task.asked_to_stop):
                task.superseded = "Dropped"
            if task.status == "Queued":
                task.status, task.superseded = "Canceled", "Dropped"
            elif task.status == "Running":
                task.asked_to_stop = True


def _revive(task: Made) -> None:
    task.status, task.superseded, task.asked_to_stop = "Queued", None, False
