"""Writing a version's definitions: the version, its nodes, datasets, generations and jobs; a statement for each table.

Nothing here makes anything count; rows that are there stay as they are. The caller holds the org's exclusive routing
lock, so what the plan found missing is still missing, with one exception: jobs registered without a DAG take no lock,
and may make a dataset of the same name at the same time.
"""

from collections.abc import Sequence
from dataclasses import astuple, dataclass, field
from typing import Any
from uuid import UUID

from tracelake.dag import canonical, canonical_hash
from tracelake.db.transaction import Connection
from tracelake.dispatcher.config import DispatcherConfig
from tracelake.dispatcher.deploy.definition import define
from tracelake.dispatcher.deploy.outputs import Generation, PlannedOutput
from tracelake.dispatcher.deploy.plan import DeployPlan, PlannedJob, dag_invalid
from tracelake.dispatcher.deploy.registry import Version
from tracelake.dispatcher.records import columns
from tracelake.dispatcher.slices import compute_beside, pause_between
from tracelake.model.dag import unlocated
from tracelake.model.ids import new_id

_INSERT_VERSION = """
    INSERT INTO dag_versions (dag_version_id, org_id, dag_name, number, document_hash, document, source, created_by)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8)"""

_INSERT_DAG = "INSERT INTO dags (org_id, dag_name) VALUES ($1, $2) ON CONFLICT DO NOTHING"

_INSERT_NODES = """
    INSERT INTO nodes (org_id, dag_name, node_id, job_name, data_hash)
    SELECT $1, $2, * FROM unnest($3::uuid[], $4::text[], $5::text[])"""

_INSERT_DATASETS = """
    INSERT INTO datasets (org_id, dag_name, dataset_uuid, name, storage, current_version, published)
    SELECT $1, $2, * FROM unnest($3::uuid[], $4::text[], $5::text[], $6::uuid[], $7::bool[])
    ON CONFLICT DO NOTHING RETURNING name"""

_INSERT_GENERATIONS = """
    INSERT INTO dataset_versions (dataset_uuid, dataset_version, node_id, schema, schema_hash, units)
    SELECT dataset_uuid, dataset_version, node_id, schema::json, schema_hash, units::json
    FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::text[], $5::text[], $6::text[])
        AS u(dataset_uuid, dataset_version, node_id, schema, schema_hash, units)"""

_FIND_JOBS = """
    SELECT j.name, j.job_id FROM unnest($3::text[], $4::text[]) AS u(name, definition_hash)
    JOIN jobs j ON j.org_id = $1 AND j.dag_name = $2 AND j.name = u.name AND j.definition_hash = u.definition_hash"""

_INSERT_JOBS = """
    INSERT INTO jobs (org_id, dag_name, job_id, name, node_id, runtime, operator, config, config_hash, lease_seconds,
                      timeout_seconds, max_attempts, strategy, priority, max_concurrency, document, definition_hash)
    SELECT $1, $2, job_id, name, node_id, runtime, operator, config::json, config_hash, lease_seconds,
           timeout_seconds, max_attempts, strategy, priority, max_concurrency, document::json, definition_hash
    FROM unnest($3::uuid[], $4::text[], $5::uuid[], $6::text[], $7::text[], $8::text[], $9::text[], $10::int[],
                $11::int[], $12::int[], $13::text[], $14::text[], $15::int[], $16::text[], $17::text[])
        AS u(job_id, name, node_id, runtime, operator, config, config_hash, lease_seconds,
             timeout_seconds, max_attempts, strategy, priority, max_concurrency, document, definition_hash)"""

_INSERT_OUTPUTS = """
    INSERT INTO job_outputs (job_id, output_index, dataset_uuid, dataset_version)
    SELECT * FROM unnest($1::uuid[], $2::int[], $3::uuid[], $4::uuid[])"""

_INSERT_VERSION_JOBS = """
    INSERT INTO dag_version_jobs (dag_version_id, job_name, job_id) SELECT $1, * FROM unnest($2::text[], $3::uuid[])"""


async def register(
    connection: Connection,
    org_id: UUID,
    version: Version,
    plan: DeployPlan,
    *,
    source: str,
    created_by: str,
    config: DispatcherConfig,
) -> None:
    """Registers a new version, with everything that it needs and that no other version brought along."""
    dag = version.document.name
    names = [job.document.name for job in plan.jobs]
    definitions = [job.hashes.definition for job in plan.jobs]
    existing_jobs = await connection.fetch(_FIND_JOBS, org_id, dag, names, definitions)
    rows = _Rows(config, {row["name"]: row["job_id"] for row in existing_jobs})
    for number, job in enumerate(plan.jobs):
        rows.add(job)
        await pause_between(number)
    document = await compute_beside(org_id, canonical, version.document)
    await connection.execute(_INSERT_DAG, org_id, dag)
    await connection.execute(
        _INSERT_VERSION,
        version.dag_version_id,
        org_id,
        dag,
        version.number,
        canonical_hash(document),
        document.decode(),
        source,
        created_by,
    )
    await _insert(connection, _INSERT_NODES, rows.nodes, org_id, dag)
    if rows.datasets:
        inserted = await connection.fetch(_INSERT_DATASETS, org_id, dag, *columns(rows.datasets))
        _check_made(rows.datasets, {row["name"] for row in inserted})
    await _insert(connection, _INSERT_GENERATIONS, rows.generations)
    await _insert(connection, _INSERT_JOBS, rows.jobs, org_id, dag)
    await _insert(connection, _INSERT_OUTPUTS, rows.outputs)
    await connection.execute(
        _INSERT_VERSION_JOBS, version.dag_version_id, names, [rows.job_ids[name] for name in names]
    )


@dataclass(slots=True)
class _Rows:
    """The rows that are missing, in the order of the columns above."""

    config: DispatcherConfig
    job_ids: dict[str, UUID]
    nodes: list[tuple[Any, ...]] = field(default_factory=list)
    datasets: list[tuple[Any, ...]] = field(default_factory=list)
    generations: list[tuple[Any, ...]] = field(default_factory=list)
    jobs: list[tuple[Any, ...]] = field(default_factory=list)
    outputs: list[tuple[Any, ...]] = field(default_factory=list)
    _made: dict[str, UUID] = field(default_factory=dict)
    _shared: dict[str, Generation] = field(default_factory=dict)
    """Generations of buffered datasets: their other writers take the same."""

    def add(self, job: PlannedJob) -> None:
        name = job.document.name
        if name in self.job_ids:
            return
        node_id = job.node_id
        if node_id is None:
            node_id = new_id()
            self.nodes.append((node_id, name, job.hashes.data))
        job_id = self.job_ids[name] = new_id()
        definition = define(job.document, job.hashes.data, self.config)
        self.jobs.append((job_id, name, node_id, *astuple(definition)))
        for output in job.outputs:
            self.outputs.append((job_id, output.output_index, *self._generation(node_id, output)))

    def _generation(self, node_id: UUID, output: PlannedOutput) -> Generation:
        if output.generation is not None:
            return output.generation
        if output.name in self._shared:
            return self._shared[output.name]
        version = new_id()
        dataset_uuid = output.dataset_uuid or self._made.get(output.name)
        if dataset_uuid is None:
            dataset_uuid = self._made[output.name] = new_id()
            self.datasets.append((dataset_uuid, output.name, output.storage, version, output.published))
        owner = None if output.shared else node_id
        self.generations.append((dataset_uuid, version, owner, output.schema, output.schema_hash, output.units))
        if output.shared:
            self._shared[output.name] = (dataset_uuid, version)
        return dataset_uuid, version


async def _insert(connection: Connection, statement: str, rows: Sequence[tuple[Any, ...]], *arguments: object) -> None:
    if rows:
        await connection.execute(statement, *arguments, *columns(rows))


def _check_made(expected: Sequence[tuple[Any, ...]], inserted: set[str]) -> None:
    problems = [
        unlocated("dataset_owned", f"The dataset `{name}` was made by somebody else just now.", f"publish.{name}")
        for _, name, *_ in expected
        if name not in inserted
    ]
    if problems:
        raise dag_invalid(problems)
