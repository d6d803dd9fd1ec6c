"""What a webhook was sent, newest first; and one body, as it came."""

from uuid import UUID

from tracelake.db.transaction import Connection
from tracelake.dispatcher.records import to_struct
from tracelake.errors import TraceError
from tracelake.wire.webhooks import DeliveriesPage, DeliveryRow

_NODE = """
    SELECT d.active_version, j.node_id FROM dags d
    LEFT JOIN dag_version_jobs v ON v.dag_version_id = d.active_version AND v.job_name = $3
    LEFT JOIN jobs j ON j.job_id = v.job_id
    WHERE d.org_id = $1 AND d.dag_name = $2"""

_LIST = """
    SELECT number, delivery_id, content_type, length(body) AS size_bytes, body_hash, received_at
    FROM webhook_deliveries WHERE node_id = $1 AND number < $2 ORDER BY number DESC LIMIT $3"""

# An id may have characters that a path cannot carry; a number never has.
_BODY = """
    SELECT content_type, body FROM webhook_deliveries WHERE node_id = $1 AND (delivery_id = $2 OR number = $3)
    ORDER BY delivery_id = $2 DESC LIMIT 1"""

_END = 2**63 - 1


async def list_deliveries(
    connection: Connection, org_id: UUID, dag: str, job: str, limit: int, cursor: int | None
) -> DeliveriesPage:
    node_id = await _node(connection, org_id, dag, job)
    rows = await connection.fetch(_LIST, node_id, _END if cursor is None else cursor, limit + 1)
    return DeliveriesPage(
        deliveries=[to_struct(DeliveryRow, row) for row in rows[:limit]],
        next=str(rows[limit - 1]["number"]) if len(rows) > limit else None,
    )


async def delivery_body(
    connection: Connection, org_id: UUID, dag: str, job: str, delivery_id: str
) -> tuple[str, bytes]:
    """Content type and body."""
    node_id = await _node(connection, org_id, dag, job)
    digits = delivery_id.isascii() and delivery_id.isdigit() and len(delivery_id) <= 18
    row = await connection.fetchrow(_BODY, node_id, delivery_id, int(delivery_id) if digits else None)
    if row is None:
        raise TraceError("delivery_not_found")
    return row["content_type"], row["body"]


async def _node(connection: Connection, org_id: UUID, dag: str, job: str) -> UUID:
    row = await connection.fetchrow(_NODE, org_id, dag, job)
    if row is None or row["active_version"] is None:
        raise TraceError("dag_not_found")
    if row["node_id"] is None:
        raise TraceError("job_not_found", "The active version of the DAG has no such job.")
    node_id: UUID = row["node_id"]
    return node_id
