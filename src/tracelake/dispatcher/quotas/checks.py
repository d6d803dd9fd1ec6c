"""Quotas that are exact: what was counted is counted again under a lock of the org."""

import math
from uuid import UUID

from tracelake.db.transaction import Connection
from tracelake.dispatcher.predicates import is_open
from tracelake.dispatcher.quotas.book import QuotaBook, queued_tasks_exceeded
from tracelake.errors import TraceError
from tracelake.model.quota import exceeds

_NEAR = 0.8
_AT_ONCE = 1000
"""Below this share of the quota, with room for so many who ask at the same time, the last look is good enough."""

_LOCK_ORG = "SELECT FROM orgs WHERE org_id = $1 FOR NO KEY UPDATE"

_QUEUED = f"""
    SELECT count(*) FROM (
        SELECT FROM jobs j CROSS JOIN LATERAL (
            SELECT FROM tasks t
            WHERE t.job_id = j.job_id AND {is_open("t")} AND t.status = 'Queued'
            LIMIT $2) l
        WHERE j.org_id = $1 LIMIT $2) q"""  # noqa: S608

RECENT_DEPLOYS = """
    SELECT count(*) AS deploys, extract(epoch FROM min(created_at) + interval '1 hour' - trace_now())::float8 AS wait
    FROM dag_versions WHERE org_id = $1 AND created_at > trace_now() - interval '1 hour'"""


async def check_queued(connection: Connection, org_id: UUID, quotas: QuotaBook) -> None:
    """Room for one task more, before a transaction makes it. Near the quota those who ask wait for each other."""
    quotas.check_new_work(org_id)
    quota = quotas.of(org_id).queued_tasks
    if not quota or quotas.queued(org_id) + _AT_ONCE < quota * _NEAR:
        return
    await connection.execute(_LOCK_ORG, org_id)
    queued: int = await connection.fetchval(_QUEUED, org_id, quota)
    if exceeds(queued + 1, quota):
        raise queued_tasks_exceeded(queued, quota)


async def check_deploys(connection: Connection, org_id: UUID, quotas: QuotaBook) -> None:
    """Before a version is registered. The caller holds the org's lock, so two deploys count each other."""
    if quotas.holds_back(org_id) == "stored_bytes":
        quotas.check_new_work(org_id)
    quota = quotas.of(org_id).deploys_per_hour
    if not quota:
        return
    row = await connection.fetchrow(RECENT_DEPLOYS, org_id)
    assert row is not None
    if exceeds(row["deploys"] + 1, quota):
        raise TraceError(
            "quota_deploys",
            f"The organisation has deployed {row['deploys']} versions in the last hour; its quota is {quota}.",
            quota=quota,
            used=row["deploys"],
            retry_after_seconds=max(1, math.ceil(row["wait"])),
        )
