"""Making a version active in one transaction: before it everything is the old version, after it the new one.

Four moves share it. `begin_build` puts a version beside the active one; `cut_over` makes a version the active one, be
it new, built, or an earlier one; `call_off` ends a build; `withdraw` leaves no version active. The caller holds the
org's exclusive routing lock, so nobody routes meanwhile. Then rows are locked in the order that every transaction
keeps: tasks, generations, edges, limits, queues.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from uuid import UUID

import msgspec

from tracelake.db.transaction import Connection
from tracelake.dispatcher.buffers.table_writers import declare_writers, withdraw_writers
from tracelake.dispatcher.deploy import edges, pointers, tasks
from tracelake.dispatcher.deploy.buffered import grow_tables
from tracelake.dispatcher.deploy.edges import StoredEdge
from tracelake.dispatcher.deploy.hashes import Address, publications
from tracelake.dispatcher.deploy.outputs import Generation
from tracelake.dispatcher.deploy.plan import dag_invalid
from tracelake.dispatcher.deploy.registry import DagPointers, Version
from tracelake.dispatcher.engine.pressure import backlog, queues
from tracelake.dispatcher.engine.pressure.levels import Thresholds
from tracelake.dispatcher.engine.routing import stale_outputs
from tracelake.dispatcher.records import columns
from tracelake.dispatcher.sources import webhook_paths
from tracelake.model.dag import Input, JobDocument
from tracelake.model.runtime import RuntimeRegistry

_JOBS = """
    SELECT v.dag_version_id, j.job_id, j.node_id, j.name, j.max_concurrency, EXISTS (
        SELECT FROM jobs k JOIN dag_version_jobs w ON w.job_id = k.job_id
        JOIN activations a ON a.dag_version_id = w.dag_version_id
        WHERE k.node_id = j.node_id AND a.cutover_at IS NOT NULL) AS counted
    FROM dag_version_jobs v JOIN jobs j USING (job_id) WHERE v.dag_version_id = ANY($1)"""

_OUTPUTS = """
    SELECT j.name, o.output_index, o.dataset_uuid, o.dataset_version, EXISTS (
        SELECT FROM dataset_pointers p
        WHERE p.dataset_uuid = o.dataset_uuid AND p.dataset_version = o.dataset_version) AS counted
    FROM dag_version_jobs v JOIN jobs j USING (job_id) JOIN job_outputs o USING (job_id) WHERE v.dag_version_id = $1"""

_EXTERNAL = "SELECT name, dataset_uuid, current_version FROM datasets WHERE org_id = $1 AND name = ANY($2)"

_END_BUILD = """
    UPDATE activations SET state = 'Abandoned', ended_at = trace_now()
    WHERE org_id = $1 AND dag_name = $2 AND state = 'Building' AND dag_version_id <> $3"""

_SUPERSEDE = """
    UPDATE activations SET state = 'Superseded', ended_at = trace_now()
    WHERE org_id = $1 AND dag_name = $2 AND state = 'Active'"""

_FINISH_BUILD = """
    UPDATE activations SET state = 'Active', cutover_at = trace_now()
    WHERE org_id = $1 AND dag_name = $2 AND dag_version_id = $3 AND state = 'Building' RETURNING activation_id"""

_ACTIVATE = """
    INSERT INTO activations (org_id, dag_name, dag_version_id, state, requested_by, cutover_at)
    VALUES ($1, $2, $3, 'Active', $4, trace_now()) RETURNING activation_id"""

_BUILD = """
    INSERT INTO activations (org_id, dag_name, dag_version_id, state, requested_by)
    VALUES ($1, $2, $3, 'Building', $4)"""

_POINT = "UPDATE dags SET active_version = $3, building_version = $4 WHERE org_id = $1 AND dag_name = $2"

_EPOCH = "UPDATE orgs SET routing_epoch = routing_epoch + 1 WHERE org_id = $1"

_LIMITS = """
    INSERT INTO limits (limit_key, max_running) SELECT * FROM unnest($1::text[], $2::int[])
    ON CONFLICT (limit_key) DO UPDATE SET max_running = excluded.max_running
    WHERE limits.max_running IS DISTINCT FROM excluded.max_running"""

_LOCK_LIMITS = "SELECT limit_key FROM limits WHERE limit_key = ANY($1) ORDER BY limit_key FOR UPDATE"

# A job that has no limit any more; a key that nobody ever used needs no row.
_UNLIMIT = "UPDATE limits SET max_running = NULL WHERE limit_key = ANY($1) AND max_running IS NOT NULL"


@dataclass(frozen=True, slots=True)
class _Job:
    job_id: UUID
    node_id: UUID
    name: str
    max_concurrency: int | None
    counted: bool


@dataclass(frozen=True, slots=True)
class Switch:
    """One move of one DAG: what the functions below have in common."""

    connection: Connection
    org_id: UUID
    dag: str
    before: DagPointers
    version: Version
    """The one that shall count, or go on counting; of a DAG that is removed, the one that counted."""
    requested_by: str
    runtimes: RuntimeRegistry

    async def begin_build(self) -> None:
        """The active version goes on; the new one's nodes start beside it, from the history of what they read."""
        mine, active, building = await self._jobs()
        stays = _nodes(active)
        fresh = [job for job in mine if job.node_id not in stays and not job.counted]
        dropped = _nodes(building) - stays - _nodes(mine)
        arriving = _nodes(fresh)
        names = {job.name for job in fresh}
        outputs, generations = await self._outputs()
        # What counts already is no part of the build, also if a job of the build writes to it (a buffered dataset).
        staged = {generation for (name, _), generation in outputs.items() if name in names} - generations
        moved = await tasks.move(self.connection, dropped, arriving, self._reason)
        thresholds = self._thresholds(fresh)
        await queues.mark_counted(self.connection, thresholds)
        await pointers.release_events(self.connection, staged)
        await self._grow_tables()
        await edges.lock(self.connection, dropped | arriving, (), self.dag)
        await edges.arrive(self.connection, self.org_id, "Staged", await self._edges(fresh, outputs, staged))
        await edges.go_live(self.connection, arriving)
        await edges.park(self.connection, dropped)
        await pointers.stage_pointers(self.connection, self.org_id, self.dag, staged)
        active_names = {job.name for job in active}
        await self._settle(moved, [job for job in mine if job.name not in active_names])
        await queues.set_thresholds(self.connection, self.org_id, thresholds, moved.depths)
        await self._execute(_END_BUILD, self.version.dag_version_id)
        await self._execute(_BUILD, self.version.dag_version_id, self.requested_by)
        await self._take_paths()
        await self._point(self.before.active, self.version.dag_version_id)

    async def cut_over(self) -> None:
        mine, active, building = await self._jobs()
        counting = _nodes(active)
        arriving = _nodes(mine) - counting
        dropped = (counting | _nodes(building)) - _nodes(mine)
        outputs, _ = await self._outputs()
        generations = list(dict.fromkeys(outputs.values()))
        moved = await tasks.move(self.connection, dropped, arriving, self._reason)
        thresholds = self._thresholds(mine)
        await queues.mark_counted(self.connection, thresholds)
        await pointers.release_events(self.connection, generations)
        await self._grow_tables()
        datasets = [dataset_uuid for dataset_uuid, _ in generations]
        await edges.lock(self.connection, counting | dropped | arriving, datasets, self.dag)
        joining = [job for job in mine if job.node_id in arriving]
        await edges.arrive(self.connection, self.org_id, "Active", await self._edges(joining, outputs, ()))
        await edges.stay(self.connection, [(job.node_id, job.job_id) for job in mine if job.node_id in counting])
        await edges.park(self.connection, dropped)
        followers = await edges.follow(self.connection, generations, self.dag)
        await stale_outputs.mark(self.connection, self.org_id, followers)
        await edges.go_live(self.connection, [*arriving, *(node_id for node_id, _ in followers)])
        await pointers.stage_pointers(self.connection, self.org_id, self.dag)
        activation_id = await self._activation()
        await pointers.move_pointers(self.connection, self._names(outputs), activation_id)
        await pointers.set_writers(self.connection, self.org_id, self.version.document)
        await self._settle(moved, mine)
        await queues.set_thresholds(self.connection, self.org_id, thresholds, moved.depths)
        await backlog.set_limits(self.connection, self.org_id, self.version.document)
        await self._take_paths()
        await self._point(self.version.dag_version_id, None)
        await declare_writers(self.connection, self.org_id, self.version.document, _nodes(mine) | dropped)

    async def call_off(self) -> None:
        """End the build beside the active version, which is the one that is wanted."""
        _, active, building = await self._jobs()
        dropped = _nodes(building) - _nodes(active)
        moved = await tasks.move(self.connection, dropped, (), self._reason)
        await edges.lock(self.connection, dropped, (), self.dag)
        await edges.park(self.connection, dropped)
        await pointers.stage_pointers(self.connection, self.org_id, self.dag)
        await self._settle(moved, ())
        await queues.set_thresholds(self.connection, self.org_id, {}, moved.depths)
        await self._execute(_END_BUILD, self.version.dag_version_id)
        await self._point(self.before.active, None)

    async def withdraw(self) -> None:
        """No version is active any more: its tasks are cancelled, its edges keep their places, its datasets stay."""
        _, active, building = await self._jobs()
        dropped = _nodes(active) | _nodes(building)
        moved = await tasks.move(self.connection, dropped, (), "the DAG was removed")
        await edges.lock(self.connection, dropped, (), self.dag)
        await edges.park(self.connection, dropped)
        await pointers.stage_pointers(self.connection, self.org_id, self.dag)
        await self._settle(moved, ())
        await queues.set_thresholds(self.connection, self.org_id, {}, moved.depths)
        await self._execute(_END_BUILD, UUID(int=0))
        await self._execute(_SUPERSEDE)
        await self._point(None, None)
        await withdraw_writers(self.connection, self.org_id, self.dag, dropped)

    def _thresholds(self, jobs: Iterable[_Job]) -> dict[UUID, Thresholds]:
        documents = {job.name: job for job in self.version.document.jobs}
        return {
            job.node_id: Thresholds(documents[job.name].max_queue_depth, documents[job.name].max_queue_age_seconds)
            for job in jobs
        }

    @property
    def _reason(self) -> str:
        return f"superseded by version {self.version.number} of the DAG"

    async def _take_paths(self) -> None:
        """Takes the paths when the build begins, so that nobody else has them when the version becomes active."""
        problems = await webhook_paths.take_paths(self.connection, self.org_id, self.version.document)
        if problems:
            raise dag_invalid(problems)

    async def _grow_tables(self) -> None:
        """Grows the tables when the build begins: its tasks write to the tables of the active version."""
        problems = await grow_tables(self.connection, self.org_id, self.version.document)
        if problems:
            raise dag_invalid(problems)

    async def _execute(self, statement: str, *arguments: object) -> None:
        await self.connection.execute(statement, self.org_id, self.dag, *arguments)

    async def _point(self, active: UUID | None, building: UUID | None) -> None:
        await self._execute(_POINT, active, building)
        await self.connection.execute(_EPOCH, self.org_id)

    async def _jobs(self) -> tuple[list[_Job], list[_Job], list[_Job]]:
        """Returns the jobs of this version, of the active one, and of the one that is being built."""
        version_ids = (self.version.dag_version_id, self.before.active, self.before.building)
        jobs_by_version: dict[UUID, list[_Job]] = {version: [] for version in version_ids if version is not None}
        for row in await self.connection.fetch(_JOBS, list(jobs_by_version)):
            job = _Job(row["job_id"], row["node_id"], row["name"], row["max_concurrency"], row["counted"])
            jobs_by_version[row["dag_version_id"]].append(job)
        mine, active, building = ([] if version is None else jobs_by_version[version] for version in version_ids)
        return mine, active, building

    async def _outputs(self) -> tuple[dict[Address, Generation], set[Generation]]:
        """Returns the generation of each output, and the generations that were current before."""
        rows = await self.connection.fetch(_OUTPUTS, self.version.dag_version_id)
        outputs = {(row["name"], row["output_index"]): (row["dataset_uuid"], row["dataset_version"]) for row in rows}
        return outputs, {(row["dataset_uuid"], row["dataset_version"]) for row in rows if row["counted"]}

    async def _edges(
        self, jobs: Iterable[_Job], outputs: dict[Address, Generation], staged: Collection[Generation]
    ) -> list[StoredEdge]:
        documents = {job.name: job for job in self.version.document.jobs}
        documented_jobs = [(job, documents[job.name]) for job in jobs]
        external = await self._external(document for _, document in documented_jobs)

        def generation(item: Input) -> Generation:
            if item.output is None:
                assert item.dataset is not None
                return external[item.dataset]
            return outputs[item.output.job, item.output.output_index]

        return [
            StoredEdge(
                job.node_id,
                index,
                job.job_id,
                *generation(item),
                where=None if item.where is None else msgspec.json.encode(item.where, order="deterministic").decode(),
                in_build=generation(item) in staged,
            )
            for job, document in documented_jobs
            for index, item in enumerate(document.inputs)
        ]

    async def _external(self, jobs: Iterable[JobDocument]) -> dict[str, Generation]:
        names = {item.dataset for job in jobs for item in job.inputs if item.dataset is not None}
        if not names:
            return {}
        rows = await self.connection.fetch(_EXTERNAL, self.org_id, sorted(names))
        return {row["name"]: (row["dataset_uuid"], row["current_version"]) for row in rows}

    def _names(self, outputs: dict[Address, Generation]) -> dict[Generation, tuple[str | None, bool]]:
        """Returns name and `published` of each generation. Only the dataset of a source that emits takes a new name."""
        published = publications(self.version.document)
        emitting = {job.name for job in self.version.document.jobs if job.only_emits}
        names: dict[Generation, tuple[str | None, bool]] = {}
        for address, generation in outputs.items():
            publish = published.get(address)
            if publish is not None and publish.owner is not None:
                continue  # its pointer is moved by the DAG that owns it
            name = publish.name if publish is not None and address[0] in emitting else None
            names[generation] = (name, publish is not None)
        return names

    async def _activation(self) -> int:
        version = self.version.dag_version_id
        await self._execute(_END_BUILD, version)
        await self._execute(_SUPERSEDE)
        key = (self.org_id, self.dag, version)
        built: int | None = await self.connection.fetchval(_FINISH_BUILD, *key)
        if built is not None:
            return built
        activation_id: int = await self.connection.fetchval(_ACTIVATE, *key, self.requested_by)
        return activation_id

    async def _settle(self, moved: tasks.Moved, jobs: Sequence[_Job]) -> None:
        """Sets the limits of these jobs, then gives free places to tasks that wait for them."""
        limits = {f"job:{self.org_id}:{self.dag}:{job.name}": job.max_concurrency for job in jobs}
        keys = sorted({*limits, *moved.freed, *moved.waiting})
        existing_keys = {row["limit_key"] for row in await self.connection.fetch(_LOCK_LIMITS, keys)}
        limited = [(key, most) for key, most in sorted(limits.items()) if most is not None]
        if limited:
            await self.connection.execute(_LIMITS, *columns(limited))
        await self.connection.execute(_UNLIMIT, [key for key, most in limits.items() if most is None])
        await tasks.settle(self.connection, moved, existing_keys & set(limits), self.runtimes)


def _nodes(jobs: Iterable[_Job]) -> set[UUID]:
    return {job.node_id for job in jobs}
