"""Grants to write a buffered dataset of another DAG.

A deploy refuses a writer without one. The owner may take it back while tasks of the writer run: what they publish from
then on is refused.
"""

from tracelake.db.transaction import Connection
from tracelake.errors import TraceError
from tracelake.wire.task_calls import BufferPublishRequest

_REVOKED = """
    SELECT d.name, d.dag_name FROM tasks t JOIN jobs j USING (job_id) JOIN job_outputs o USING (job_id)
    JOIN datasets d USING (dataset_uuid)
    WHERE t.task_id = $1 AND (d.dataset_uuid = $2 OR d.name = $3)
      AND d.dag_name <> j.dag_name AND j.node_id IS NOT NULL AND NOT j.dag_name = ANY(d.writers)"""


async def check_grant(connection: Connection, body: BufferPublishRequest) -> None:
    """Raises `dataset_forbidden` if another DAG owns the dataset and does not let the task's DAG write it."""
    row = await connection.fetchrow(_REVOKED, body.task_id, body.dataset_uuid, body.dedupe_scope)
    if row is not None:
        message = (
            f"The DAG `{row['dag_name']}` owns the dataset and does not list this task's DAG in "
            f"`publish.{row['name']}.writers`: add it there, or publish under another name."
        )
        raise TraceError("dataset_forbidden", message, field="dataset_uuid" if body.dataset_uuid else "dedupe_scope")
