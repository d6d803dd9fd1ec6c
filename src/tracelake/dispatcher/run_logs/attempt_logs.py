"""Storing the logs of attempts that workers ran: small ones in their row, larger ones in the object store.

A report is the whole log of an attempt as it is kept, so a report that is repeated changes nothing, and one that was
lost costs nothing once the next has arrived. Reports of one attempt are ordered by the number of their last line: an
older one never replaces a newer one, and none that is still running replaces the end. A worker reports attempts that it
has claimed; reports of other attempts are ignored.
"""

import asyncio
import zlib
from collections.abc import Sequence

import msgspec

from tracelake.db.transaction import Store
from tracelake.dispatcher.config import DispatcherConfig
from tracelake.dispatcher.run_logs.rows import log_uris
from tracelake.ports import ObjectStore
from tracelake.wire.run_logs import (
    MAX_LOG_BYTES,
    AttemptLogReport,
    RunLog,
    StoredLines,
    StoreLogsReply,
    StoreLogsRequest,
)

INLINE_BYTES = 8 * 1024
"""A log that is packed larger than this goes to the object store."""

# In the order of the key: two calls that lock the same rows do not wait for each other.
_STORE = """
    INSERT INTO run_logs (task_id, attempt, org_id, job_id, worker_id, started_at, writable_until, body, in_store,
                          line_end, ended)
    SELECT t.task_id, r.attempt, t.org_id, t.job_id, $1, coalesce(a.claimed_at, t.claimed_at, trace_now()), trace_now(),
           r.body, r.body IS NULL, r.line_end, r.ended
    FROM unnest($2::uuid[], $3::int[], $4::bytea[], $5::bigint[], $6::bool[])
        AS r(task_id, attempt, body, line_end, ended)
    JOIN tasks t ON t.task_id = r.task_id
    LEFT JOIN task_attempts a ON a.task_id = r.task_id AND a.attempt = r.attempt
    WHERE CASE WHEN t.attempt = r.attempt THEN t.worker_id ELSE a.worker_id END = $1
    ORDER BY r.task_id, r.attempt
    ON CONFLICT (task_id, attempt) DO UPDATE
    SET writable_until = excluded.writable_until, body = excluded.body, line_end = excluded.line_end,
        ended = excluded.ended, in_store = run_logs.in_store OR excluded.in_store
    WHERE run_logs.worker_id = excluded.worker_id AND excluded.line_end >= run_logs.line_end
      AND (excluded.ended OR NOT run_logs.ended)
    RETURNING task_id, attempt, org_id"""


async def store_logs(
    store: Store, objects: ObjectStore, config: DispatcherConfig, request: StoreLogsRequest
) -> StoreLogsReply:
    """Stores what may be stored, and counts it. The row of a large log is written before its object, so that no object
    is left behind; if the store is away, the worker repeats the call."""
    # Two reports of one attempt cannot be in one statement; the last is the newest.
    reports = list({(report.task_id, report.attempt): report for report in request.logs}.values())
    bodies = await asyncio.to_thread(_pack_all, reports)
    async with store.transaction() as connection:
        rows = await connection.fetch(
            _STORE,
            request.worker_id,
            [report.task_id for report in reports],
            [report.attempt for report in reports],
            [body if len(body) <= INLINE_BYTES else None for body in bodies],
            [report.start + len(report.lines) for report in reports],
            [report.ending is not None for report in reports],
        )
    orgs = {(row["task_id"], row["attempt"]): row["org_id"] for row in rows}
    for report, body in zip(reports, bodies, strict=True):
        org_id = orgs.get((report.task_id, report.attempt))
        if org_id is not None and len(body) > INLINE_BYTES:
            final, running = log_uris(config.bundle_bucket, org_id, report.task_id, report.attempt)
            await objects.put(running if report.ending is None else final, body)
    return StoreLogsReply(stored=len(orgs))


def unpack_log(body: bytes) -> RunLog:
    """The log in a row or an object. Raises zlib.error or a MsgspecError if it is none."""
    # Not more than a log may have, whatever was packed.
    return msgspec.json.decode(zlib.decompressobj().decompress(body, MAX_LOG_BYTES), type=RunLog)


def _pack_all(reports: Sequence[AttemptLogReport]) -> list[bytes]:
    return [zlib.compress(msgspec.json.encode(_to_log(report))) for report in reports]


def _to_log(report: AttemptLogReport) -> RunLog:
    return RunLog(
        ending=report.ending,
        seconds=report.seconds,
        lines=StoredLines(lines=report.lines, start=report.start),
    )
