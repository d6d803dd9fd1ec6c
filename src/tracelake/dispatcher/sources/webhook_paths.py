"""Webhooks as deploys and admins see them: whose a path is, and the secret of a source.

A path belongs to the first job of its org that uses it in a version that is activated, for ever, so that no other job
gets what is sent to an old address. Orgs may have the same path and do not learn of each other: the signature says for
which of them a delivery is. It answers while the active version of its DAG has it. The secret belongs to the job,
whatever path it has; it is derived and never stored.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

import asyncpg

from tracelake.db.transaction import Connection, Store, unavailable_when_held_up
from tracelake.dispatcher import audit
from tracelake.dispatcher.audit import Actor
from tracelake.dispatcher.config import DispatcherConfig
from tracelake.errors import TraceError
from tracelake.model.dag import Dag, Problem, unlocated
from tracelake.ports import WebhookSecrets
from tracelake.wire.webhooks import DELIVERY_HEADER, SIGNATURE_HEADER, WebhookReply

_OWNERS = "SELECT path, dag_name, job_name FROM webhooks WHERE org_id = $1 AND path = ANY($2)"

# A new path of a job that has one already takes over where its secret stands, and begins no lower than the floor that a
# restore has left.
_TAKE = """
    INSERT INTO webhooks (path, org_id, dag_name, job_name, rotation, previous_until)
    SELECT u.path, $1, $2, u.job_name, coalesce(s.rotation, 1), s.previous_until
    FROM unnest($3::text[], $4::text[]) AS u(path, job_name)
    LEFT JOIN LATERAL (
        SELECT rotation, previous_until FROM webhooks WHERE org_id = $1 AND dag_name = $2 AND job_name = u.job_name
        UNION ALL
        SELECT rotation, previous_until FROM webhook_floors
        WHERE org_id = $1 AND dag_name = $2 AND job_name = u.job_name
        ORDER BY rotation DESC, previous_until DESC NULLS LAST LIMIT 1) s ON true
    ORDER BY u.path
    ON CONFLICT (path, org_id) DO NOTHING"""

# Only what the active version has, with the path that it has there.
_ACTIVE = """
    FROM webhooks w
    JOIN dags d ON d.org_id = w.org_id AND d.dag_name = w.dag_name
    JOIN orgs o ON o.org_id = w.org_id
    JOIN dag_version_jobs v ON v.dag_version_id = d.active_version AND v.job_name = w.job_name
    JOIN jobs j ON j.job_id = v.job_id AND j.document -> 'source' ->> 'webhook_path' = w.path"""

_COLUMNS = """
    SELECT w.path, w.org_id, w.dag_name, w.job_name, w.rotation,
           CASE WHEN w.previous_until > trace_now() THEN w.previous_until END AS previous_until,
           j.job_id, o.routing_epoch, trace_now() AS now,
           j.document #>> '{source,unit}' IS NOT DISTINCT FROM 'delivery' AS by_delivery"""

MOST_OF_A_PATH = 64
"""Orgs that may have the same path; the oldest ones, if there are more."""

_BY_PATH = f"{_COLUMNS} {_ACTIVE} WHERE w.path = $1 ORDER BY w.taken_at, w.org_id LIMIT {MOST_OF_A_PATH}"

_BY_JOB = f"{_COLUMNS} {_ACTIVE} WHERE w.org_id = $1 AND w.dag_name = $2 AND w.job_name = $3"

_ROTATE = """
    UPDATE webhooks SET rotation = rotation + 1, previous_until = trace_now() + $4::interval
    WHERE org_id = $1 AND dag_name = $2 AND job_name = $3"""

# Two rotations at once: the second sees what the first has done.
_LOCK = """
    SELECT path FROM webhooks WHERE org_id = $1 AND dag_name = $2 AND job_name = $3 ORDER BY path FOR UPDATE"""


@dataclass(frozen=True, slots=True)
class Webhook:
    """A webhook that answers now."""

    path: str
    org_id: UUID
    dag: str
    job: str
    rotation: int
    previous_until: datetime | None
    job_id: UUID
    routing_epoch: int
    now: datetime
    by_delivery: bool = False
    """Each delivery is a unit by its number, whatever its body names."""

    def secrets(self, secrets: WebhookSecrets) -> list[str]:
        """Every secret that is good now, the current one first."""
        rotations = [self.rotation] if self.previous_until is None else [self.rotation, self.rotation - 1]
        return [secrets.secret(self.org_id, self.dag, self.job, rotation) for rotation in rotations]


# --- deploys


async def objections(connection: Connection, org_id: UUID | None, document: Dag) -> dict[str, Problem]:
    """Returns a problem for each path of the document that belongs to another job of the same org."""
    paths = _paths(document)
    if not paths or org_id is None:
        return {}
    rows = await connection.fetch(_OWNERS, org_id, [path for path, _ in paths])
    owners = {row["path"]: (row["dag_name"], row["job_name"]) for row in rows}
    return {
        path: _taken(path, job, *owners[path])
        for path, job in paths
        if path in owners and owners[path] != (document.name, job)
    }


async def take_paths(connection: Connection, org_id: UUID, document: Dag) -> list[Problem]:
    """Takes the paths of a version that is about to become active; returns what others took since its plan."""
    wanted_paths = _paths(document)
    if not wanted_paths:
        return []
    paths, jobs = [path for path, _ in wanted_paths], [job for _, job in wanted_paths]
    await connection.execute(_TAKE, org_id, document.name, paths, jobs)
    return list((await objections(connection, org_id, document)).values())


def _paths(document: Dag) -> list[tuple[str, str]]:
    return [
        (job.source.webhook_path, job.name)
        for job in document.jobs
        if job.source is not None and job.source.webhook_path is not None
    ]


def _taken(path: str, job: str, owner_dag: str, owner_job: str) -> Problem:
    message = f"The path `{path}` belongs to `{owner_dag}/{owner_job}`."
    return unlocated("webhook_path_taken", message, f"jobs.{job}.source.webhook_path", "Choose another path.")


# --- those that answer


async def find_by_path(connection: Connection, path: str) -> list[Webhook]:
    """Finds the webhooks of all orgs that have this path."""
    return [Webhook(*row) for row in await connection.fetch(_BY_PATH, path)]


async def find_by_job(connection: Connection, org_id: UUID, dag: str, job: str) -> Webhook:
    return _found(await connection.fetch(_BY_JOB, org_id, dag, job))


def _found(rows: Sequence[asyncpg.Record]) -> Webhook:
    if not rows:
        raise TraceError("webhook_not_found")
    return Webhook(*rows[0])


class WebhookAdmin:
    """The secret of a source, for admins; each look at it leaves its line in the audit log."""

    def __init__(self, store: Store, secrets: WebhookSecrets, config: DispatcherConfig) -> None:
        self._store = store
        self._secrets = secrets
        self._overlap = timedelta(seconds=config.webhook_rotation_seconds)

    async def show(self, actor: Actor, dag: str, job: str) -> WebhookReply:
        if actor.org_id is None:
            raise TraceError("webhook_not_found")
        async with self._store.transaction() as connection:
            webhook = await find_by_job(connection, actor.org_id, dag, job)
            await self._record(connection, actor, webhook, "webhook.read")
        return self._reply(webhook)

    async def rotate(self, actor: Actor, dag: str, job: str, after: int | None) -> WebhookReply:
        """The next secret counts at once, and this one for a while longer; the one before it ends.

        With `after` only if that is the rotation now, so that a call whose answer got lost may be repeated.
        """
        if actor.org_id is None:
            raise TraceError("webhook_not_found")
        with unavailable_when_held_up("The rotation conflicts with a concurrent change; repeat it."):
            return await self._rotate(actor, (actor.org_id, dag, job), after)

    async def _rotate(self, actor: Actor, key: tuple[UUID, str, str], after: int | None) -> WebhookReply:
        # With the lock of those who route no deploy takes a path meanwhile, which would miss the rotation.
        async with self._store.transaction(routing=[key[0]]) as connection:
            await connection.execute(_LOCK, *key)
            webhook = await find_by_job(connection, *key)
            if after is None or after == webhook.rotation:
                await connection.execute(_ROTATE, *key, self._overlap)
                webhook = await find_by_job(connection, *key)
                await self._record(connection, actor, webhook, "webhook.rotate")
            else:
                await self._record(connection, actor, webhook, "webhook.read")
        return self._reply(webhook)

    async def _record(self, connection: Connection, actor: Actor, webhook: Webhook, action: str) -> None:
        target = f"{webhook.dag}/{webhook.job}"
        details = {"path": webhook.path, "rotation": webhook.rotation}
        await audit.record(connection, webhook.org_id, actor.subject, action, target, details)

    def _reply(self, webhook: Webhook) -> WebhookReply:
        return WebhookReply(
            path=webhook.path,
            secret=webhook.secrets(self._secrets)[0],
            rotation=webhook.rotation,
            signature_header=SIGNATURE_HEADER,
            delivery_header=DELIVERY_HEADER,
            previous_until=webhook.previous_until,
        )
