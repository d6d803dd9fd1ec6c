"""What a deploy changes, decided without a database: `--plan` shows it, and `apply` and `cutover` do it.

The document is compared with the active version. A job whose data_hash is the same goes on as it is; any other
starts a node of its own, with generations of its own, unless an earlier version had the very same one: then that one
comes back as it was left.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, TypeAlias
from uuid import UUID

from tracelake.dispatcher.deploy.buffered import BufferedTable, TableChanges, plan_tables
from tracelake.dispatcher.deploy.differences import changed_fields, changed_texts, changed_values
from tracelake.dispatcher.deploy.direct_rows import describe_direct_rows, find_continued_jobs, find_other_chains
from tracelake.dispatcher.deploy.hashes import DATA_FIELDS, Address, publications, written
from tracelake.dispatcher.deploy.outputs import Generation, KnownNode, PlannedOutput, StoredDataset, plan_outputs
from tracelake.dispatcher.deploy.readers import ReaderJob, estimate_readers
from tracelake.dispatcher.deploy.rebuilds import UnitEstimate, UnitExtent
from tracelake.dispatcher.deploy.table_rows import describe_rows
from tracelake.dispatcher.deploy.unmatched_units import describe_unmatched_units
from tracelake.errors import TraceError
from tracelake.model.dag import Dag, Input, JobDocument, Problem
from tracelake.wire.dags import DatasetChange, JobChange, JobRebuild, Plan


class Standing(StrEnum):
    """What activating the version means for a job's node."""

    STAYS = "stays"
    """The active version has it too."""
    RESTORED = "restored"
    """An earlier version that counted had it: its generations are there, and its edges go on where they stopped."""
    FRESH = "fresh"
    """It has to be built from what its inputs have."""


@dataclass(frozen=True, slots=True)
class JobHashes:
    data: str
    definition: str


@dataclass(frozen=True, slots=True)
class ActiveVersion:
    number: int
    document: Dag
    hashes: Mapping[str, JobHashes]
    outputs: Mapping[Address, tuple[str, Generation]]
    """Name and generation of the dataset that each output is."""


@dataclass(frozen=True, slots=True)
class Registry:
    """Everything outside of the document that a plan depends on."""

    number: int
    new_version: bool
    hashes: Mapping[str, JobHashes]
    """Of the document's jobs."""
    active: ActiveVersion | None
    nodes: Mapping[tuple[str, str], KnownNode]
    """By job name and data_hash: those that the document's jobs may already have."""
    datasets: Mapping[str, StoredDataset]
    """Every dataset of the org, by name."""
    tables: Mapping[UUID, BufferedTable]
    """Tables of buffered datasets as they are now, by dataset_uuid."""
    counted: frozenset[Generation]
    """Generations that a pointer has named before."""
    with_events: frozenset[Generation]
    """Generations that have history to build from."""
    subscribers: Mapping[UUID, Sequence[str]]
    """Jobs of other DAGs, as `dag/job`, by the dataset they read."""
    foreign_writers: Mapping[str, Sequence[tuple[str, str]]] = field(default_factory=dict)
    """By name of an own dataset: active jobs of other DAGs that write it, each with its DAG and as `dag/job`."""
    units: Mapping[Generation, UnitExtent] = field(default_factory=dict)
    """The units of generations that a job may make anew, or that such a job reads."""
    readers: Sequence[ReaderJob] = ()
    """Jobs of other DAGs that read datasets of this one, or what is made from them."""


@dataclass(frozen=True, slots=True)
class PlannedJob:
    document: JobDocument
    hashes: JobHashes
    standing: Standing
    node_id: UUID | None
    outputs: tuple[PlannedOutput, ...]


@dataclass(frozen=True, slots=True)
class DeployPlan:
    jobs: tuple[PlannedJob, ...]
    tables: TableChanges
    wire: Plan


Changes: TypeAlias = dict[str, JobChange]
_Change: TypeAlias = Literal["added", "rebuilt", "removed", "unchanged", "restored"]


def make_plan(document: Dag, registry: Registry) -> DeployPlan:
    """Raises TraceError `dag_invalid` when the org does not let the document have a dataset."""
    outputs, problems = plan_outputs(document, _data(registry.hashes), registry.nodes, registry.datasets)
    tables = plan_tables(document, registry.datasets, registry.tables, new_version=registry.new_version)
    problems += tables.problems
    if registry.active is not None:
        problems += find_other_chains(document, registry.active.document, _names(registry.active))
    if problems:
        raise dag_invalid(problems)
    jobs = tuple(
        PlannedJob(
            document=job,
            hashes=registry.hashes[job.name],
            standing=_standing(job, registry),
            node_id=node.node_id if (node := _node(job, registry)) else None,
            outputs=tuple(outputs[job.name, index] for index in range(job.outputs)),
        )
        for job in document.jobs
    )
    changes = _job_changes(document, registry)
    active = registry.active
    row_changes = {} if active is None else _row_changes(document, jobs, changes, active, registry)
    datasets = [tables.shown(change, row_changes) for change in _dataset_changes(document, jobs, changes, registry)]
    moved = {
        registry.datasets[change.dataset].dataset_uuid
        for change in datasets
        if change.change not in ("unchanged", "added") and change.dataset in registry.datasets
    }
    rebuilds = _rebuilds(document, jobs, changes, registry)
    replaced = {
        registry.datasets[change.dataset].dataset_uuid
        for change in datasets
        if change.change in ("rebuilt", "restored") and change.dataset in registry.datasets
    }
    readers = estimate_readers(registry.readers, replaced, registry.units)
    return DeployPlan(
        jobs,
        tables,
        Plan(
            dag=document.name,
            version=registry.number,
            new_version=registry.new_version,
            active_version=None if active is None else active.number,
            jobs=list(changes.values()),
            datasets=datasets,
            subscribers=sorted({name for key in moved for name in registry.subscribers.get(key, ())}),
            needs_build=_needs_build(jobs, outputs, registry),
            changes=active is None or active.number != registry.number,
            rebuilds=rebuilds,
            rebuild_tasks=sum(item.units for item in rebuilds),
            readers=readers,
            reader_tasks=sum(item.units for item in readers if not item.stale),
            notes=[
                *_revoked(document, registry),
                *_changed_checks(changes),
                *describe_unmatched_units(document, registry.datasets, registry.units),
            ],
        ),
    )


def _row_changes(
    document: Dag, jobs: Sequence[PlannedJob], changes: Changes, active: ActiveVersion, registry: Registry
) -> dict[str, list[str]]:
    changed = {name for name, change in changes.items() if change.change == "changed"}
    buffered = describe_rows(
        document,
        active.document,
        active.outputs,
        changed=changed,
        restored={job.document.name for job in jobs if job.standing is Standing.RESTORED},
        datasets=registry.datasets,
    )
    edited = {name for name in changed if changes[name].fields != ["upstream"]}
    return buffered | describe_direct_rows(document, _names(active), edited)


def _names(active: ActiveVersion) -> dict[Address, str]:
    return {address: name for address, (name, _) in active.outputs.items()}


def _rebuilds(document: Dag, jobs: Sequence[PlannedJob], changes: Changes, registry: Registry) -> list[JobRebuild]:
    generations = {
        (job.document.name, output.output_index): output.generation
        for job in jobs
        for output in job.outputs
        if output.generation is not None
    }
    fresh = frozenset(job.document.name for job in jobs if job.standing is Standing.FRESH)
    if registry.active is not None:
        generations |= {address: generation for address, (_, generation) in registry.active.outputs.items()}
        fresh -= find_continued_jobs(document, _names(registry.active))
    return UnitEstimate(
        document,
        fresh,
        frozenset(name for name, change in changes.items() if change.change == "added"),
        generations,
        {name: (row.dataset_uuid, row.current_version) for name, row in registry.datasets.items()},
        registry.units,
    ).rebuilds()


def _revoked(document: Dag, registry: Registry) -> list[str]:
    """Describes the writers that lose their grant."""
    granted = {publish.name: publish.writers for publish in document.publish if publish.owner is None}
    return [
        f"{dataset}: {job} may not write it any more, and its batches are refused."
        for dataset, jobs in registry.foreign_writers.items()
        for dag, job in jobs
        if dag not in granted.get(dataset, ())
    ]


def _changed_checks(changes: Changes) -> list[str]:
    """Says what becomes of jobs whose checks change and whose rows do not."""
    jobs = [name for name, change in changes.items() if change.change == "limits" and "checks" in change.fields]
    if not jobs:
        return []
    return [
        f"Checks of {', '.join(jobs)} change: they apply from the next computation on, and nothing is rebuilt. "
        "`trace trigger` checks a unit that exists by computing it again."
    ]


def dag_invalid(problems: Sequence[Problem]) -> TraceError:
    return TraceError("dag_invalid", problems=list(problems))


def _node(job: JobDocument, registry: Registry) -> KnownNode | None:
    return registry.nodes.get((job.name, registry.hashes[job.name].data))


def _data(hashes: Mapping[str, JobHashes]) -> dict[str, str]:
    return {name: item.data for name, item in hashes.items()}


def _standing(job: JobDocument, registry: Registry) -> Standing:
    before = registry.active.hashes.get(job.name) if registry.active else None
    if before is not None and before.data == registry.hashes[job.name].data:
        return Standing.STAYS
    node = _node(job, registry)
    return Standing.RESTORED if node is not None and node.counted else Standing.FRESH


def _needs_build(jobs: Sequence[PlannedJob], outputs: Mapping[Address, PlannedOutput], registry: Registry) -> bool:
    """Whether a fresh job has history to read. Without an active version there is nothing to keep up meanwhile."""
    if registry.active is None:
        return False
    reads = (item for job in jobs if job.standing is Standing.FRESH for item in job.document.inputs)
    return any(_generation(item, outputs, registry) in registry.with_events for item in reads)


def _generation(item: Input, outputs: Mapping[Address, PlannedOutput], registry: Registry) -> Generation | None:
    """Returns the generation that the input reads, if it exists."""
    if item.output is not None:
        return outputs[item.output.job, item.output.output_index].generation
    assert item.dataset is not None
    row = registry.datasets[item.dataset]
    return row.dataset_uuid, row.current_version


# --- jobs


def _job_changes(document: Dag, registry: Registry) -> Changes:
    active = registry.active
    before = {job.name: job for job in active.document.jobs} if active else {}
    changes: Changes = {}
    for job in document.jobs:
        was = before.pop(job.name, None)
        if was is None or active is None:
            changes[job.name] = JobChange(job=job.name, change="added")
            continue
        old, new = active.hashes[job.name], registry.hashes[job.name]
        if old == new:
            changes[job.name] = JobChange(job=job.name, change="unchanged")
        elif old.data == new.data:
            changes[job.name] = JobChange(
                job=job.name,
                change="limits",
                fields=changed_fields(was, job) or ["defaults"],
                values=changed_values(was, job),
            )
        else:
            changes[job.name] = JobChange(
                job=job.name,
                change="changed",
                fields=_changed_fields(was, job, active.document, document),
                values=changed_values(was, job),
                texts=changed_texts(was, job),
            )
    for name in before:
        changes[name] = JobChange(job=name, change="removed")
    return changes


def _changed_fields(was: JobDocument, job: JobDocument, old: Dag, new: Dag) -> list[str]:
    fields = changed_fields(was, job)
    if _published(old, job.name) != _published(new, job.name):
        fields.append("publish")
    if not any(field in DATA_FIELDS or field == "publish" for field in fields):
        if job.reset_outputs:
            fields = [*fields, *(["reset_outputs"] if "reset_outputs" not in fields else [])]
        else:
            fields.append("upstream")
    return fields


def _published(dag: Dag, job: str) -> dict[int, object]:
    return {index: written(publish) for (name, index), publish in publications(dag).items() if name == job}


# --- datasets


def _dataset_changes(
    document: Dag, jobs: Sequence[PlannedJob], changes: Changes, registry: Registry
) -> list[DatasetChange]:
    before = dict(registry.active.outputs) if registry.active else {}
    generations = {generation: name for name, generation in before.values()}
    uuids = {dataset_uuid for dataset_uuid, _ in generations}
    documents = {job.name: job for job in document.jobs}
    owners = {publish.name: publish.owner for publish in document.publish if publish.owner is not None}
    by_dataset: dict[str, DatasetChange] = {}
    kept_uuids: set[UUID] = set()
    for job in jobs:
        for output in job.outputs:
            if output.dataset_uuid is not None:
                kept_uuids.add(output.dataset_uuid)
            if output.name in by_dataset:  # another writer of a buffered dataset
                continue
            change: _Change
            because = _cause(job.document.name, documents, changes)
            if output.name in owners:
                change, because = "unchanged", f"it belongs to the DAG {owners[output.name]}"
            elif output.generation is not None and output.generation in generations:
                was = generations[output.generation]
                change, because = "unchanged", "" if was == output.name else f"it was called {was}"
            elif job.standing is Standing.RESTORED or output.generation in registry.counted:
                change, because = "restored", "an earlier version's data is current again"
            elif output.dataset_uuid in uuids:
                change = "rebuilt"
            else:
                change = "added"
            by_dataset[output.name] = DatasetChange(
                dataset=output.name,
                change=change,
                job=job.document.name,
                output_index=output.output_index,
                because=because,
            )
    for (job_name, index), (name, (dataset_uuid, _)) in before.items():
        if dataset_uuid not in kept_uuids and name not in by_dataset:
            owner = registry.datasets[name].dag if name in registry.datasets else document.name
            because = "nothing writes it any more" if owner == document.name else "this DAG writes it no more"
            by_dataset[name] = DatasetChange(
                dataset=name, change="removed", job=job_name, output_index=index, because=because
            )
    return list(by_dataset.values())


def _cause(name: str, documents: Mapping[str, JobDocument], changes: Changes) -> str:
    """Names the edits because of which a job's data changes: of the job itself, or of jobs upstream."""
    roots: dict[str, JobChange] = {}
    visited: set[str] = set()
    waiting = [name]
    while waiting:
        current = waiting.pop()
        if current in visited:
            continue
        visited.add(current)
        change = changes[current]
        if change.change == "added" or (change.change == "changed" and change.fields[-1:] != ["upstream"]):
            roots[current] = change
        elif change.change == "changed":
            waiting += [item.output.job for item in documents[current].inputs if item.output is not None]
    return "; ".join(
        f"{job} is new" if change.change == "added" else f"{job} changed: {', '.join(change.fields)}"
        for job, change in sorted(roots.items())
    )
