"""The graph of a DAG as data: its jobs and datasets, what flows between them, and the state of each.

It is made of what the API says of an active version, or of a document that nobody has deployed.
"""

import atexit
import gc
from collections.abc import Iterable
from typing import Literal

import yaml

from tracelake.cli.docs_graph import DocsGraph, GraphNode
from tracelake.cli.text import clean
from tracelake.dag import DagInvalidError, KnownBundle, KnownDataset, Surroundings, read_dag
from tracelake.model.dag import Activation, Dag, OutputAddress, ReadMode
from tracelake.model.runtime import RuntimeRegistry
from tracelake.wire.base import Reply
from tracelake.wire.jobs import EdgeRow, JobRow, JobsReply

NodeKind = Literal["job", "source", "dataset"]
NodeLevel = Literal["", "busy", "warning", "failed"]

# When an interpreter ends that has read a document with mistakes, msgspec 0.22 may use what it knows of a type after it
# was freed, and the process ends with status 139. What is frozen is not freed before the process ends.
atexit.register(gc.freeze)

_EDGE_WORDS = {"held": "held by a failed unit", "stopped": "stopped by a full queue", "paused": "paused"}


class GraphNodeRow(Reply, frozen=True, kw_only=True):
    key: str
    """`job NAME` or `dataset NAME`."""
    name: str
    kind: NodeKind
    operator: str | None = None
    """Of a job: its operator, or the kind of its source."""
    outside: bool = False
    """Of a dataset: another DAG makes it."""
    level: NodeLevel = ""
    """The worst of its states: `failed`, `warning` (behind, retrying, stopped), `busy` (running, queued)."""
    states: list[str] = []
    """In words, the worst first: `1 failed`, `2 running`, `behind by 30 events`."""


class GraphEdgeRow(Reply, frozen=True, kw_only=True):
    start: str
    end: str
    back: bool = False
    """The job reads its own earlier output."""


class DagGraph(Reply, frozen=True, kw_only=True):
    dag: str
    version: int | None = None
    """None: of a document."""
    nodes: list[GraphNodeRow]
    edges: list[GraphEdgeRow]


class _GraphBuilder:
    """Collects nodes and edges, each once."""

    def __init__(self) -> None:
        self.nodes: dict[str, GraphNodeRow] = {}
        self.edges: dict[tuple[str, str], GraphEdgeRow] = {}

    def add(self, kind: NodeKind, name: str, **facts: object) -> str:
        key = f"{'dataset' if kind == 'dataset' else 'job'} {name}"
        if key not in self.nodes:
            self.nodes[key] = GraphNodeRow(key=key, name=name, kind=kind, **facts)  # type: ignore[arg-type]
        return key

    def connect(self, start: str, end: str, *, back: bool = False) -> None:
        self.edges.setdefault((start, end), GraphEdgeRow(start=start, end=end, back=back))

    def build(self, dag: str, version: int | None) -> DagGraph:
        return DagGraph(dag=dag, version=version, nodes=list(self.nodes.values()), edges=list(self.edges.values()))


def graph_of_version(reply: JobsReply, published: Iterable[str]) -> DagGraph:
    """Published datasets are nodes; what a job passes to another under no name is an edge between the two."""
    published_names = set(published)
    builder = _GraphBuilder()
    writers = {output.dataset: job.name for job in reply.jobs for output in job.outputs}
    for job in reply.jobs:
        level, states = _job_state(job)
        kind: NodeKind = "source" if job.activation == "source" else "job"
        builder.add(kind, job.name, operator=job.source or job.operator, level=level, states=states)
    for job in reply.jobs:
        key = f"job {job.name}"
        for output in job.outputs:
            if output.dataset in published_names:
                refused = [f"{output.dead_letters:,} refused"] if output.dead_letters else []
                dataset = builder.add("dataset", output.dataset, states=refused, level="failed" if refused else "")
                builder.connect(key, dataset)
    for job in reply.jobs:
        key = f"job {job.name}"
        for edge in job.inputs:
            own = writers.get(edge.dataset) == job.name
            if edge.dataset in published_names or edge.dataset not in writers:
                dataset = builder.add("dataset", edge.dataset, outside=edge.dataset not in writers)
                builder.connect(dataset, key, back=own)
            else:
                builder.connect(f"job {writers[edge.dataset]}", key, back=own)
    return builder.build(reply.dag, reply.version)


def _job_state(job: JobRow) -> tuple[NodeLevel, list[str]]:
    failed = [f"{job.failed:,} failed"] if job.failed else []
    failed += [_EDGE_WORDS["held"]] if not failed and _any_edge(job.inputs, "held") else []
    warnings = [f"{job.retrying:,} retrying"] if job.retrying else []
    warnings += [_EDGE_WORDS[state] for state in ("stopped", "paused") if _any_edge(job.inputs, state)]
    backlog = sum(edge.backlog for edge in job.inputs)
    if backlog:
        warnings.append(f"behind by {backlog:,} event{'' if backlog == 1 else 's'}")
    elif _any_edge(job.inputs, "draining"):
        warnings.append("behind")
    busy = [f"{job.running:,} running"] if job.running else []
    busy += [f"{job.queued + job.held:,} queued"] if job.queued or job.held else []
    level: NodeLevel = "failed" if failed else "warning" if warnings else "busy" if busy else ""
    return level, [*failed, *warnings, *busy]


def _any_edge(edges: Iterable[EdgeRow], state: str) -> bool:
    return any(edge.state == state for edge in edges)


def graph_of_document(text: bytes, runtimes: RuntimeRegistry) -> DagGraph:
    """The graph of a DAG document. Raises DagInvalidError.

    What the document names of elsewhere, datasets of other DAGs and uploaded functions, is taken to exist.
    """
    try:
        return _graph_of_dag(read_dag(text, Surroundings(runtimes=runtimes, datasets={}, bundles={})))
    except DagInvalidError as error:
        missing = [problem.message for problem in error.problems if problem.code in ("unknown_dataset", "udf_bundle")]
        if not missing:
            raise
    datasets, bundles = ({name for name in names if any(name in message for message in missing)}
                         for names in _named_elsewhere(text))  # fmt: skip
    surroundings = Surroundings(
        runtimes=runtimes,
        datasets=dict.fromkeys(datasets, KnownDataset(owner_dag=None, schema=None, storage="s3")),
        # Of a Rust bundle nothing else has to be known.
        bundles=dict.fromkeys(bundles, KnownBundle(language="rust")),
    )
    return _graph_of_dag(read_dag(text, surroundings))


def _named_elsewhere(text: bytes) -> tuple[set[str], set[str]]:
    """Every text that a field `dataset`, and every one that a field `bundle_id` of the document has."""
    datasets: set[str] = set()
    bundles: set[str] = set()
    waiting: list[object] = [yaml.safe_load(text)]  # the reader has parsed it before
    visited: set[int] = set()
    while waiting:
        value = waiting.pop()
        if id(value) in visited:
            continue
        visited.add(id(value))
        if isinstance(value, list):
            waiting += value
        elif isinstance(value, dict):
            waiting += value.values()
            for field, names in (("dataset", datasets), ("bundle_id", bundles)):
                if isinstance(value.get(field), str):
                    names.add(value[field])
    return datasets, bundles


def _graph_of_dag(dag: Dag) -> DagGraph:
    builder = _GraphBuilder()
    names = {address: entry.name for entry in dag.publish for address in entry.sources}
    for job in dag.jobs:
        kind: NodeKind = "source" if job.activation is Activation.SOURCE else "job"
        operator = job.operator if job.source is None else job.source.kind.value
        builder.add(kind, job.name, operator=operator)
    for job in dag.jobs:
        for index in range(job.outputs):
            name = names.get(OutputAddress(job=job.name, output_index=index))
            if name is not None:
                builder.connect(f"job {job.name}", builder.add("dataset", name))
    for job in dag.jobs:
        key = f"job {job.name}"
        for item in job.inputs:
            back = item.read is ReadMode.PREVIOUS
            if item.output is None:
                assert item.dataset is not None
                builder.connect(builder.add("dataset", item.dataset, outside=True), key)
            elif item.output in names:
                builder.connect(builder.add("dataset", names[item.output]), key, back=back)
            else:
                builder.connect(f"job {item.output.job}", key, back=back)
    return builder.build(dag.name, None)


def to_drawing(graph: DagGraph) -> DocsGraph:
    drawing = DocsGraph()
    for row in graph.nodes:
        about = [f"{clean(row.operator)} source"] if row.kind == "source" and row.operator else []
        about += ["other DAG"] if row.outside else []
        drawing.add(GraphNode(row.key, row.name, row.kind, notes=(*row.states, *about), level=row.level))
    for edge in graph.edges:
        drawing.connect(edge.start, edge.end, back=edge.back)
    return drawing
