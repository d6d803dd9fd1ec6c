"""The audit log: every change that a user made, as a row of the transaction that made it; and every query."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import msgspec

from tracelake.db.transaction import Connection
from tracelake.errors import TraceError
from tracelake.wire.query import QueryAuditRecord, QueryAuditReply

_INSERT = "INSERT INTO audit_log (org_id, subject, action, target, details) VALUES ($1, $2, $3, $4, $5)"

_INSERT_QUERY = """
    INSERT INTO query_audit (org, run_id, query_id, subject, datasets, row_count, bytes_read, duration_ms, outcome,
                             sql_sha256)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) ON CONFLICT DO NOTHING"""

_ORG_NAME = "SELECT name FROM orgs WHERE org_id = $1"


@dataclass(frozen=True, slots=True)
class Actor:
    """A verified user who acts, with the org that everything is looked up in."""

    subject: str
    org: str
    org_id: UUID | None
    """None while the org has nothing yet: whatever is asked for is not there."""
    dags: tuple[str, ...] | None = None
    """The DAGs to which the user's token is limited; None: all."""
    read_dags: tuple[str, ...] = ()
    """DAGs that a limited token may read besides those."""

    @property
    def readable_dags(self) -> tuple[str, ...] | None:
        """The DAGs whose things the user may see; None: all of the org."""
        return None if self.dags is None else tuple(sorted({*self.dags, *self.read_dags}))


async def record(
    connection: Connection, org_id: UUID, subject: str, action: str, target: str, details: Mapping[str, Any]
) -> None:
    """`action` like `dag.deploy` or `task.retry`; `target` names the thing for people."""
    await connection.execute(_INSERT, org_id, subject, action, target, msgspec.json.encode(details).decode())


async def record_query(connection: Connection, query: QueryAuditRecord) -> QueryAuditReply:
    org = query.org or await connection.fetchval(_ORG_NAME, query.token_org_id)
    if org is None:
        raise TraceError(
            "body_invalid", "A record names the org of its query: `org`, or `token_org_id` of one that is.", field="org"
        )
    tag = await connection.execute(
        _INSERT_QUERY,
        org,
        query.run_id,
        query.query_id,
        query.subject,
        msgspec.json.encode(query.datasets).decode(),
        query.row_count,
        query.bytes_read,
        query.duration_ms,
        query.outcome,
        query.sql_sha256,
    )
    return QueryAuditReply(duplicate=tag == "INSERT 0 0")
