"""How queries ended: recorded once each, with the audit; and what expired is removed.

The row says how a query ended from then on, whatever a late report of its last attempt does to the task. Text and pins
go with the record: nothing reads for the query any more. After their retention the rows go, and note that the files
are to go, which the retention loop deletes.
"""

from datetime import timedelta
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from tracelake.db.transaction import Connection, Store
from tracelake.dispatcher import audit
from tracelake.dispatcher.config import DispatcherConfig
from tracelake.errors import CATALOGUE
from tracelake.model.ids import new_id
from tracelake.model.task import Status
from tracelake.wire.query import QueriedDataset, QueryAuditRecord

BATCH = 200
OK = "ok"
CANCELED = "query_canceled"

# Of an open query whose task has ended. Locked in one order, and left to others who are at it.
_ENDED = """
    SELECT q.org_id, q.query_id, q.task_id, q.subject, q.sql_sha256, q.datasets, q.input_bytes, q.created_at,
           o.name AS org, t.status, t.outcome AS verdict, t.error, t.result, t.finished_at
    FROM batch_queries q JOIN tasks t USING (task_id) JOIN orgs o ON o.org_id = q.org_id
    WHERE q.ended_at IS NULL AND t.finished_at IS NOT NULL AND ($1::uuid IS NULL OR q.task_id = $1)
    ORDER BY q.task_id LIMIT $2 FOR UPDATE OF q SKIP LOCKED"""

_RECORD = """
    UPDATE batch_queries SET outcome = $2, ended_at = $3, config = NULL WHERE task_id = $1"""

# Nobody has to decide about it, as about a unit that failed.
_SETTLE = "UPDATE tasks SET skipped_at = trace_now() WHERE task_id = $1 AND status = 'Failed' AND skipped_at IS NULL"

_UNPIN = "DELETE FROM batch_query_inputs WHERE task_id = $1"

_EXPIRED = """
    SELECT q.task_id, o.dataset_uuid, o.dataset_version
    FROM batch_queries q JOIN tasks t USING (task_id) JOIN job_outputs o ON o.job_id = t.job_id
    WHERE q.ended_at < trace_now() - $1::interval AND t.finished_at IS NOT NULL
    ORDER BY q.ended_at LIMIT $2 FOR UPDATE OF q, t SKIP LOCKED"""

_NOTE_FILES = "INSERT INTO removed_prefixes (prefix) SELECT unnest($1::text[]) ON CONFLICT DO NOTHING"

# What refers before what is referred to.
_REMOVE = (
    """DELETE FROM dataset_units u USING manifests m
       WHERE m.task_id = ANY($1) AND u.manifest_id = m.manifest_id""",
    "DELETE FROM manifests WHERE task_id = ANY($1)",
    "DELETE FROM task_attempts WHERE task_id = ANY($1)",
    "DELETE FROM spark_metrics WHERE task_id = ANY($1)",
    "DELETE FROM collect_later WHERE task_id = ANY($1)",
    "DELETE FROM batch_queries WHERE task_id = ANY($1)",
    "DELETE FROM tasks WHERE task_id = ANY($1)",
)


class QueryOutcomes:
    def __init__(self, store: Store, config: DispatcherConfig) -> None:
        self._store = store
        self._layout = config.layout
        self._retention = timedelta(days=config.query_batch_retention_days)

    async def run_once(self) -> int:
        """A batch of each; answers how many queries ended or expired."""
        return await self.record_ended() + await self.remove_expired()

    async def record_ended(self, task_id: UUID | None = None) -> int:
        """Records the outcomes of queries whose task has ended; of one, or of any."""
        async with self._store.transaction() as connection:
            rows = await connection.fetch(_ENDED, task_id, BATCH)
            for row in rows:
                await _record(connection, row)
        return len(rows)

    async def remove_expired(self) -> int:
        async with self._store.transaction() as connection:
            rows = await connection.fetch(_EXPIRED, self._retention, BATCH)
            if not rows:
                return 0
            prefixes = [
                f"{self._layout.generation(row['dataset_uuid'], row['dataset_version'])}{row['task_id']}/"
                for row in rows
            ]
            prefixes += [self._layout.scratch(row["task_id"]) for row in rows]
            await connection.execute(_NOTE_FILES, prefixes)
            for statement in _REMOVE:
                await connection.execute(statement, [row["task_id"] for row in rows])
        return len(rows)


async def _record(connection: Connection, row: asyncpg.Record) -> None:
    outcome, _ = outcome_of(row["status"], row["verdict"], row["error"])
    await connection.execute(_RECORD, row["task_id"], outcome, row["finished_at"])
    await connection.execute(_UNPIN, row["task_id"])
    await connection.execute(_SETTLE, row["task_id"])
    duration = (row["finished_at"] - row["created_at"]).total_seconds()
    await audit.record_query(
        connection,
        QueryAuditRecord(
            run_id=new_id(),
            query_id=row["query_id"],
            org=row["org"],
            subject=row["subject"],
            datasets=msgspec.json.decode(row["datasets"], type=list[QueriedDataset]),
            row_count=read_report(row["result"]).get("row_count", 0) if outcome == OK else 0,
            bytes_read=row["input_bytes"],
            duration_ms=max(0, int(duration * 1000)),
            outcome=outcome,
            sql_sha256=row["sql_sha256"],
        ),
    )


def outcome_of(status: str, verdict: str | None, error: str | None) -> tuple[str, str]:
    """`ok` or the code of the error, and its message, for a task that ended."""
    if status == Status.COMPLETED:
        return OK, ""
    if status == Status.CANCELED or verdict == "Canceled":
        return CANCELED, CATALOGUE[CANCELED].message
    if verdict == "Timeout":
        return "query_timeout", "The worker was lost, or the query took longer than a batch query may."
    code, message = "query_failed", ""
    # A worker reports the kind of the error, its code and its message.
    for part in (error or "").split(": "):
        if part in CATALOGUE:
            code, message = part, (error or "").partition(f"{part}: ")[2]
            break
    return code, message or CATALOGUE[code].message


def read_report(result: str | None) -> dict[str, Any]:
    """What the attempt reported of its one output."""
    reports: list[dict[str, Any]] = [] if result is None else msgspec.json.decode(result)
    return reports[0] if reports else {}
