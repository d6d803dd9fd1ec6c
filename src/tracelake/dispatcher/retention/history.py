"""History that only views read, by age: triggers, replaced attempts, figures of Spark, results of checks, audit logs,
and tasks that no DAG made.

Each statement takes a batch along an index of ages and leaves what others have locked.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TypeAlias
from uuid import UUID

from tracelake.db.transaction import Connection
from tracelake.dispatcher.config import DispatcherConfig
from tracelake.dispatcher.records import affected

COUNTED = 50_000
"""A plan counts no further."""


@dataclass(frozen=True, slots=True)
class RetainedRows:
    """Rows of one table. `due` finds their keys, oldest first; its arguments are the age and a limit."""

    table: str
    keys: str
    due: str

    @property
    def count(self) -> str:
        return f"SELECT count(*) AS rows, min(at) AS oldest FROM ({self.due}) d"  # noqa: S608 - constants only

    @property
    def remove(self) -> str:
        joined = " AND ".join(f"x.{key} = d.{key}" for key in self.keys.split(", "))
        due = f"{self.due} FOR UPDATE SKIP LOCKED"
        return f"""
            WITH d AS MATERIALIZED ({due})
            DELETE FROM {self.table} x USING d WHERE {joined}"""  # noqa: S608 - constants only


def _expiring(table: str, keys: str, at: str) -> RetainedRows:
    """Rows that expire by their own time `at`."""
    due = f"""SELECT {keys}, {at} AS at FROM {table}
              WHERE {at} < trace_now() - $1::interval ORDER BY {at}, {keys} LIMIT $2"""  # noqa: S608 - constants only
    return RetainedRows(table, keys, due)


TRIGGERS = _expiring("triggers", "org_id, idempotency_key", "created_at")
ATTEMPTS = _expiring("task_attempts", "task_id, attempt", "claimed_at")
SPARK_METRICS = _expiring("spark_metrics", "task_id, attempt", "recorded_at")
CHECKS = _expiring("check_results", "task_id, attempt, output_index, name", "checked_at")
QUERIES = _expiring("query_audit", "org, run_id", "at")
AUDIT = _expiring("audit_log", "audit_id", "at")
BATCH_QUERIES = _expiring("batch_queries", "org_id, query_id", "ended_at")
"""The loop of batch queries deletes them, with their results."""

# Tasks of jobs that were registered by a call: nothing is routed to them. Whatever pins files or batches stays, and so
# does what waits for a person, or for the collector of files. A page is so many tasks looked at, whatever becomes of
# them: those that stay are many in the end, and no statement grows with them. Each is looked up by its id.
_PAGE = """
    SELECT t.task_id, t.finished_at AS at,
           (t.status <> 'Failed' OR t.skipped_at IS NOT NULL) AND t.task_id <= (SELECT position FROM collector)
           AND (SELECT m.attempt FROM manifests m WHERE m.task_id = t.task_id LIMIT 1) IS NULL
           AND (SELECT p.attempt FROM buffer_publishes p WHERE p.task_id = t.task_id LIMIT 1) IS NULL
           AND (SELECT q.created_at FROM batch_queries q WHERE q.task_id = t.task_id) IS NULL
           AND (SELECT l.look_at FROM collect_later l WHERE l.task_id = t.task_id LIMIT 1) IS NULL AS due
    FROM tasks t
    WHERE t.node_id IS NULL AND t.finished_at < trace_now() - $1::interval {after}
    ORDER BY t.finished_at, t.task_id LIMIT $2"""
_NEXT_PAGE = _PAGE.format(after="AND (t.finished_at, t.task_id) > ($3, $4)")

TASKS = RetainedRows(
    "tasks",
    "task_id",
    f"SELECT task_id, at FROM ({_PAGE.format(after='')}) t WHERE due",  # noqa: S608
)

# Looked at again under the lock: somebody may have retried one meanwhile.
_REMOVE_TASKS = """
    WITH d AS MATERIALIZED (
        SELECT task_id FROM tasks WHERE task_id = ANY($1) AND (status <> 'Failed' OR skipped_at IS NOT NULL)
          AND finished_at IS NOT NULL ORDER BY task_id FOR UPDATE SKIP LOCKED),
    attempts AS (DELETE FROM task_attempts a USING d WHERE a.task_id = d.task_id),
    figures AS (DELETE FROM spark_metrics s USING d WHERE s.task_id = d.task_id)
    DELETE FROM tasks t USING d WHERE t.task_id = d.task_id"""

Position: TypeAlias = tuple[datetime, UUID]
START: Position = (datetime(1970, 1, 1, tzinfo=UTC), UUID(int=0))


def kinds(config: DispatcherConfig) -> list[tuple[RetainedRows, int]]:
    """Each with the days that it is kept; those that are kept for ever are left out."""
    days = [
        (TRIGGERS, config.trigger_retention_days),
        (ATTEMPTS, config.attempt_retention_days),
        (SPARK_METRICS, config.attempt_retention_days),
        (CHECKS, config.check_retention_days),
        (QUERIES, config.query_audit_retention_days),
        (AUDIT, config.audit_retention_days),
        (TASKS, config.task_retention_days),
    ]
    return [(kind, kept_days) for kind, kept_days in days if kept_days]


async def remove(connection: Connection, kind: RetainedRows, days: int, batch: int) -> int:
    return affected(await connection.execute(kind.remove, timedelta(days=days), batch))


async def remove_tasks(connection: Connection, days: int, batch: int, after: Position) -> tuple[int, Position | None]:
    """How many of a page went, and where the next page begins; None if this was the last."""
    page = await connection.fetch(_NEXT_PAGE, timedelta(days=days), batch, *after)
    due = [row["task_id"] for row in page if row["due"]]
    removed = affected(await connection.execute(_REMOVE_TASKS, due)) if due else 0
    return removed, (page[-1]["at"], page[-1]["task_id"]) if len(page) == batch else None
