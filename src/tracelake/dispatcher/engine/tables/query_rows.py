"""What the task of a batch query has besides its row: its text, and the moments that its inputs are pinned to."""

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from tracelake.db.transaction import Connection

_CONFIGS = "SELECT task_id, config FROM batch_queries WHERE task_id = ANY($1) AND config IS NOT NULL"

_PINNED = "SELECT as_of FROM batch_query_inputs WHERE task_id = $1 AND dataset_uuid = $2 AND dataset_version = $3"


async def load_configs(connection: Connection, task_ids: Sequence[UUID]) -> dict[UUID, str]:
    """The configs of tasks of batch queries; none for a query that ended."""
    if not task_ids:
        return {}
    return {row["task_id"]: row["config"] for row in await connection.fetch(_CONFIGS, list(task_ids))}


async def read_pin(connection: Connection, task_id: UUID, generation: tuple[UUID, UUID]) -> datetime | None:
    """The moment whose files of the generation the task reads; None for a table, and for a query that ended."""
    moment: datetime | None = await connection.fetchval(_PINNED, task_id, *generation)
    return moment
