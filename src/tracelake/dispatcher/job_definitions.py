"""Job definitions: registering them, and the cache of them, which follows the epochs of orgs."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from tracelake.catalogue import CATALOGUE
from tracelake.db.transaction import Connection, Store
from tracelake.dispatcher.config import DispatcherConfig
from tracelake.dispatcher.records import columns
from tracelake.errors import TraceError
from tracelake.model.dag import Input, OutputCheck, Strategy, Udf, UnitGrid
from tracelake.model.ids import new_id
from tracelake.model.job import Dataset, Job, Output, Storage
from tracelake.model.runtime import LAMBDA, Runtime, RuntimeKind, resolve_timeout
from tracelake.wire.platform import DatasetSpec, JobReply, JobRequest, OutputRef

_LOAD_JOBS = """
    SELECT job_id, org_id, dag_name, jobs.name, runtime, operator, config, config_hash,
           lease_seconds, timeout_seconds, max_attempts, node_id, strategy, max_concurrency,
           coalesce(document->>'max_queue_depth', document->>'max_queue_age_seconds') IS NOT NULL AS counted,
           orgs.name AS org, document->'secrets' AS secrets, document->'udf' AS udf, document->'units' AS units,
           document->'inputs' AS inputs, document->'checks' AS checks
    FROM jobs JOIN orgs USING (org_id) WHERE job_id = ANY($1)"""

_LOAD_OUTPUTS = """
    SELECT o.job_id, o.output_index, o.dataset_version, d.dataset_uuid, d.org_id, d.name, d.storage, j.operator
    FROM job_outputs o JOIN datasets d USING (dataset_uuid) JOIN jobs j USING (job_id)
    WHERE o.job_id = ANY($1) ORDER BY o.job_id, o.output_index"""

_LOAD_DATASETS = "SELECT dataset_uuid, org_id, name, storage FROM datasets WHERE dataset_uuid = ANY($1)"

_LOAD_GENERATIONS = """
    SELECT d.dataset_uuid, d.org_id, d.name, d.storage, v.dataset_version
    FROM dataset_versions v JOIN datasets d USING (dataset_uuid)
    WHERE (v.dataset_uuid, v.dataset_version) IN (SELECT * FROM unnest($1::uuid[], $2::uuid[]))"""


# A node has one job in the active version of its DAG; while only a build has the node, the one of that.
_CURRENT_JOBS = """
    SELECT DISTINCT ON (j.node_id) j.node_id, j.job_id, v.dag_version_id, v.dag_version_id = d.active_version AS active
    FROM jobs j JOIN dag_version_jobs v USING (job_id)
    JOIN dags d ON d.org_id = j.org_id AND d.dag_name = j.dag_name
         AND v.dag_version_id IN (d.active_version, d.building_version)
    WHERE j.node_id = ANY($1) ORDER BY j.node_id, v.dag_version_id = d.active_version DESC"""

_FIND_JOB = "SELECT job_id FROM jobs WHERE org_id = $1 AND dag_name = $2 AND name = $3 AND definition_hash = $4"

_INSERT_JOB = """
    INSERT INTO jobs (job_id, org_id, dag_name, name, runtime, operator, config, config_hash, definition_hash,
                      lease_seconds, timeout_seconds, max_attempts)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
    ON CONFLICT (org_id, dag_name, name, definition_hash) DO NOTHING RETURNING job_id"""

_INSERT_OUTPUTS = """
    INSERT INTO job_outputs (job_id, output_index, dataset_uuid, dataset_version)
    SELECT $1, * FROM unnest($2::int[], $3::uuid[], $4::uuid[])"""


@dataclass(frozen=True, slots=True)
class CurrentJob:
    """The job of a node in the version that counts."""

    epoch: int
    job_id: UUID | None
    """None: no version that counts has the node."""
    building_version: UUID | None
    """The version that is being built, if only that one has the node."""


class Definitions:
    """Jobs and datasets by id. All that is kept of them is immutable but the names of datasets, which a cutover may
    change: whoever has read an org's epoch says it to `follow`, and names of an older epoch are read again."""

    def __init__(self) -> None:
        self._jobs: dict[UUID, Job] = {}
        self._datasets: dict[UUID, Dataset] = {}
        self._generations: set[tuple[UUID, UUID]] = set()
        self._epochs: dict[UUID, int] = {}
        """Of each org, the epoch that the names are at least as new as."""
        self._refreshes = 0
        self._current: dict[UUID, CurrentJob] = {}

    async def follow(self, connection: Connection, epochs: Mapping[UUID, int]) -> None:
        """Nothing is forgotten meanwhile: others are in the midst of using it."""
        for org_id, epoch in epochs.items():
            if self._epochs.get(org_id, -1) >= epoch:
                continue
            keys = [key for key, dataset in self._datasets.items() if dataset.org_id == org_id]
            rows = await connection.fetch(_LOAD_DATASETS, keys) if keys else []
            if self._epochs.get(org_id, -1) >= epoch:
                continue  # somebody else has read newer ones while this one waited
            self._epochs[org_id] = epoch
            self._refreshes += 1
            renamed = {
                row["dataset_uuid"]: _dataset(row)
                for row in rows
                if self._datasets[row["dataset_uuid"]].name != row["name"]
            }
            if renamed:
                self._rename(org_id, renamed)

    def _rename(self, org_id: UUID, renamed: Mapping[UUID, Dataset]) -> None:
        self._datasets |= renamed
        for job_id, job in self._jobs.items():
            if job.org_id == org_id and any(output.dataset_uuid in renamed for output in job.outputs):
                outputs = tuple(
                    replace(output, dataset=renamed.get(output.dataset_uuid, output.dataset)) for output in job.outputs
                )
                self._jobs[job_id] = replace(job, outputs=outputs)

    async def _fetch(self, connection: Connection, statement: str, *arguments: Any) -> list[asyncpg.Record]:
        """Rows that are not older than what `follow` has read meanwhile."""
        while True:
            refreshes = self._refreshes
            rows: list[asyncpg.Record] = await connection.fetch(statement, *arguments)
            if self._refreshes == refreshes:
                return rows

    def job(self, job_id: UUID) -> Job:
        return self._jobs[job_id]

    def dataset(self, dataset_uuid: UUID) -> Dataset | None:
        return self._datasets.get(dataset_uuid)

    def dataset_name(self, dataset_uuid: UUID) -> str:
        dataset = self._datasets.get(dataset_uuid)
        return dataset.name if dataset else ""

    async def load_jobs(self, connection: Connection, job_ids: Iterable[UUID]) -> None:
        missing = [job_id for job_id in set(job_ids) if job_id not in self._jobs]
        if not missing:
            return
        outputs: dict[UUID, list[Output]] = {}
        for row in await self._fetch(connection, _LOAD_OUTPUTS, missing):
            dataset = self._keep_dataset(row)
            operator = CATALOGUE.get(row["operator"])
            fills_table = operator is not None and operator.fills_tables
            output = Output(row["output_index"], row["dataset_version"], dataset, fills_table)
            outputs.setdefault(row["job_id"], []).append(output)
        for row in await connection.fetch(_LOAD_JOBS, missing):
            fields: dict[str, Any] = dict(row)
            fields["config"] = fields["config"].encode()
            fields["strategy"] = Strategy(fields["strategy"])
            fields["secrets"] = tuple(msgspec.json.decode(fields["secrets"] or "[]", type=list[str]))
            fields["udf"] = msgspec.json.decode(fields["udf"] or "null", type=Udf | None)
            fields["units"] = msgspec.json.decode(fields["units"] or "null", type=UnitGrid | None)
            fields["inputs"] = msgspec.json.decode(fields["inputs"] or "[]", type=tuple[Input, ...])
            fields["checks"] = msgspec.json.decode(fields["checks"] or "[]", type=tuple[OutputCheck, ...])
            self._jobs[row["job_id"]] = Job(**fields, outputs=tuple(outputs.get(row["job_id"], ())))

    async def load_current_jobs(self, connection: Connection, nodes: Mapping[UUID, tuple[UUID, int]]) -> None:
        """Finds the jobs of nodes (given with org and epoch) in the active version: a task that was made by an earlier
        version of the same node goes on with the limits of its own job, but with the checks that are active."""
        outdated = [
            node_id
            for node_id, (_, epoch) in nodes.items()
            if (current := self._current.get(node_id)) is None or current.epoch < epoch
        ]
        if not outdated:
            return
        rows = {row["node_id"]: row for row in await connection.fetch(_CURRENT_JOBS, outdated)}
        await self.load_jobs(connection, (row["job_id"] for row in rows.values()))
        for node_id in outdated:
            row = rows.get(node_id)
            self._current[node_id] = CurrentJob(
                nodes[node_id][1],
                None if row is None else row["job_id"],
                None if row is None or row["active"] else row["dag_version_id"],
            )

    def current_job(self, job: Job) -> "CurrentJob":
        """Of the job's node, which `load_current_jobs` has found."""
        current = None if job.node_id is None else self._current.get(job.node_id)
        return CurrentJob(0, job.job_id, None) if current is None else current

    def current_checks(self, job: Job) -> tuple[OutputCheck, ...]:
        job_id = self.current_job(job).job_id
        return job.checks if job_id is None else self._jobs[job_id].checks

    async def load_datasets(self, connection: Connection, dataset_uuids: Iterable[UUID]) -> None:
        missing = {key for key in dataset_uuids if key not in self._datasets}
        if missing:
            for row in await self._fetch(connection, _LOAD_DATASETS, list(missing)):
                self._keep_dataset(row)

    async def load_generations(self, connection: Connection, keys: Iterable[tuple[UUID, UUID]]) -> None:
        missing = [key for key in set(keys) if key not in self._generations]
        if missing:
            for row in await self._fetch(connection, _LOAD_GENERATIONS, *columns(missing)):
                self._keep_dataset(row)
                self._generations.add((row["dataset_uuid"], row["dataset_version"]))

    def knows_generation(self, org_id: UUID, key: tuple[UUID, UUID]) -> bool:
        """Whether it exists for that org; another org's is as good as none."""
        dataset = self._datasets.get(key[0])
        return key in self._generations and dataset is not None and dataset.org_id == org_id

    def knows_job(self, job_id: UUID) -> bool:
        return job_id in self._jobs

    def _keep_dataset(self, row: asyncpg.Record) -> Dataset:
        return self._datasets.setdefault(row["dataset_uuid"], _dataset(row))


def _dataset(row: asyncpg.Record) -> Dataset:
    return Dataset(row["dataset_uuid"], row["org_id"], row["name"], Storage(row["storage"]))


def resolve_limits(request: JobRequest, config: DispatcherConfig) -> tuple[int, int | None, int | None]:
    """`(lease_seconds, timeout_seconds, max_attempts)` with every default filled in."""
    limits = request.limits
    runtime = config.runtimes.get(request.runtime) or Runtime(request.runtime, RuntimeKind.QUEUE)
    timeout = resolve_timeout(runtime, limits.timeout_seconds, config.default_timeout_seconds)
    # Where heartbeat is optional, the lease is the whole of the attempt's time.
    lease = timeout if runtime.lease_is_timeout else limits.heartbeat_timeout_seconds or config.default_lease_seconds
    return lease, timeout, limits.max_attempts or config.default_max_attempts


def takes_config(request: JobRequest) -> bool:
    """Whether the catalogue knows what its config has to be; a bundle's is its own."""
    return request.runtime != LAMBDA


async def register_job(store: Store, request: JobRequest, config: DispatcherConfig) -> JobReply:
    """One transaction: org, datasets, generations, definition. The same definition again is the same job.

    Whoever calls has had the config checked (`takes_config`)."""
    names = [spec.name for spec in request.outputs]
    if len(set(names)) != len(names):
        raise TraceError("job_invalid", "Two outputs name the same dataset.", field="outputs")
    lease, timeout, max_attempts = resolve_limits(request, config)
    config_json = msgspec.json.encode(request.config, order="deterministic")
    config_hash = digest(request.operator.encode(), config_json)
    async with store.transaction() as connection:
        org_id = await ensure_org(connection, request.org)
        # By name, so that two registrations that share datasets lock them in one order.
        by_name = sorted(enumerate(request.outputs), key=lambda item: item[1].name)
        refs = [await ensure_dataset(connection, org_id, index, spec) for index, spec in by_name]
        outputs = sorted(refs, key=lambda ref: ref.output_index)
        definition = [request.runtime, lease, timeout, max_attempts, outputs]
        definition_hash = digest(config_hash.encode(), msgspec.json.encode(definition))
        key = (org_id, request.dag, request.name)
        job_id = await connection.fetchval(
            _INSERT_JOB,
            new_id(),
            *key,
            request.runtime,
            request.operator,
            config_json.decode(),
            config_hash,
            definition_hash,
            lease,
            timeout,
            max_attempts,
        )
        duplicate = job_id is None
        if duplicate:
            job_id = await connection.fetchval(_FIND_JOB, *key, definition_hash)
        elif outputs:
            rows = [(output.output_index, output.dataset_uuid, output.dataset_version) for output in outputs]
            await connection.execute(_INSERT_OUTPUTS, job_id, *columns(rows))
    return JobReply(job_id=job_id, org_id=org_id, config_hash=config_hash, outputs=outputs, duplicate=duplicate)


async def ensure_org(connection: Connection, name: str) -> UUID:
    await connection.execute("INSERT INTO orgs (org_id, name) VALUES ($1, $2) ON CONFLICT DO NOTHING", new_id(), name)
    org_id: UUID = await connection.fetchval("SELECT org_id FROM orgs WHERE name = $1", name)
    return org_id


async def ensure_dataset(connection: Connection, org_id: UUID, index: int, spec: DatasetSpec) -> OutputRef:
    """The dataset of an output, made if it does not exist."""
    field = f"outputs[{index}]"
    await connection.execute(
        """WITH made AS (
               INSERT INTO datasets (dataset_uuid, org_id, name, storage, current_version)
               VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING RETURNING dataset_uuid, current_version)
           INSERT INTO dataset_versions (dataset_uuid, dataset_version) SELECT * FROM made""",
        spec.dataset_uuid or new_id(),
        org_id,
        spec.name,
        spec.storage,
        spec.dataset_version or new_id(),
    )
    row = await connection.fetchrow(
        "SELECT dataset_uuid, storage, current_version FROM datasets WHERE org_id = $1 AND name = $2", org_id, spec.name
    )
    if row is None:
        # The uuid is taken, by another name or another org; which of them is nobody's business.
        raise TraceError("job_invalid", "The dataset_uuid is not that of the dataset.", field=f"{field}.dataset_uuid")
    if spec.dataset_uuid not in (None, row["dataset_uuid"]):
        raise TraceError("job_invalid", "The dataset exists with another dataset_uuid.", field=f"{field}.dataset_uuid")
    if spec.storage != row["storage"]:
        message = f"The dataset exists with storage {row['storage']}; received {spec.storage}."
        raise TraceError("job_invalid", message, field=f"{field}.storage")
    version = spec.dataset_version or row["current_version"]
    await connection.execute(
        "INSERT INTO dataset_versions (dataset_uuid, dataset_version) VALUES ($1, $2) ON CONFLICT DO NOTHING",
        row["dataset_uuid"],
        version,
    )
    return OutputRef(output_index=index, dataset_uuid=row["dataset_uuid"], dataset_version=version, name=spec.name)


def digest(*parts: Any) -> str:
    """A hash of values that JSON can carry. Every part has its own bounds: no two lists of parts read the same."""
    hasher = hashlib.sha256()
    for part in parts:
        data = part if isinstance(part, bytes) else msgspec.json.encode(part, order="sorted")
        hasher.update(len(data).to_bytes(8, "big") + data)
    return f"sha256:{hasher.hexdigest()}"
