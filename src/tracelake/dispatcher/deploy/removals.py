"""Removing a DAG, restoring it, and having it deleted for good.

A removal is a cutover to no version: nothing is routed, claimed or fired any more, and everything stays where it is.
The DAG and its datasets are marked, so that nobody finds them by their names. To restore it is to make the same version
active again, which catches up with the events that came meanwhile. A purge only marks the DAG; a loop deletes it
(`retention/removed_dags.py`).

All three hold the org's exclusive lock, so they exclude deploys, cutovers and each other, and each may be repeated.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar
from uuid import UUID

import asyncpg

from tracelake.db.transaction import HELD_UP, Connection, Store
from tracelake.dispatcher import audit
from tracelake.dispatcher.audit import Actor
from tracelake.dispatcher.config import DispatcherConfig
from tracelake.dispatcher.deploy import registry
from tracelake.dispatcher.deploy.circles import check_circles
from tracelake.dispatcher.deploy.cutover import Switch
from tracelake.dispatcher.deploy.registry import DagPointers, Version
from tracelake.dispatcher.removed_names import find_removed_dag
from tracelake.dispatcher.views.removals import find_readers
from tracelake.dispatcher.views.words import counted
from tracelake.errors import StoreUnavailableError, TraceError
from tracelake.model.dag import CheckKind, Dag
from tracelake.wire.removal import DagReader, RemovalReply

R = TypeVar("R")

_TRIES = 3
_READERS_NAMED = 5

_DAG = """
    SELECT active_version, building_version, removed_at, removed_version, restorable_until, purged_at
    FROM dags WHERE org_id = $1 AND dag_name = $2 FOR UPDATE"""

_REMOVE = """
    UPDATE dags SET removed_at = trace_now(), removed_by = $3, removed_version = $4,
        restorable_until = CASE WHEN $5::interval > interval '0' THEN trace_now() + $5::interval END
    WHERE org_id = $1 AND dag_name = $2 RETURNING removed_at, restorable_until"""

_RESTORE = """
    UPDATE dags SET removed_at = NULL, removed_by = NULL, removed_version = NULL, restorable_until = NULL
    WHERE org_id = $1 AND dag_name = $2"""

_MARK_DATASETS = """
    UPDATE datasets SET removed_at = CASE WHEN $3 THEN trace_now() END WHERE org_id = $1 AND dag_name = $2"""

_PURGE = "UPDATE dags SET purged_at = trace_now() WHERE org_id = $1 AND dag_name = $2"

_EPOCH = "UPDATE orgs SET routing_epoch = routing_epoch + 1 WHERE org_id = $1"

_WAS_ACTIVE = "SELECT EXISTS (SELECT FROM activations WHERE dag_version_id = $1 AND cutover_at IS NOT NULL)"

# Of the names, those that no dataset has, and those whose DAG was removed.
_MISSING = """
    SELECT n.name, d.dag_name FROM unnest($2::text[]) AS n(name)
    LEFT JOIN datasets d ON d.org_id = $1 AND d.name = n.name
    WHERE d.dataset_uuid IS NULL OR d.removed_at IS NOT NULL ORDER BY n.name"""


@dataclass(eq=False)
class Removals:
    store: Store
    config: DispatcherConfig
    on_change: Callable[[], None]
    on_purge: Callable[[], None]

    async def remove(self, actor: Actor, dag: str) -> RemovalReply:
        """Archives the DAG. Raises `dag_in_use` while jobs of other DAGs need one of its datasets."""
        return await self._repeated(lambda: self._remove(actor, _org(actor), dag))

    async def restore(self, actor: Actor, dag: str) -> RemovalReply:
        """Brings a removed DAG back with the version that was active."""
        return await self._repeated(lambda: self._restore(actor, _org(actor), dag))

    async def purge(self, actor: Actor, dag: str) -> RemovalReply:
        """Has a removed DAG deleted now. There is no way back."""
        reply = await self._repeated(lambda: self._purge(actor, _org(actor), dag))
        self.on_purge()
        return reply

    async def _remove(self, actor: Actor, org_id: UUID, dag: str) -> RemovalReply:
        async with self.store.transaction(moving=org_id) as connection:
            row = await _lock_dag(connection, org_id, dag)
            if row["removed_at"] is not None:
                return _removed(dag, row, duplicate=True)
            readers = await find_readers(connection, org_id, dag)
            if readers:
                raise _in_use(actor, dag, readers)
            pointers = DagPointers(row["active_version"], row["building_version"])
            version_id = pointers.active or pointers.building
            version = None if version_id is None else await registry.version_by_id(connection, version_id)
            if version is not None:
                await self._switch(connection, actor, org_id, dag, pointers, version).withdraw()
            retention = timedelta(days=self.config.removed_retention_days)
            removed = await connection.fetchrow(_REMOVE, org_id, dag, actor.subject, version_id, retention)
            assert removed is not None
            await connection.execute(_MARK_DATASETS, org_id, dag, True)
            await connection.execute(_EPOCH, org_id)
            details = {
                "version": None if version is None else version.number,
                "restorable_until": removed["restorable_until"],
            }
            await audit.record(connection, org_id, actor.subject, "dag.remove", dag, details)
        return _removed(dag, removed, duplicate=False)

    async def _restore(self, actor: Actor, org_id: UUID, dag: str) -> RemovalReply:
        async with self.store.transaction(moving=org_id) as connection:
            row = await _lock_dag(connection, org_id, dag)
            if row["removed_at"] is None:
                return RemovalReply(dag=dag, state="restored", duplicate=True)
            if row["purged_at"] is not None:
                refusal = await find_removed_dag(connection, org_id, dag)
                assert refusal is not None
                raise TraceError("dag_purged", refusal.message, **refusal.details)
            await connection.execute(_RESTORE, org_id, dag)
            await connection.execute(_MARK_DATASETS, org_id, dag, False)
            number = None
            if row["removed_version"] is not None:
                version = await registry.version_by_id(connection, row["removed_version"])
                number = version.number
                await self._activate(connection, actor, org_id, dag, version)
            await connection.execute(_EPOCH, org_id)
            await audit.record(connection, org_id, actor.subject, "dag.restore", dag, {"version": number})
        return RemovalReply(dag=dag, state="restored", version=number)

    async def _activate(self, connection: Connection, actor: Actor, org_id: UUID, dag: str, version: Version) -> None:
        await check_datasets(connection, org_id, version.document)
        datasets = await registry.load_datasets(connection, org_id, dag)
        check_circles(version.document, datasets.known)
        switch = self._switch(connection, actor, org_id, dag, DagPointers(None, None), version)
        if await connection.fetchval(_WAS_ACTIVE, version.dag_version_id):
            await switch.cut_over()
        else:
            await switch.begin_build()

    async def _purge(self, actor: Actor, org_id: UUID, dag: str) -> RemovalReply:
        async with self.store.transaction(moving=org_id) as connection:
            row = await _lock_dag(connection, org_id, dag)
            if row["removed_at"] is None:
                raise TraceError("dag_not_removed", f"The DAG {dag} is not removed: `trace remove {dag}` first.")
            duplicate = row["purged_at"] is not None
            if not duplicate:
                await connection.execute(_PURGE, org_id, dag)
                await audit.record(connection, org_id, actor.subject, "dag.purge", dag, {})
        return RemovalReply(dag=dag, state="purging", duplicate=duplicate, removed_at=row["removed_at"])

    def _switch(
        self,
        connection: Connection,
        actor: Actor,
        org_id: UUID,
        dag: str,
        before: DagPointers,
        version: Version,
    ) -> Switch:
        return Switch(connection, org_id, dag, before, version, actor.subject, self.config.runtimes)

    async def _repeated(self, work: Callable[[], Awaitable[R]]) -> R:
        """Repeats work that met somebody else's lock: nothing of it was written."""
        for left in reversed(range(_TRIES)):
            try:
                reply = await work()
            except HELD_UP:
                if not left:
                    raise StoreUnavailableError("The call conflicts with a concurrent change; repeat it.") from None
            else:
                self.on_change()
                return reply
        raise AssertionError("unreachable")


async def check_datasets(connection: Connection, org_id: UUID, document: Dag) -> None:
    """Raises `dataset_removed` if a dataset of another DAG that the document names is not there any more."""
    names = {item.dataset for job in document.jobs for item in job.inputs if item.dataset is not None}
    names |= {publish.name for publish in document.publish if publish.owner is not None}
    names |= {
        check.dataset
        for job in document.jobs
        for check in job.checks
        if check.kind is CheckKind.RELATIONSHIP and check.dataset is not None
    } - {publish.name for publish in document.publish}
    missing = await connection.fetch(_MISSING, org_id, sorted(names))
    if not missing:
        return
    name, owner = missing[0]["name"], missing[0]["dag_name"]
    if owner is None:
        cure = "Deploy a document that does not need it."
    else:
        cure = f"It was removed with the DAG {owner}; restore that first: `trace remove --undo {owner}`."
    datasets = [row["name"] for row in missing]
    raise TraceError(
        "dataset_removed", f"The version needs the dataset {name}, which is not there. {cure}", datasets=datasets
    )


def _org(actor: Actor) -> UUID:
    if actor.org_id is None:
        raise TraceError("dag_not_found")
    return actor.org_id


async def _lock_dag(connection: Connection, org_id: UUID, dag: str) -> asyncpg.Record:
    row = await connection.fetchrow(_DAG, org_id, dag)
    if row is None:
        raise TraceError("dag_not_found")
    return row


def _removed(dag: str, row: asyncpg.Record, *, duplicate: bool) -> RemovalReply:
    return RemovalReply(
        dag=dag,
        state="purging" if duplicate and row["purged_at"] is not None else "removed",
        duplicate=duplicate,
        removed_at=row["removed_at"],
        restorable_until=row["restorable_until"],
    )


def _in_use(actor: Actor, dag: str, readers: list[DagReader]) -> TraceError:
    """Names the jobs of DAGs that the actor may see, and counts the others."""
    dags = actor.readable_dags
    visible_readers = [item for item in readers if dags is None or item.dag in dags]
    jobs = [f"{item.dag}/{item.job} {item.how} {item.dataset}" for item in visible_readers[:_READERS_NAMED]]
    listed = ", ".join(jobs)
    if more := len(readers) - len(jobs):
        listed = f"{listed} and {more} more" if jobs else f"{counted(more, 'job')} that your token does not reach"
    text = f"Other DAGs need datasets of {dag}: {listed}."
    return TraceError("dag_in_use", text, readers=visible_readers)
