"""The audit log, newest first."""

from uuid import UUID

from tracelake.db.transaction import Connection
from tracelake.dispatcher.public_ids import OrgIds
from tracelake.dispatcher.records import to_struct
from tracelake.dispatcher.views.shared import from_json
from tracelake.wire.audit import AuditPage, AuditRow

_ENTRIES = """
    SELECT audit_id, at, subject, action, target, details FROM audit_log
    WHERE org_id = $1 AND ($2::bigint IS NULL OR audit_id < $2) ORDER BY audit_id DESC LIMIT $3"""


async def list_entries(connection: Connection, org_id: UUID, ids: OrgIds, limit: int, cursor: int | None) -> AuditPage:
    below = None if cursor is None else ids.audit.open(cursor)
    rows = await connection.fetch(_ENTRIES, org_id, below, limit + 1)
    return AuditPage(
        entries=[
            to_struct(AuditRow, row, audit_id=ids.audit.seal(row["audit_id"]), details=from_json(row["details"]))
            for row in rows[:limit]
        ],
        next=str(ids.audit.seal(rows[limit - 1]["audit_id"])) if len(rows) > limit else None,
    )
