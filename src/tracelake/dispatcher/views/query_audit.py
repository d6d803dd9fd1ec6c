"""The queries of an org, newest first: who read what, never the text of a query."""

from uuid import UUID

import msgspec

from tracelake.db.transaction import Connection
from tracelake.dispatcher.records import to_struct
from tracelake.wire.query import QueriedDataset, QueryAuditEntry, QueryAuditPage

_ENTRIES = """
    SELECT run_id, query_id, at, subject, outcome, row_count, bytes_read, duration_ms, sql_sha256, datasets
    FROM query_audit WHERE org = $1 AND ($2::uuid IS NULL OR run_id < $2) ORDER BY run_id DESC LIMIT $3"""


async def list_queries(connection: Connection, org: str, limit: int, cursor: UUID | None) -> QueryAuditPage:
    rows = await connection.fetch(_ENTRIES, org, cursor, limit + 1)
    return QueryAuditPage(
        entries=[
            to_struct(QueryAuditEntry, row, datasets=msgspec.json.decode(row["datasets"], type=list[QueriedDataset]))
            for row in rows[:limit]
        ],
        next=str(rows[limit - 1]["run_id"]) if len(rows) > limit else None,
    )
