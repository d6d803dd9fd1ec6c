"""Writing a version's definitions: the version, its nodes, datasets, generations and jobs.

Nothing here makes anything count; rows that are there stay as they are. The caller holds the org's exclusive routing
lock, so what the plan found missing is still missing, with one exception: jobs registered without a DAG take no lock,
and may make a dataset of the same name at the same time.
"""

from collections.abc import Sequence
from uuid import UUID

from tracelake.dag import canonical, document_hash
from tracelake.db.transaction import Connection
from tracelake.dispatcher.config import DispatcherConfig
from tracelake.dispatcher.deploy.definition import Definition, define
from tracelake.dispatcher.deploy.outputs import Generation, PlannedOutput
from tracelake.dispatcher.deploy.plan import DeployPlan, PlannedJob, dag_invalid
from tracelake.dispatcher.deploy.registry import Version
from tracelake.model.dag import Problem
from tracelake.model.ids import new_id

_INSERT_VERSION = """
    INSERT INTO dag_versions (dag_version_id, org_id, dag_name, number, document_hash, document, source, created_by)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8)"""

_INSERT_DAG = "INSERT INTO dags (org_id, dag_name) VALUES ($1, $2) ON CONFLICT DO NOTHING"

_INSERT_NODE = "INSERT INTO nodes (node_id, org_id, dag_name, job_name, data_hash) VALUES ($1, $2, $3, $4, $5)"

_INSERT_DATASET = """
    INSERT INTO datasets (dataset_uuid, org_id, name, storage, current_version, dag_name, published)
    VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT DO NOTHING RETURNING dataset_uuid"""

_INSERT_GENERATION = """
    INSERT INTO dataset_versions (dataset_uuid, dataset_version, node_id, schema, schema_hash)
    VALUES ($1, $2, $3, $4, $5)"""

_FIND_JOB = "SELECT job_id FROM jobs WHERE org_id = $1 AND dag_name = $2 AND name = $3 AND definition_hash = $4"

_INSERT_JOB = """
    INSERT INTO jobs (job_id, org_id, dag_name, name, node_id, runtime, operator, config, config_hash, definition_hash,
                      lease_seconds, timeout_seconds, max_attempts, strategy, priority, max_concurrency, document)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17)"""

_INSERT_OUTPUTS = """
    INSERT INTO job_outputs (job_id, output_index, dataset_uuid, dataset_version)
    SELECT $1, * FROM unnest($2::int[], $3::uuid[], $4::uuid[])"""

_INSERT_VERSION_JOBS = """
    INSERT INTO dag_version_jobs (dag_version_id, job_name, job_id)
    SELECT $1, * FROM unnest($2::text[], $3::uuid[])"""


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
    """A version that is not there yet, with everything that it needs and that no other version brought along."""
    dag = version.document.name
    await connection.execute(_INSERT_DAG, org_id, dag)
    await connection.execute(
        _INSERT_VERSION,
        version.dag_version_id,
        org_id,
        dag,
        version.number,
        document_hash(version.document),
        canonical(version.document).decode(),
        source,
        created_by,
    )
    writer = _Writer(connection, org_id, dag, config)
    job_ids = [await writer.job(job) for job in plan.jobs]
    names = [job.document.name for job in plan.jobs]
    await connection.execute(_INSERT_VERSION_JOBS, version.dag_version_id, names, job_ids)


class _Writer:
    def __init__(self, connection: Connection, org_id: UUID, dag: str, config: DispatcherConfig) -> None:
        self._connection = connection
        self._org_id = org_id
        self._dag = dag
        self._config = config
        self._made: dict[str, UUID] = {}
        """Datasets that this version brings, by name."""
        self._shared: dict[str, Generation] = {}
        """Generations of buffered datasets: their other writers take the same."""

    async def job(self, job: PlannedJob) -> UUID:
        node_id = job.node_id or await self._node(job)
        definition = define(job.document, job.hashes.data, self._config)
        key = (self._org_id, self._dag, job.document.name)
        found: UUID | None = await self._connection.fetchval(_FIND_JOB, *key, definition.definition_hash)
        if found is not None:
            return found
        generations = [await self._generation(node_id, output) for output in job.outputs]
        return await self._job(job.document.name, node_id, definition, generations)

    async def _node(self, job: PlannedJob) -> UUID:
        node_id = new_id()
        await self._connection.execute(
            _INSERT_NODE, node_id, self._org_id, self._dag, job.document.name, job.hashes.data
        )
        return node_id

    async def _generation(self, node_id: UUID, output: PlannedOutput) -> Generation:
        if output.generation is not None:
            return output.generation
        if output.name in self._shared:
            return self._shared[output.name]
        version = new_id()
        dataset_uuid = output.dataset_uuid or self._made.get(output.name) or await self._dataset(output, version)
        await self._connection.execute(
            _INSERT_GENERATION,
            dataset_uuid,
            version,
            None if output.shared else node_id,
            output.schema,
            output.schema_hash,
        )
        if output.shared:
            self._shared[output.name] = (dataset_uuid, version)
        return dataset_uuid, version

    async def _dataset(self, output: PlannedOutput, version: UUID) -> UUID:
        made: UUID | None = await self._connection.fetchval(
            _INSERT_DATASET,
            new_id(),
            self._org_id,
            output.name,
            output.storage,
            version,
            self._dag,
            output.published,
        )
        if made is None:
            message = f"The dataset `{output.name}` was made by somebody else just now."
            raise dag_invalid(
                [Problem(code="dataset_owned", message=message, line=1, column=1, path=f"publish.{output.name}")]
            )
        self._made[output.name] = made
        return made

    async def _job(self, name: str, node_id: UUID, definition: Definition, generations: Sequence[Generation]) -> UUID:
        job_id = new_id()
        await self._connection.execute(
            _INSERT_JOB,
            job_id,
            self._org_id,
            self._dag,
            name,
            node_id,
            definition.runtime,
            definition.operator,
            definition.config,
            definition.config_hash,
            definition.definition_hash,
            definition.lease_seconds,
            definition.timeout_seconds,
            definition.max_attempts,
            definition.strategy,
            definition.priority,
            definition.max_concurrency,
            definition.document,
        )
        await self._connection.execute(
            _INSERT_OUTPUTS,
            job_id,
            list(range(len(generations))),
            [dataset_uuid for dataset_uuid, _ in generations],
            [version for _, version in generations],
        )
        return job_id
