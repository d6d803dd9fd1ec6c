"""Repairs by a person: a reorganisation reached blocks that were final, and the source may follow it.

The source gets the permission with its next attempt, as `repair` of its config. It is good for one write, which keeps
its id with the tables, and ends after a day: a later reorganisation is another question.
"""

from dataclasses import dataclass

import msgspec

from tracelake.catalogue import CATALOGUE, read_config
from tracelake.db.transaction import Store, unavailable_when_held_up
from tracelake.dispatcher import audit
from tracelake.dispatcher.audit import Actor
from tracelake.errors import TraceError
from tracelake.wire.sources_view import RepairReply

_SOURCE = """
    SELECT d.active_version, j.node_id, j.operator, j.config,
           (SELECT t.task_id FROM tasks t WHERE t.node_id = j.node_id AND t.finished_at IS NULL
            ORDER BY t.task_id DESC LIMIT 1) AS task_id
    FROM dags d
    LEFT JOIN dag_version_jobs v ON v.dag_version_id = d.active_version AND v.job_name = $3
    LEFT JOIN jobs j USING (job_id)
    WHERE d.org_id = $1 AND d.dag_name = $2"""

_PERMIT = """
    INSERT INTO source_state AS s (node_id, org_id, repair_from, repair_at) VALUES ($1, $2, $3, trace_now())
    ON CONFLICT (node_id) DO UPDATE
        SET repair_from = excluded.repair_from, repair_at = excluded.repair_at, updated_at = trace_now()"""


@dataclass(eq=False)
class SourceRepairs:
    store: Store

    async def repair(self, actor: Actor, dag: str, job: str, block: int | None) -> RepairReply:
        """Lets the source follow a reorganisation, and has files from this block on read again; None: those that
        changed, which the source finds. The caller wakes the task."""
        if actor.org_id is None:
            raise TraceError("dag_not_found")
        with unavailable_when_held_up("The source conflicts with a concurrent change; repeat the call."):
            async with self.store.transaction(routing=[actor.org_id]) as connection:
                row = await connection.fetchrow(_SOURCE, actor.org_id, dag, job)
                if row is None or row["active_version"] is None:
                    raise TraceError("dag_not_found")
                if row["node_id"] is None:
                    raise TraceError("job_not_found", "The active version of the DAG has no such job.")
                operator = CATALOGUE.get(row["operator"])
                if operator is None or not operator.fills_tables or not _seals_units(row["operator"], row["config"]):
                    raise TraceError("job_not_repairable", field="job")
                await connection.execute(_PERMIT, row["node_id"], actor.org_id, block)
                details = {"from_block": block}
                await audit.record(connection, actor.org_id, actor.subject, "source.repair", f"{dag}/{job}", details)
        return RepairReply(dag=dag, job=job, from_block=block, task_id=row["task_id"])


def _seals_units(operator: str, config: str) -> bool:
    return read_config(operator, msgspec.json.decode(config)).seals_units
