"""What a webhook was sent, newest first; one body, as it came; and the deliveries of a task's unit."""

from uuid import UUID

from tracelake.db.transaction import Connection
from tracelake.dispatcher.records import to_struct
from tracelake.errors import TraceError
from tracelake.wire.task_calls import TaskDeliveriesReply, TaskDelivery
from tracelake.wire.units import Unit
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

# The source that has this output, in any version: all of them share the node, and its deliveries.
_SOURCE = """
    SELECT DISTINCT j.node_id FROM job_outputs o JOIN jobs j USING (job_id)
    WHERE o.dataset_uuid = $1 AND o.dataset_version = $2 AND j.org_id = $3
      AND j.document #>> '{source,kind}' = 'webhook'"""

_OF_UNIT = """
    SELECT number, delivery_id, received_at, content_type, body FROM webhook_deliveries
    WHERE node_id = $1 AND number > $2 AND number <= $3 ORDER BY number LIMIT $4"""

_OLDEST = "SELECT min(number) FROM webhook_deliveries WHERE node_id = $1 AND number <= $2"

_END = 2**63 - 1
PAGE = 100
"""Deliveries of one answer to a task."""
PAGE_BYTES = 4 * 2**20
"""Bodies of one answer, unless a single one is larger."""


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


async def list_task_deliveries(
    connection: Connection, org_id: UUID, generation: tuple[UUID, UUID], unit: Unit, after: int | None
) -> TaskDeliveriesReply:
    """The deliveries of a task's unit, by their numbers, none left out; or the error that some are gone.

    A first unit begins before all numbers: it has what is kept. Later units begin where the one before them ended.
    """
    if unit.cursor is None:
        message = "The unit of the task does not count deliveries: the source needs `unit: delivery`."
        raise TraceError("dataset_forbidden", message, field="dataset_uuid")
    nodes = await connection.fetch(_SOURCE, *generation, org_id)
    if len(nodes) != 1:
        raise TraceError("dataset_forbidden", "The dataset is not of a webhook source.", field="dataset_uuid")
    node_id, last = nodes[0]["node_id"], unit.cursor.to
    first = unit.cursor.after + 1
    if first <= 1:
        oldest = await connection.fetchval(_OLDEST, node_id, last)
        first = last if oldest is None else oldest
    begin = first if after is None else after + 1
    rows = await connection.fetch(_OF_UNIT, node_id, begin - 1, last, PAGE)
    deliveries: list[TaskDelivery] = []
    size = 0
    for row in rows:
        size += len(row["body"])
        if deliveries and size > PAGE_BYTES:
            break
        deliveries.append(to_struct(TaskDelivery, row))
    numbers = [item.number for item in deliveries]
    if numbers != list(range(begin, begin + len(numbers))) or (not numbers and begin <= last):
        missing = next((begin + at for at, number in enumerate(numbers) if number != begin + at), begin)
        raise TraceError("deliveries_deleted", f"Delivery {missing} of the source is not kept any more.")
    more = bool(numbers) and numbers[-1] < last
    return TaskDeliveriesReply(deliveries=deliveries, next=numbers[-1] if more else None)


async def _node(connection: Connection, org_id: UUID, dag: str, job: str) -> UUID:
    row = await connection.fetchrow(_NODE, org_id, dag, job)
    if row is None or row["active_version"] is None:
        raise TraceError("dag_not_found")
    if row["node_id"] is None:
        raise TraceError("job_not_found", "The active version of the DAG has no such job.")
    node_id: UUID = row["node_id"]
    return node_id
