"""The table of logs, and where the logs are: in the bucket of bundles, which no credentials of a task open."""

from datetime import timedelta
from uuid import UUID

from tracelake.db.transaction import Connection
from tracelake.dispatcher.config import DispatcherConfig
from tracelake.model.job import Job
from tracelake.model.task import Task
from tracelake.ports import ObjectUrls
from tracelake.wire.claims import BundleRef, LogAddresses

_GRACE_SECONDS = 900
"""A run may begin late and its log may be repeated while the store is away; its addresses outlive both."""
_MAX_SECONDS = 7 * 24 * 3600
"""No signed address is valid for longer."""

# Repeated if the answer was lost: the attempt is the same.
_ADD = """
    INSERT INTO run_logs (task_id, attempt, org_id, job_id, bundle_id, writable_until)
    VALUES ($1, $2, $3, $4, $5, trace_now() + $6::interval)
    ON CONFLICT (task_id, attempt) DO UPDATE SET writable_until = excluded.writable_until"""

_NOT_INVOKED = "UPDATE run_logs SET invoked = false WHERE task_id = $1 AND attempt = $2"

_WITH_LOG = "SELECT attempt FROM run_logs WHERE task_id = $1 AND invoked ORDER BY attempt"


def log_uris(bucket: str, org_id: UUID, task_id: UUID, attempt: int) -> tuple[str, str]:
    """Of the final log, and of the log of the running function."""
    place = f"s3://{bucket}/runs/{org_id}/{task_id}/{attempt}"
    return f"{place}/final.json", f"{place}/running.json"


async def open_log(
    connection: Connection, urls: ObjectUrls, config: DispatcherConfig, task: Task, job: Job, bundle: BundleRef
) -> LogAddresses:
    """Records that the attempt may have a log, then signs its addresses."""
    seconds = min(bundle.timeout_seconds + _GRACE_SECONDS, _MAX_SECONDS)
    values = (task.task_id, task.attempt, task.org_id, job.job_id, bundle.bundle_id)
    await connection.execute(_ADD, *values, timedelta(seconds=seconds))
    final, running = log_uris(config.bundle_bucket, task.org_id, task.task_id, task.attempt)
    return LogAddresses(
        running_url=urls.sign_replace(running, seconds=seconds), final_url=urls.sign_create(final, seconds=seconds)
    )


async def note_refusal(connection: Connection, task: Task) -> None:
    """Nobody took the attempt, so nobody is pointed at its log."""
    await connection.execute(_NOT_INVOKED, task.task_id, task.attempt)


async def list_attempts_with_log(connection: Connection, task_id: UUID) -> list[int]:
    return [row["attempt"] for row in await connection.fetch(_WITH_LOG, task_id)]
