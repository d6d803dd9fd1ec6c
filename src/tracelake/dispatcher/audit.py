"""The audit log: every change that a user made, as a row of the transaction that made it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import msgspec

from tracelake.db.transaction import Connection

_INSERT = "INSERT INTO audit_log (org_id, subject, action, target, details) VALUES ($1, $2, $3, $4, $5)"


@dataclass(frozen=True, slots=True)
class Actor:
    """A verified user who acts, with the org that everything is looked up in."""

    subject: str
    org: str
    org_id: UUID | None
    """None while the org has nothing yet: whatever is asked for is not there."""


async def record(
    connection: Connection, org_id: UUID, subject: str, action: str, target: str, details: Mapping[str, Any]
) -> None:
    """`action` like `dag.deploy` or `task.retry`; `target` names the thing for people."""
    await connection.execute(_INSERT, org_id, subject, action, target, msgspec.json.encode(details).decode())
