"""The job of an org whose tasks are its batch queries, and the dataset that their results are units of.

No DAG has the job, and no document can name the dataset. `max_concurrency` bounds how many queries of the org run at
once, so that queries leave workers to the org's jobs; the limit of the operator `query`, if the runtimes have one, is
shared fairly by all orgs.
"""

from uuid import UUID

import msgspec

from tracelake.catalogue.sql.query_config import QUERY
from tracelake.db.transaction import Store
from tracelake.dispatcher.config import DispatcherConfig
from tracelake.dispatcher.job_definitions import Definitions, digest, ensure_dataset, ensure_org
from tracelake.model.ids import new_id
from tracelake.model.job import Job
from tracelake.wire.platform import DatasetSpec

DAG, NAME, RESULTS = "_queries", "batch", "_query_results"
RUNTIME = "ecs_platform"

_INSERT_JOB = """
    INSERT INTO jobs (job_id, org_id, dag_name, name, runtime, operator, config, config_hash, definition_hash,
                      lease_seconds, timeout_seconds, max_attempts, max_concurrency)
    VALUES ($1, $2, $3, $4, $5, $6, '{}', $7, $8, $9, $10, $11, $12)
    ON CONFLICT (org_id, dag_name, name, definition_hash) DO NOTHING RETURNING job_id"""

_FIND_JOB = "SELECT job_id FROM jobs WHERE org_id = $1 AND dag_name = $2 AND name = $3 AND definition_hash = $4"

_INSERT_OUTPUT = """
    INSERT INTO job_outputs (job_id, output_index, dataset_uuid, dataset_version) VALUES ($1, 0, $2, $3)"""

_LIMIT = """
    INSERT INTO limits (limit_key, max_running) VALUES ($1, $2)
    ON CONFLICT (limit_key) DO UPDATE SET max_running = excluded.max_running
    WHERE limits.max_running IS DISTINCT FROM excluded.max_running"""


class QueryJobs:
    """The jobs of orgs, each made when the first query of its org comes."""

    def __init__(self, store: Store, definitions: Definitions, config: DispatcherConfig) -> None:
        self._store = store
        self._definitions = definitions
        self._config = config
        self._jobs: dict[str, UUID] = {}

    async def find(self, org: str) -> Job:
        job_id = self._jobs.get(org)
        if job_id is None:
            job_id = self._jobs[org] = await self._ensure(org)
        return self._definitions.job(job_id)

    async def _ensure(self, org: str) -> UUID:
        config = self._config
        limits = (
            config.default_lease_seconds,
            config.query_batch_seconds,
            config.default_max_attempts,
            config.query_batch_running,
        )
        async with self._store.transaction() as connection:
            org_id = await ensure_org(connection, org)
            output = await ensure_dataset(connection, org_id, 0, DatasetSpec(name=RESULTS, storage="s3"))
            # The same for all definitions: a generation has one.
            config_hash = digest(QUERY.encode(), b"{}")
            definition_hash = digest(config_hash.encode(), msgspec.json.encode([RUNTIME, *limits, output]))
            key = (org_id, DAG, NAME)
            job_id: UUID | None = await connection.fetchval(
                _INSERT_JOB, new_id(), *key, RUNTIME, QUERY, config_hash, definition_hash, *limits
            )
            if job_id is None:
                job_id = await connection.fetchval(_FIND_JOB, *key, definition_hash)
            else:
                await connection.execute(_INSERT_OUTPUT, job_id, output.dataset_uuid, output.dataset_version)
            assert job_id is not None
        async with self._store.transaction() as connection:
            await self._definitions.load_jobs(connection, [job_id])
            await connection.execute(_LIMIT, self._definitions.job(job_id).limit_key, config.query_batch_running)
        return job_id
