"""Reading what a plan depends on: the versions of a DAG, its nodes, and the datasets of its org.

Under the org's exclusive routing lock all of it is one state; for a dry run a snapshot is enough.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from uuid import UUID

import msgspec

from tracelake.dag import KnownDataset
from tracelake.db.transaction import Connection
from tracelake.dispatcher.config import DispatcherConfig
from tracelake.dispatcher.deploy.buffered import BufferedTable
from tracelake.dispatcher.deploy.circles import ancestors
from tracelake.dispatcher.deploy.definition import define
from tracelake.dispatcher.deploy.hashes import Address, data_hashes
from tracelake.dispatcher.deploy.outputs import Generation, KnownNode, StoredDataset
from tracelake.dispatcher.deploy.plan import ActiveVersion, JobHashes, Registry
from tracelake.dispatcher.deploy.readers import load_readers
from tracelake.dispatcher.deploy.rebuilds import count_units
from tracelake.dispatcher.records import columns
from tracelake.dispatcher.removed_names import check_not_removed
from tracelake.dispatcher.slices import compute_beside
from tracelake.errors import TraceError
from tracelake.model.columns import DatasetColumns
from tracelake.model.dag import Dag, Schema, UnitGrid

LOCK = "SELECT pg_advisory_xact_lock(routing_lock_key($1))"

_DATASETS = """
    SELECT d.dataset_uuid, d.name, d.dag_name AS dag, d.storage, d.published, d.current_version, d.writers, v.schema,
           d.removed_at,
           v.columns, v.units, coalesce(t.on_change, 'rebuild') AS on_change
    FROM datasets d JOIN dataset_versions v ON v.dataset_uuid = d.dataset_uuid AND v.dataset_version = d.current_version
    LEFT JOIN buffered_tables t ON t.dataset_uuid = d.dataset_uuid
    WHERE d.org_id = $1"""

# What other DAGs read, and what they make of it.
_MADE_FROM = """
    SELECT DISTINCT made.name, read.name
    FROM edges e JOIN nodes n USING (node_id) JOIN datasets read USING (dataset_uuid)
    JOIN job_outputs o ON o.job_id = e.job_id JOIN datasets made ON made.dataset_uuid = o.dataset_uuid
    WHERE e.org_id = $1 AND e.phase <> 'Parked' AND n.dag_name <> $2"""

_DAG = "SELECT active_version, building_version FROM dags WHERE org_id = $1 AND dag_name = $2"

_VERSION = "SELECT dag_version_id, number, document FROM dag_versions WHERE "

_VERSION_JOBS = """
    SELECT j.name, n.data_hash, j.definition_hash
    FROM dag_version_jobs v JOIN jobs j USING (job_id) JOIN nodes n USING (node_id)
    WHERE v.dag_version_id = $1"""

_VERSION_OUTPUTS = """
    SELECT j.name AS job, o.output_index, d.name, o.dataset_uuid, o.dataset_version
    FROM dag_version_jobs v JOIN jobs j USING (job_id) JOIN job_outputs o USING (job_id)
    JOIN datasets d USING (dataset_uuid)
    WHERE v.dag_version_id = $1 ORDER BY j.name, o.output_index"""

_NODES = """
    SELECT n.node_id, n.job_name, n.data_hash, EXISTS (
        SELECT FROM jobs j JOIN dag_version_jobs v USING (job_id) JOIN activations a USING (dag_version_id)
        WHERE j.node_id = n.node_id AND a.cutover_at IS NOT NULL) AS counted
    FROM unnest($3::text[], $4::text[]) AS u(job_name, data_hash)
    JOIN nodes n ON n.org_id = $1 AND n.dag_name = $2 AND n.job_name = u.job_name AND n.data_hash = u.data_hash"""

_NODE_OUTPUTS = """
    SELECT DISTINCT j.node_id, o.output_index, o.dataset_uuid, o.dataset_version
    FROM jobs j JOIN job_outputs o USING (job_id) WHERE j.node_id = ANY($1)"""

_TABLES = """
    SELECT t.dataset_uuid, t.schema, t.on_conflict, t.version_column, t.on_change
    FROM buffered_tables t JOIN datasets d USING (dataset_uuid)
    WHERE d.org_id = $1 AND d.dag_name = $2
    UNION ALL SELECT t.dataset_uuid, t.schema, 'update', NULL, 'rebuild'
    FROM direct_tables t JOIN datasets d USING (dataset_uuid)
    WHERE d.org_id = $1 AND d.dag_name = $2"""

# The first event, and not just any: the order is what leads to the index, also where most events are of one generation.
_GENERATIONS = """
    SELECT g.dataset_uuid, g.dataset_version,
           EXISTS (SELECT FROM dataset_pointers p
                   WHERE p.dataset_uuid = g.dataset_uuid AND p.dataset_version = g.dataset_version) AS counted,
           (SELECT e.routed_seq FROM events e WHERE e.dataset_uuid = g.dataset_uuid
                   AND e.dataset_version = g.dataset_version AND e.routed_seq IS NOT NULL
            ORDER BY e.routed_seq LIMIT 1) IS NOT NULL AS with_events
    FROM unnest($1::uuid[], $2::uuid[]) AS g(dataset_uuid, dataset_version)"""

_SUBSCRIBERS = """
    SELECT DISTINCT e.dataset_uuid, n.dag_name || '/' || n.job_name AS job
    FROM edges e JOIN nodes n USING (node_id)
    WHERE e.phase <> 'Parked' AND e.org_id = $1 AND n.dag_name <> $2 AND e.dataset_uuid = ANY($3) ORDER BY 2"""

# Jobs of other DAGs that write into what this DAG owns.
_FOREIGN_WRITERS = """
    SELECT DISTINCT d.name AS dataset, a.dag_name, a.dag_name || '/' || j.name AS job
    FROM datasets d JOIN job_outputs o USING (dataset_uuid) JOIN jobs j USING (job_id)
    JOIN dags a ON a.org_id = j.org_id AND a.dag_name = j.dag_name
    JOIN dag_version_jobs v ON v.dag_version_id = a.active_version AND v.job_id = j.job_id
    WHERE d.org_id = $1 AND d.dag_name = $2 AND d.storage = 'buffered' AND a.dag_name <> $2 ORDER BY 1, 3"""

_EXISTS = "SELECT EXISTS (SELECT FROM dag_versions WHERE org_id = $1 AND dag_name = $2)"

_PREVIOUS = """
    SELECT dag_version_id FROM activations
    WHERE org_id = $1 AND dag_name = $2 AND state = 'Superseded' AND dag_version_id IS DISTINCT FROM $3
    ORDER BY activation_id DESC LIMIT 1"""


@dataclass(frozen=True, slots=True)
class Datasets:
    """The datasets of an org: all of them for the plan, those that a document may name for reading it."""

    rows: Mapping[str, StoredDataset]
    known: Mapping[str, KnownDataset]


@dataclass(frozen=True, slots=True)
class Version:
    dag_version_id: UUID
    number: int
    document: Dag


@dataclass(frozen=True, slots=True)
class DagPointers:
    active: UUID | None
    building: UUID | None


async def load_datasets(connection: Connection, org_id: UUID | None, dag: str) -> Datasets:
    before = _before([tuple(row) for row in await connection.fetch(_MADE_FROM, org_id, dag)])
    rows: dict[str, StoredDataset] = {}
    datasets_by_name: dict[str, KnownDataset] = {}
    for row in await connection.fetch(_DATASETS, org_id):
        name = row["name"]
        grid = msgspec.json.decode(row["units"] or "null", type=UnitGrid | None)
        stored = rows[name] = msgspec.convert({**row, "units": grid}, StoredDataset)
        if stored.dag is not None and not stored.published:
            continue  # named after its job, and of no concern to others
        schema = None if row["schema"] is None else msgspec.json.decode(row["schema"], type=Schema)
        made_from = before.get(name, frozenset())
        recorded = None if row["columns"] is None else msgspec.json.decode(row["columns"], type=DatasetColumns)
        datasets_by_name[name] = KnownDataset(
            stored.dag,
            schema,
            stored.storage,
            stored.writers,
            made_from,
            recorded,
            grid,
            is_removed=row["removed_at"] is not None,
        )
    return Datasets(rows, datasets_by_name)


def _before(made_from: Collection[tuple[str, str]]) -> dict[str, frozenset[str]]:
    """Returns everything upstream of each dataset that a job of another DAG makes."""
    direct: dict[str, set[str]] = {}
    for output, read in made_from:
        direct.setdefault(output, set()).add(read)
    return {name: frozenset(ancestors(name, direct)) for name in direct}


async def load_pointers(connection: Connection, org_id: UUID | None, dag: str) -> DagPointers:
    """Raises `dag_removed` for a DAG that was removed: nothing is deployed or activated under its name."""
    await check_not_removed(connection, org_id, dag)
    row = await connection.fetchrow(_DAG, org_id, dag)
    return DagPointers(None, None) if row is None else DagPointers(row["active_version"], row["building_version"])


async def version_by_hash(connection: Connection, org_id: UUID | None, dag: str, document_hash: str) -> Version | None:
    return await _version(
        connection, "org_id = $1 AND dag_name = $2 AND document_hash = $3", org_id, dag, document_hash
    )


async def version_by_id(connection: Connection, dag_version_id: UUID) -> Version:
    version = await _version(connection, "dag_version_id = $1", dag_version_id)
    assert version is not None
    return version


async def find_version(connection: Connection, org_id: UUID | None, dag: str, reference: int | str) -> Version:
    """Finds a version by its number, or as `previous`: the one that was active before the active one."""
    if not await connection.fetchval(_EXISTS, org_id, dag):
        raise TraceError("dag_not_found")
    if isinstance(reference, int):
        version = await _version(connection, "org_id = $1 AND dag_name = $2 AND number = $3", org_id, dag, reference)
    else:
        pointers = await load_pointers(connection, org_id, dag)
        version_id = await connection.fetchval(_PREVIOUS, org_id, dag, pointers.active)
        version = None if version_id is None else await version_by_id(connection, version_id)
    if version is None:
        raise TraceError("dag_version_not_found")
    return version


async def next_number(connection: Connection, org_id: UUID | None, dag: str) -> int:
    number: int = await connection.fetchval(
        "SELECT coalesce(max(number), 0) + 1 FROM dag_versions WHERE org_id = $1 AND dag_name = $2", org_id, dag
    )
    return number


async def load_registry(
    connection: Connection,
    org_id: UUID | None,
    version: Version,
    *,
    new_version: bool,
    datasets: Datasets,
    pointers: DagPointers,
    config: DispatcherConfig,
) -> Registry:
    document = version.document
    if new_version:
        hashes = await compute_beside(org_id, _hash, version, datasets, config)
    else:
        # What was registered stands, also when this release would fill in other defaults.
        hashes = await _version_hashes(connection, version.dag_version_id)
    active = None if pointers.active is None else await _active(connection, pointers.active)
    nodes = await _nodes(connection, org_id, document.name, hashes)
    tables = {
        row["dataset_uuid"]: BufferedTable(
            msgspec.json.decode(row["schema"], type=Schema),
            row["on_conflict"],
            row["version_column"],
            row["on_change"],
        )
        for row in await connection.fetch(_TABLES, org_id, document.name)
    }
    own = [row.dataset_uuid for row in datasets.rows.values() if row.dag == document.name]
    subscribers: dict[UUID, list[str]] = {}
    for row in await connection.fetch(_SUBSCRIBERS, org_id, document.name, own):
        subscribers.setdefault(row["dataset_uuid"], []).append(row["job"])
    foreign_writers: dict[str, list[tuple[str, str]]] = {}
    if tables:
        for row in await connection.fetch(_FOREIGN_WRITERS, org_id, document.name):
            foreign_writers.setdefault(row["dataset"], []).append((row["dag_name"], row["job"]))
    generations = {generation for node in nodes.values() for generation in node.outputs.values()}
    generations |= {
        (row.dataset_uuid, row.current_version) for row in datasets.rows.values() if row.dataset_uuid in tables
    }
    generations |= _external(document, datasets.rows)
    current, with_events = await _histories(connection, generations)
    if active is not None:
        generations |= {generation for _, generation in active.outputs.values()}
    is_same = active is not None and active.number == version.number
    readers = [] if is_same else await load_readers(connection, org_id, document.name, list(subscribers))
    generations |= {generation for reader in readers for generation in reader.inputs}
    generations |= {reader.generation for reader in readers if reader.generation is not None}
    units = {} if is_same else await count_units(connection, generations)
    return Registry(
        number=version.number,
        new_version=new_version,
        hashes=hashes,
        active=active,
        nodes=nodes,
        datasets=datasets.rows,
        tables=tables,
        counted=current,
        with_events=with_events,
        subscribers=subscribers,
        foreign_writers=foreign_writers,
        units=units,
        readers=readers,
    )


def _external(document: Dag, rows: Mapping[str, StoredDataset]) -> set[Generation]:
    names = {item.dataset for job in document.jobs for item in job.inputs if item.dataset is not None}
    return {(rows[name].dataset_uuid, rows[name].current_version) for name in names}


def _hash(version: Version, datasets: Datasets, config: DispatcherConfig) -> dict[str, JobHashes]:
    uuids = {name: row.dataset_uuid for name, row in datasets.rows.items()}
    data = data_hashes(version.document, uuids, version.dag_version_id)
    return {
        job.name: JobHashes(data[job.name], define(job, data[job.name], config).definition_hash)
        for job in version.document.jobs
    }


async def _version(connection: Connection, condition: str, *arguments: object) -> Version | None:
    row = await connection.fetchrow(_VERSION + condition, *arguments)
    if row is None:
        return None
    return Version(row["dag_version_id"], row["number"], msgspec.json.decode(row["document"], type=Dag))


async def _version_hashes(connection: Connection, dag_version_id: UUID) -> dict[str, JobHashes]:
    rows = await connection.fetch(_VERSION_JOBS, dag_version_id)
    return {row["name"]: JobHashes(row["data_hash"], row["definition_hash"]) for row in rows}


async def _active(connection: Connection, dag_version_id: UUID) -> ActiveVersion:
    version = await version_by_id(connection, dag_version_id)
    outputs: dict[Address, tuple[str, Generation]] = {
        (row["job"], row["output_index"]): (row["name"], (row["dataset_uuid"], row["dataset_version"]))
        for row in await connection.fetch(_VERSION_OUTPUTS, dag_version_id)
    }
    hashes = await _version_hashes(connection, dag_version_id)
    return ActiveVersion(version.number, version.document, hashes, outputs)


async def _nodes(
    connection: Connection, org_id: UUID | None, dag: str, hashes: Mapping[str, JobHashes]
) -> dict[tuple[str, str], KnownNode]:
    names, data = list(hashes), [item.data for item in hashes.values()]
    rows = await connection.fetch(_NODES, org_id, dag, names, data)
    outputs: dict[UUID, dict[int, Generation]] = {}
    for row in await connection.fetch(_NODE_OUTPUTS, [row["node_id"] for row in rows]):
        outputs.setdefault(row["node_id"], {})[row["output_index"]] = (row["dataset_uuid"], row["dataset_version"])
    return {
        (row["job_name"], row["data_hash"]): KnownNode(row["node_id"], row["counted"], outputs.get(row["node_id"], {}))
        for row in rows
    }


async def _histories(
    connection: Connection, generations: Collection[Generation]
) -> tuple[frozenset[Generation], frozenset[Generation]]:
    rows = await connection.fetch(_GENERATIONS, *columns(generations, 2))
    current = frozenset((row["dataset_uuid"], row["dataset_version"]) for row in rows if row["counted"])
    with_events = frozenset((row["dataset_uuid"], row["dataset_version"]) for row in rows if row["with_events"])
    return current, with_events
