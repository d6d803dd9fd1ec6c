"""Deploying and activating, for a caller: read the document, plan, and do exactly what the plan says.

A dry run and a deploy share everything up to the writing. The plan that is answered is made under the lock that is held
until the commit, so it is what was done, whatever others deployed meanwhile. A document is read by a process that
others wait for too, and never while a connection or a lock is held.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Literal, TypeAlias
from uuid import UUID

from tracelake.dag import DagInvalidError, KnownBundle, Surroundings, TypedDag, document_hash
from tracelake.db.transaction import HELD_UP, Connection, Store
from tracelake.dispatcher import audit
from tracelake.dispatcher.audit import Actor
from tracelake.dispatcher.bundles.rows import hold_enabled, list_finalized
from tracelake.dispatcher.config import DispatcherConfig
from tracelake.dispatcher.deploy import registry
from tracelake.dispatcher.deploy.apply import register
from tracelake.dispatcher.deploy.circles import check_circles
from tracelake.dispatcher.deploy.cutover import Switch
from tracelake.dispatcher.deploy.dataset_columns import record_columns
from tracelake.dispatcher.deploy.plan import DeployPlan, dag_invalid, make_plan
from tracelake.dispatcher.deploy.reading import FairReader
from tracelake.dispatcher.deploy.registry import DagPointers, Datasets, Version
from tracelake.dispatcher.deploy.removals import check_datasets
from tracelake.dispatcher.job_definitions import ensure_org
from tracelake.dispatcher.quotas.book import QuotaBook
from tracelake.dispatcher.quotas.checks import check_deploys
from tracelake.dispatcher.slices import compute_beside
from tracelake.dispatcher.sources import webhook_paths
from tracelake.errors import StoreUnavailableError, TraceError
from tracelake.model.dag import Dag, Problem, unlocated
from tracelake.model.ids import new_id
from tracelake.wire.dags import ActivateRequest, DeployReply

State: TypeAlias = Literal["Planned", "Created", "Building", "Active"]

_TRIES = 3
_FIND_ORG = "SELECT org_id FROM orgs WHERE name = $1"
_SNAPSHOT = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"
_COUNTED = "SELECT EXISTS (SELECT FROM activations WHERE dag_version_id = $1 AND cutover_at IS NOT NULL)"


class _DatasetsChangedError(Exception):
    """Somebody else deployed since the document was read; nothing was written."""

    def __init__(self, datasets: Datasets) -> None:
        super().__init__()
        self.datasets = datasets


class _PathsTakenError(Exception):
    """The document wants webhook paths of others."""

    def __init__(self, problems: Mapping[str, Problem], datasets: Datasets) -> None:
        super().__init__()
        self.problems = list(problems.values())
        self.reasons = {path: problem.message for path, problem in problems.items()}
        self.datasets = datasets


@dataclass(eq=False)
class Deployments:
    store: Store
    config: DispatcherConfig
    on_change: Callable[[], None]
    documents: FairReader
    quotas: QuotaBook = field(default_factory=QuotaBook)

    async def deploy(self, actor: Actor, dag: str, text: bytes, *, dry_run: bool, activate: bool) -> DeployReply:
        """`dry_run` only plans. Without `activate` the version is kept, and nothing else changes."""
        async with self.store.connection() as connection:
            org_id = await connection.fetchval(_FIND_ORG, actor.org)
            if dry_run:
                self.quotas.take_dry_run(actor.org, org_id)
            datasets = await registry.load_datasets(connection, org_id, dag)
            bundles = await _load_bundles(connection, org_id)
        for _ in range(_TRIES):
            typed = await self._read(actor.org, dag, text, _within_reach(actor, datasets), bundles)
            _check_outputs(actor, typed.dag, datasets)
            try:
                if dry_run:
                    return await self._dry_run(org_id, typed.dag)
                if org_id is None:
                    async with self.store.connection() as connection:
                        org_id = await ensure_org(connection, actor.org)
                work = partial(self._deploy, actor, org_id, dag, text, datasets, typed, activate)
                return await self._repeated(work)
            except _DatasetsChangedError as changed:
                datasets = changed.datasets
            except _PathsTakenError as conflict:
                # Read once more, which says where the document names them.
                reach = _within_reach(actor, conflict.datasets)
                await self._read(actor.org, dag, text, reach, bundles, conflict.reasons)
                raise dag_invalid(conflict.problems) from None
            except TraceError as error:
                if error.code != "dag_invalid":
                    raise
                located = await self.documents.locate(actor.org, text, error.details["problems"])
                raise dag_invalid(located) from None
        raise StoreUnavailableError(
            "The datasets of the document changed during every attempt to deploy it; repeat the call."
        )

    async def activate(self, actor: Actor, dag: str, request: ActivateRequest) -> DeployReply:
        """Make a version active that was deployed before, or one that was active before."""
        if actor.org_id is None:
            raise TraceError("dag_not_found")
        org_id = actor.org_id
        return await self._repeated(lambda: self._activate(actor, org_id, dag, request))

    async def _read(
        self,
        org: str,
        dag: str,
        text: bytes,
        datasets: Datasets,
        bundles: Mapping[str, KnownBundle],
        taken_paths: Mapping[str, str] = MappingProxyType({}),
    ) -> TypedDag:
        surroundings = Surroundings(
            runtimes=self.config.runtimes,
            datasets=datasets.known,
            bundles=bundles,
            taken_webhook_paths=taken_paths,
            udf_max_memory_mb=self.config.udf_max_memory_mb,
        )
        try:
            typed = await self.documents.read(org, text, surroundings)
        except DagInvalidError as error:
            raise dag_invalid(error.problems) from None
        if typed.dag.name != dag:
            message = f"The document is the DAG `{typed.dag.name}`, but it was sent as `{dag}`."
            raise dag_invalid([unlocated("invalid_value", message, "name")])
        return typed

    async def _repeated(self, work: Callable[[], Awaitable[DeployReply]]) -> DeployReply:
        """Repeats work that met somebody else's lock: nothing of it was written."""
        for left in reversed(range(_TRIES)):
            try:
                reply = await work()
            except HELD_UP:
                if not left:
                    raise StoreUnavailableError("The deploy conflicts with a concurrent one; repeat it.") from None
            else:
                self.on_change()
                return reply
        raise AssertionError("unreachable")

    async def _dry_run(self, org_id: UUID | None, document: Dag) -> DeployReply:
        async with self.store.transaction() as connection:
            await connection.execute(_SNAPSHOT)
            datasets = await registry.load_datasets(connection, org_id, document.name)
            pointers = await registry.load_pointers(connection, org_id, document.name)
            await self._check_paths(connection, org_id, document, datasets)
            version, new = await self._version(connection, org_id, document)
            plan = await self._plan(connection, org_id, version, new, datasets, pointers)
        return DeployReply(plan=plan.wire, dag_version_id=None if new else version.dag_version_id, duplicate=not new)

    async def _deploy(
        self, actor: Actor, org_id: UUID, dag: str, text: bytes, read_with: Datasets, typed: TypedDag, activate: bool
    ) -> DeployReply:
        document = typed.dag
        async with self.store.transaction(moving=org_id) as connection:
            datasets = await registry.load_datasets(connection, org_id, dag)
            if datasets.known != read_with.known:
                raise _DatasetsChangedError(datasets)
            pointers = await registry.load_pointers(connection, org_id, dag)
            await self._check_paths(connection, org_id, document, datasets)
            await _check_bundles(connection, org_id, document)
            version, new = await self._version(connection, org_id, document)
            plan = await self._plan(connection, org_id, version, new, datasets, pointers)
            if new:
                await check_deploys(connection, org_id, self.quotas)
                source = text.decode()
                await register(
                    connection, org_id, version, plan, source=source, created_by=actor.subject, config=self.config
                )
            await record_columns(connection, version.dag_version_id, typed.columns)
            state, changed = _state(version, pointers), new
            if activate:
                state, moved = await self._switch(connection, actor, org_id, version, plan, pointers, now=False)
                changed = changed or moved
            if changed:
                details = {"version": version.number, "duplicate": not new, "state": state}
                await audit.record(connection, org_id, actor.subject, "dag.deploy", dag, details)
        return DeployReply(plan=plan.wire, dag_version_id=version.dag_version_id, duplicate=not new, state=state)

    async def _activate(self, actor: Actor, org_id: UUID, dag: str, request: ActivateRequest) -> DeployReply:
        async with self.store.transaction(moving=org_id) as connection:
            pointers = await registry.load_pointers(connection, org_id, dag)
            version = await registry.find_version(connection, org_id, dag, request.version)
            datasets = await registry.load_datasets(connection, org_id, dag)
            if version.dag_version_id != pointers.active:
                await check_datasets(connection, org_id, version.document)
                check_circles(version.document, datasets.known)
            plan = await self._plan(connection, org_id, version, False, datasets, pointers)
            is_active = await connection.fetchval(_COUNTED, version.dag_version_id)
            state, moved = await self._switch(connection, actor, org_id, version, plan, pointers, now=request.now)
            if moved:
                back = is_active and version.dag_version_id != pointers.active
                action = "dag.rollback" if back else "dag.activate"
                details = {"version": version.number, "now": request.now, "state": state}
                await audit.record(connection, org_id, actor.subject, action, dag, details)
        return DeployReply(plan=plan.wire, dag_version_id=version.dag_version_id, duplicate=True, state=state)

    async def _check_paths(
        self, connection: Connection, org_id: UUID | None, document: Dag, datasets: Datasets
    ) -> None:
        problems = await webhook_paths.objections(connection, org_id, document)
        if problems:
            raise _PathsTakenError(problems, datasets)

    async def _switch(
        self,
        connection: Connection,
        actor: Actor,
        org_id: UUID,
        version: Version,
        plan: DeployPlan,
        pointers: DagPointers,
        *,
        now: bool,
    ) -> tuple[State, bool]:
        """Activates the version or begins its build; returns the state afterwards, and whether anything moved."""
        target = version.dag_version_id
        switch = Switch(
            connection, org_id, version.document.name, pointers, version, actor.subject, self.config.runtimes
        )
        if target == pointers.active:
            if pointers.building is None:
                return "Active", False
            await switch.call_off()
            return "Active", True
        if plan.wire.needs_build and not now:
            if target == pointers.building:
                return "Building", False
            await switch.begin_build()
            return "Building", True
        await switch.cut_over()
        return "Active", True

    async def _version(self, connection: Connection, org_id: UUID | None, document: Dag) -> tuple[Version, bool]:
        """Returns the version that this document is or will be, and whether it is a new one."""
        content_hash = await compute_beside(org_id, document_hash, document)
        existing = await registry.version_by_hash(connection, org_id, document.name, content_hash)
        if existing is not None:
            return existing, False
        return Version(new_id(), await registry.next_number(connection, org_id, document.name), document), True

    async def _plan(
        self,
        connection: Connection,
        org_id: UUID | None,
        version: Version,
        new: bool,
        datasets: Datasets,
        pointers: DagPointers,
    ) -> DeployPlan:
        stored = await registry.load_registry(
            connection, org_id, version, new_version=new, datasets=datasets, pointers=pointers, config=self.config
        )
        return await compute_beside(org_id, make_plan, version.document, stored)


async def _load_bundles(connection: Connection, org_id: UUID | None) -> dict[str, KnownBundle]:
    rows = await list_finalized(connection, org_id)
    return {
        str(row["bundle_id"]): KnownBundle(
            language=row["language"], entrypoint=row["entrypoint"], enabled=row["status"] == "ready"
        )
        for row in rows
    }


async def _check_bundles(connection: Connection, org_id: UUID, document: Dag) -> None:
    """Somebody may have disabled a bundle since the document was read; nobody does before the commit."""
    named_bundles = {index: UUID(job.udf.bundle_id) for index, job in enumerate(document.jobs) if job.udf is not None}
    enabled = await hold_enabled(connection, org_id, set(named_bundles.values()))
    problems = [
        unlocated("udf_bundle_disabled", f"The bundle `{bundle_id}` is disabled.", f"jobs[{index}].udf.bundle_id")
        for index, bundle_id in named_bundles.items()
        if bundle_id not in enabled
    ]
    if problems:
        raise dag_invalid(problems)


def _state(version: Version, pointers: DagPointers) -> State:
    if version.dag_version_id == pointers.active:
        return "Active"
    return "Building" if version.dag_version_id == pointers.building else "Created"


def _within_reach(actor: Actor, datasets: Datasets) -> Datasets:
    """The datasets that a document of the actor may read. Whoever is limited to DAGs gets to know of no others: a
    document that names one is as wrong as one that names a dataset that does not exist."""
    dags = actor.readable_dags
    if dags is None:
        return datasets
    return replace(datasets, known={name: item for name, item in datasets.known.items() if item.owner_dag in dags})


def _check_outputs(actor: Actor, document: Dag, datasets: Datasets) -> None:
    """Refuses a document that publishes into a dataset of a DAG to which the actor is not limited."""
    if actor.dags is None:
        return
    for publish in document.publish:
        existing = datasets.rows.get(publish.name)
        if existing is not None and existing.dag not in actor.dags:
            raise TraceError(
                "dag_forbidden", f"The document publishes {publish.name}, and the token is limited to other DAGs."
            )
