"""The code of an attempt that runs a user's function, as its invocation names it."""

from uuid import UUID

from tracelake.db.transaction import Connection
from tracelake.dispatcher.bundles.rows import content_uri
from tracelake.dispatcher.config import DispatcherConfig
from tracelake.model.job import Job
from tracelake.ports import InvokeError, ObjectUrls
from tracelake.wire.claims import BundleRef

_URL_GRACE_SECONDS = 60
"""A runner that starts an attempt late still gets its code, and then finds itself fenced."""

# By org as well: whatever a definition names, an attempt runs only code of its own org.
_FIND = """
    SELECT status, sha256, size_bytes, language, entrypoint FROM udf_bundles
    WHERE org_id = $1 AND bundle_id = $2 AND status IN ('ready', 'disabled')"""


async def make_bundle_ref(
    connection: Connection, urls: ObjectUrls | None, config: DispatcherConfig, job: Job
) -> BundleRef | None:
    """None for a job that names no bundle. Raises InvokeError if the bundle may not run."""
    if job.udf is None:
        return None
    if urls is None:
        raise InvokeError("bundles_unavailable: this Dispatcher cannot sign addresses of its object store")
    row = await connection.fetchrow(_FIND, job.org_id, UUID(job.udf.bundle_id))
    if row is None:
        raise InvokeError(f"bundle_not_found: the org has no bundle {job.udf.bundle_id}", retryable=False)
    if row["status"] == "disabled":
        raise InvokeError(
            f"bundle_disabled: the bundle {job.udf.bundle_id} was disabled: deploy the job with one that is enabled,"
            " then retry the task",
            retryable=False,
        )
    timeout = job.timeout_seconds or job.lease_seconds
    uri = content_uri(config.bundle_bucket, job.org_id, row["sha256"])
    return BundleRef(
        bundle_id=UUID(job.udf.bundle_id),
        url=urls.sign_download(uri, seconds=timeout + _URL_GRACE_SECONDS),
        sha256=row["sha256"],
        size_bytes=row["size_bytes"],
        language=row["language"],
        entrypoint=row["entrypoint"],
        timeout_seconds=timeout,
        memory_mb=min(job.udf.memory_mb or config.udf_memory_mb, config.udf_max_memory_mb),
    )
