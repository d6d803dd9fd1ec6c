"""Since when checks have been as they are: results of before are of another rule, and say nothing of this one.

A result does not say which rule it is of. Each attempt gets the checks of the version that was active at its claim, so
the history of activations tells. Versions that were deleted are not in it: what is older counts as of the same rule.
"""

from collections.abc import Iterable
from datetime import datetime
from uuid import UUID

import msgspec

from tracelake.db.transaction import Connection
from tracelake.model.dag import OutputCheck

MAX_ACTIVATIONS = 100
"""Of one job, that are looked at."""

# Only versions that have the node: its generations are its own.
_HISTORY = f"""
    SELECT n.node_id, h.cutover_at, h.checks
    FROM unnest($1::uuid[]) AS n(node_id) CROSS JOIN LATERAL (
        SELECT a.cutover_at, j.document -> 'checks' AS checks
        FROM jobs j JOIN dag_version_jobs v USING (job_id) JOIN activations a USING (dag_version_id)
        WHERE j.node_id = n.node_id AND a.cutover_at IS NOT NULL
        ORDER BY a.cutover_at DESC LIMIT {MAX_ACTIVATIONS}) h
    ORDER BY n.node_id, h.cutover_at DESC"""  # noqa: S608 - constants only

_CHECKS = msgspec.json.Decoder(list[OutputCheck] | None)


class CheckHistory:
    """The checks of some jobs over time, the newest first."""

    def __init__(self, versions: dict[UUID, list[tuple[datetime, list[OutputCheck]]]]) -> None:
        self._versions = versions

    @classmethod
    async def read(cls, connection: Connection, node_ids: Iterable[UUID | None]) -> "CheckHistory":
        nodes = list({node_id for node_id in node_ids if node_id is not None})
        versions: dict[UUID, list[tuple[datetime, list[OutputCheck]]]] = {}
        for row in await connection.fetch(_HISTORY, nodes) if nodes else []:
            checks = _CHECKS.decode(row["checks"] or "null") or []
            versions.setdefault(row["node_id"], []).append((row["cutover_at"], checks))
        return cls(versions)

    def changed_at(self, node_id: UUID | None, check: OutputCheck) -> datetime | None:
        """When the rule of a check was changed for the last time; None if it never was."""
        since: datetime | None = None
        for cutover_at, checks in self._versions.get(node_id, []) if node_id is not None else []:
            earlier = next((item for item in checks if _is_named_like(item, check)), None)
            if earlier is None or _rule(earlier) != _rule(check):
                return since
            since = cutover_at
        return None


def _is_named_like(item: OutputCheck, check: OutputCheck) -> bool:
    return (item.output_index, item.name) == (check.output_index, check.name)


def _rule(check: OutputCheck) -> OutputCheck:
    """What must hold, however grave it is if it does not."""
    return msgspec.structs.replace(check, severity="error")
