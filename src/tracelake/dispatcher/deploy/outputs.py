"""Which dataset and which generation each output of a document is.

An output keeps the generation that its node has. A buffered or live dataset has one for good, whoever writes to it: its
table follows its schema. Everything else gets a new one.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias
from uuid import UUID

import msgspec

from tracelake.catalogue import CATALOGUE
from tracelake.dag import kept_as
from tracelake.dispatcher.deploy.hashes import Address, publications, schema_hash, storage_of
from tracelake.model.dag import Dag, JobDocument, OnChange, Problem, Publish, ReadMode, UnitGrid, unlocated

Generation: TypeAlias = tuple[UUID, UUID]
"""dataset_uuid and dataset_version."""

NAME_LENGTH = 128


@dataclass(frozen=True, slots=True)
class StoredDataset:
    dataset_uuid: UUID
    name: str
    dag: str | None
    """Its owner; None for one that no DAG made."""
    storage: str
    published: bool
    current_version: UUID
    writers: frozenset[str] = frozenset()
    """Other DAGs that may write it."""
    units: UnitGrid | None = None
    """The grid that the units of its current generation are on, if a job chose one."""
    on_change: OnChange = "rebuild"
    """Of a buffered dataset: what becomes of rows of a job that changes."""


@dataclass(frozen=True, slots=True)
class KnownNode:
    node_id: UUID
    counted: bool
    """A version that has it was the active one at some time."""
    outputs: Mapping[int, Generation]


@dataclass(frozen=True, slots=True)
class PlannedOutput:
    output_index: int
    name: str
    storage: str
    published: bool
    dataset_uuid: UUID | None
    """None: the dataset is new."""
    generation: Generation | None
    """None: the generation is new."""
    shared: bool
    """A buffered or live dataset: the generation belongs to no node."""
    schema: str | None
    schema_hash: str | None
    units: str | None = None
    """The grid that its units are on, as JSON; None: its job follows its inputs, and none of them is on one."""


def automatic_name(dag: str, job: str, output_index: int) -> str:
    """Names the dataset of an output that is not published."""
    return _fitting(f"{dag}__{job}_{output_index}")


def _fitting(name: str) -> str:
    if len(name) <= NAME_LENGTH:
        return name
    mark = hashlib.sha256(name.encode()).hexdigest()[:16]
    return f"{name[: NAME_LENGTH - 17]}_{mark}"


def plan_outputs(
    dag: Dag,
    data_hashes: Mapping[str, str],
    nodes: Mapping[tuple[str, str], KnownNode],
    datasets: Mapping[str, StoredDataset],
) -> tuple[dict[Address, PlannedOutput], list[Problem]]:
    published = publications(dag)
    by_uuid = {row.dataset_uuid: row for row in datasets.values()}
    names = {publish.name for publish in dag.publish}
    planned: dict[Address, PlannedOutput] = {}
    problems: list[Problem] = []
    grids = _grids(dag, datasets)
    for job in dag.jobs:
        node = nodes.get((job.name, data_hashes[job.name]))
        for index in range(job.outputs):
            publish = published.get((job.name, index))
            bound = node.outputs.get(index) if node else None
            if job.only_emits and bound is not None:
                row = by_uuid[bound[0]]
                name = publish.name if publish else row.name
                if name != row.name:
                    problems += _rename_objections(row, name, datasets, automatic_name(dag.name, job.name, index))
            elif publish is not None:
                name = publish.name
                problems += _objections(dag.name, publish, storage_of(dag, publish), datasets.get(name))
            elif bound is not None:
                name = by_uuid[bound[0]].name
            else:
                name = _free_name(dag.name, job, index, datasets, names)
            names.add(name)
            if any(planned[job.name, other].name == name for other in range(index)):
                problems.append(_problem("duplicate_publish", name, f"it is two outputs of the job `{job.name}`"))
            output = _output(dag, index, name, job, publish, bound, datasets.get(name))
            planned[job.name, index] = replace(output, units=_encoded(grids[job.name]))
    return planned, problems


def _grids(dag: Dag, datasets: Mapping[str, StoredDataset]) -> dict[str, UnitGrid | None]:
    """The grid of each job's units. Jobs come in an order in which none is before one that it reads."""
    grids: dict[str, UnitGrid | None] = {}
    for job in dag.jobs:
        grid = job.units
        for item in job.inputs if grid is None else ():
            if item.read is ReadMode.UNIT:
                row = None if item.dataset is None else datasets.get(item.dataset)
                grid = grids[item.output.job] if item.output is not None else None if row is None else row.units
                break
        grids[job.name] = grid
    return grids


def _encoded(grid: UnitGrid | None) -> str | None:
    return None if grid is None else msgspec.json.encode(grid).decode()


def _unpublished_storage(job: JobDocument) -> str:
    return "none" if job.operator is None else CATALOGUE[job.operator].output_storage


def _output(
    dag: Dag,
    index: int,
    name: str,
    job: JobDocument,
    publish: Publish | None,
    bound: Generation | None,
    row: StoredDataset | None,
) -> PlannedOutput:
    schema = publish.schema if publish else None
    storage = _unpublished_storage(job) if publish is None else storage_of(dag, publish)
    shared = publish is not None and publish.is_shared
    generation = bound
    if generation is None and shared and row is not None:
        generation = (row.dataset_uuid, row.current_version)
    return PlannedOutput(
        output_index=index,
        name=name,
        storage=storage,
        published=publish is not None,
        dataset_uuid=generation[0] if generation else row.dataset_uuid if row else None,
        generation=generation,
        shared=shared,
        schema=None if schema is None else msgspec.json.encode(schema, order="deterministic").decode(),
        schema_hash=schema_hash(schema),
    )


def _objections(dag: str, publish: Publish, storage: str, row: StoredDataset | None) -> list[Problem]:
    if row is None:
        return []
    if publish.owner is not None and row.dag == publish.owner and dag in row.writers:
        return []
    if row.dag != dag:
        owner = f"the DAG `{row.dag}`" if row.dag else "jobs that no DAG made"
        granted = "" if publish.owner is None else f", which does not list `{dag}` in its `writers`"
        return [_problem("dataset_owned", publish.name, f"it belongs to {owner}{granted}")]
    if row.storage != storage:
        return [_problem("dataset_storage", publish.name, f"it has {kept_as(row.storage)}; take another name")]
    return []


def _rename_objections(
    row: StoredDataset, name: str, datasets: Mapping[str, StoredDataset], plain: str
) -> list[Problem]:
    """What a source emitted stays with its dataset, so the dataset takes the name: once, since others may read it."""
    if row.published or not row.name.startswith(plain):
        return [_problem("duplicate_publish", name, f"the events of its source are the dataset `{row.name}`")]
    if name in datasets:
        return [_problem("dataset_name_taken", name, "there is another dataset of that name")]
    return []


def _problem(code: str, dataset: str, why: str) -> Problem:
    return unlocated(code, f"The dataset `{dataset}` cannot be published: {why}.", f"publish.{dataset}")


def _free_name(dag: str, job: JobDocument, index: int, datasets: Mapping[str, StoredDataset], names: set[str]) -> str:
    """The automatic name, or a variant of it where a dataset of another kind has it already."""
    plain = automatic_name(dag, job.name, index)
    storage = _unpublished_storage(job)
    mark = hashlib.sha256(f"{dag}/{job.name}/{index}".encode()).hexdigest()[:8]
    for name in (plain, _fitting(f"{plain}_{storage}"), _fitting(f"{plain}_{storage}_{mark}")):
        row = datasets.get(name)
        fits = row is None or (row.dag == dag and row.storage == storage and not row.published)
        if fits and name not in names:
            return name
    return _fitting(f"trace_{mark}_{plain}")
