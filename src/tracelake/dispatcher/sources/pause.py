"""Pauses by a person: a source of any kind is told to emit nothing, and what it emits all the same is kept unrouted.

A pause is a person's word about a job of a DAG, by name: it holds for every node that the job has had, and a node that
comes later takes it over with its first run. It lasts until somebody ends it, through deploys and restarts.
"""

from collections.abc import Callable, Collection
from uuid import UUID

from tracelake.db.transaction import Connection, Store, unavailable_when_held_up
from tracelake.dispatcher import audit
from tracelake.dispatcher.audit import Actor
from tracelake.errors import TraceError
from tracelake.wire.sources_view import PauseReply

_SOURCE = """
    SELECT d.active_version, j.node_id, j.document->'source' IS NOT NULL AS source, s.paused_by, s.paused_at
    FROM dags d
    LEFT JOIN dag_version_jobs v ON v.dag_version_id = d.active_version AND v.job_name = $3
    LEFT JOIN jobs j USING (job_id)
    LEFT JOIN source_state s USING (node_id)
    WHERE d.org_id = $1 AND d.dag_name = $2"""

_PAUSE = """
    INSERT INTO source_state (node_id, org_id, paused_by, paused_at)
    SELECT node_id, org_id, $4, trace_now() FROM nodes WHERE org_id = $1 AND dag_name = $2 AND job_name = $3
    ORDER BY node_id
    ON CONFLICT (node_id) DO UPDATE
        SET paused_by = excluded.paused_by, paused_at = excluded.paused_at, updated_at = trace_now()
    RETURNING paused_at"""

_LOCK = """
    SELECT FROM source_state s JOIN nodes n USING (node_id)
    WHERE n.org_id = $1 AND n.dag_name = $2 AND n.job_name = $3 ORDER BY s.node_id FOR UPDATE OF s"""

_RESUME = """
    UPDATE source_state s SET paused_by = NULL, paused_at = NULL, updated_at = trace_now() FROM nodes n
    WHERE n.node_id = s.node_id AND n.org_id = $1 AND n.dag_name = $2 AND n.job_name = $3 AND s.paused_at IS NOT NULL"""

_INHERIT = """
    INSERT INTO source_state (node_id, org_id, paused_by, paused_at)
    SELECT DISTINCT ON (n.node_id) n.node_id, n.org_id, s.paused_by, s.paused_at
    FROM nodes n JOIN nodes o USING (org_id, dag_name, job_name) JOIN source_state s ON s.node_id = o.node_id
    WHERE n.node_id = ANY($1) AND s.paused_at IS NOT NULL
    ORDER BY n.node_id, s.paused_at DESC
    ON CONFLICT DO NOTHING"""


async def inherit_pauses(connection: Connection, node_ids: Collection[UUID]) -> None:
    """Pauses new nodes of a job that is paused."""
    await connection.execute(_INHERIT, list(node_ids))


class SourcePauses:
    def __init__(self, store: Store, on_change: Callable[[], None]) -> None:
        self._store = store
        self._on_change = on_change

    async def pause(self, actor: Actor, dag: str, job: str) -> PauseReply:
        return await self._say(actor, dag, job, paused=True)

    async def resume(self, actor: Actor, dag: str, job: str) -> PauseReply:
        return await self._say(actor, dag, job, paused=False)

    async def _say(self, actor: Actor, dag: str, job: str, *, paused: bool) -> PauseReply:
        if actor.org_id is None:
            raise TraceError("dag_not_found")
        with unavailable_when_held_up("The source conflicts with a concurrent change; repeat the call."):
            reply = await self._change(actor, actor.org_id, dag, job, paused)
        if not reply.duplicate:
            self._on_change()
        return reply

    async def _change(self, actor: Actor, org_id: UUID, dag: str, job: str, paused: bool) -> PauseReply:
        key = (org_id, dag, job)
        async with self._store.transaction(routing=[org_id]) as connection:
            await connection.execute(_LOCK, *key)
            source_row = await connection.fetchrow(_SOURCE, *key)
            if source_row is None or source_row["active_version"] is None:
                raise TraceError("dag_not_found")
            if source_row["node_id"] is None:
                raise TraceError("job_not_found", "The active version of the DAG has no such job.")
            if not source_row["source"]:
                raise TraceError("job_not_source", field="job")
            if paused == (source_row["paused_at"] is not None):
                by, at = source_row["paused_by"], source_row["paused_at"]
                return PauseReply(dag=dag, job=job, paused=paused, paused_by=by, paused_at=at, duplicate=True)
            action = "source.pause" if paused else "source.resume"
            await audit.record(connection, org_id, actor.subject, action, f"{dag}/{job}", {})
            if not paused:
                await connection.execute(_RESUME, *key)
                return PauseReply(dag=dag, job=job, paused=False)
            at = await connection.fetchval(_PAUSE, *key, actor.subject)
            return PauseReply(dag=dag, job=job, paused=True, paused_by=actor.subject, paused_at=at)
