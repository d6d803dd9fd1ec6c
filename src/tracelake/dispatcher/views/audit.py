"""The audit log, newest first."""

from uuid import UUID

from tracelake.db.transaction import Connection
from tracelake.dispatcher.views.shared import from_json, to_struct
from tracelake.wire.audit import AuditPage, AuditRow

_ENTRIES = """
    SELECT audit_id, at, subject, action, target, details FROM audit_log
    WHERE org_id = $1 AND ($2::bigint IS NULL OR audit_id < $2) ORDER BY audit_id DESC LIMIT $3"""


async def list_entries(connection: Connection, org_id: UUID, limit: int, cursor: int | None) -> AuditPage:
    rows = await connection.fetch(_ENTRIES, org_id, cursor, limit + 1)
    return AuditPage(
        entries=[to_struct(AuditRow, row, details=from_json(row["details"])) for row in rows[:limit]],
        next=str(rows[limit - 1]["audit_id"]) if len(rows) > limit else None,
    )
