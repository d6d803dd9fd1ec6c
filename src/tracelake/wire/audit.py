"""The audit log in the user API."""

from datetime import datetime
from typing import Any

from tracelake.wire.base import Reply


class AuditRow(Reply, frozen=True, kw_only=True):
    audit_id: int
    at: datetime
    subject: str
    action: str
    target: str
    details: Any = None


class AuditPage(Reply, frozen=True, kw_only=True):
    entries: list[AuditRow]
    next: str | None = None
