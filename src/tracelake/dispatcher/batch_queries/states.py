"""How far batch queries are, for whoever may know; and their cancel."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from tracelake.db.transaction import Connection, Store
from tracelake.dispatcher.batch_queries.outcomes import OK, QueryOutcomes, outcome_of, read_report
from tracelake.dispatcher.batch_queries.submission import BatchSubmissions
from tracelake.dispatcher.config import DispatcherConfig
from tracelake.dispatcher.engine.calls.task_actions import CancelCall
from tracelake.dispatcher.engine.group_commit import GroupCommit
from tracelake.errors import CATALOGUE, TraceError
from tracelake.model.task import Status
from tracelake.wire.batch_query import (
    BatchCanceled,
    BatchListRequest,
    BatchQueriesPage,
    BatchQueryRecord,
    BatchQueryRef,
    BatchQueryReply,
    BatchState,
    BatchSubmission,
    QueryFailure,
)
from tracelake.wire.query import QueriedDataset, ResultColumn
from tracelake.wire.task_calls import DataFile

_QUERY = """
    SELECT q.query_id, q.task_id, q.subject, q.datasets, q.input_bytes, q.created_at, q.outcome, q.ended_at,
           t.status, t.attempt, t.held, t.cancel_requested, t.outcome AS verdict, t.error, t.result, t.claimed_at,
           t.next_retry_at, t.finished_at, trace_now() AS now
    FROM batch_queries q JOIN tasks t USING (task_id) JOIN orgs o ON o.org_id = q.org_id WHERE o.name = $1"""

_ONE = f"{_QUERY} AND q.query_id = $2"

_NEWEST = f"""{_QUERY} AND q.subject = $2 AND ($3::uuid IS NULL OR q.task_id < $3)
    ORDER BY q.task_id DESC LIMIT $4"""

_AHEAD = """
    SELECT count(*) FROM batch_queries q JOIN tasks t USING (task_id) JOIN orgs o ON o.org_id = q.org_id
    WHERE o.name = $1 AND q.ended_at IS NULL AND t.finished_at IS NULL AND q.task_id < $2"""

_FILES = "SELECT objects FROM manifests WHERE task_id = $1 AND revision IS NOT NULL ORDER BY revision DESC LIMIT 1"


@dataclass(eq=False, kw_only=True)
class BatchQueries:
    """What the Query Service asks about batch queries."""

    store: Store
    group: GroupCommit
    submissions: BatchSubmissions
    outcomes: QueryOutcomes
    config: DispatcherConfig

    async def submit(self, body: BatchSubmission) -> BatchQueryRecord:
        duplicate = await self.submissions.submit(body)
        record = await self.show(BatchQueryRef(org=body.org, subject=body.subject, query_id=body.query_id))
        if not duplicate:
            return record
        return BatchQueryRecord(query=msgspec.structs.replace(record.query, duplicate=True), files=record.files)

    async def show(self, body: BatchQueryRef) -> BatchQueryRecord:
        """A result is told of once its outcome is recorded."""
        row = await self._find(body)
        if row["ended_at"] is None and row["finished_at"] is not None:
            await self.outcomes.record_ended(row["task_id"])
            row = await self._find(body)
        async with self.store.connection() as connection:
            ahead = 0
            if row["status"] == Status.QUEUED:
                ahead = await connection.fetchval(_AHEAD, body.org, row["task_id"])
            query = self._reply(row, ahead)
            files = await _list_files(connection, row["task_id"]) if query.state == "done" else []
        return BatchQueryRecord(query=query, files=files)

    async def cancel(self, body: BatchQueryRef) -> BatchCanceled:
        """A query that waits ends at once; one that runs ends when its worker hears of it."""
        row = await self._find(body)
        canceled = row["ended_at"] is None and row["finished_at"] is None
        if canceled:
            result = await self.group.enqueue(CancelCall(row["task_id"]))
            canceled = result.task.cancel_requested or result.task.status is Status.CANCELED
        query = (await self.show(body)).query
        return BatchCanceled(canceled=canceled, state=query.state)

    async def list(self, body: BatchListRequest) -> BatchQueriesPage:
        async with self.store.connection() as connection:
            rows = await connection.fetch(_NEWEST, body.org, body.subject, body.cursor, body.limit + 1)
        more = len(rows) > body.limit
        queries = [self._reply(row, 0) for row in rows[: body.limit]]
        return BatchQueriesPage(queries=queries, next=str(rows[body.limit - 1]["task_id"]) if more else None)

    async def _find(self, body: BatchQueryRef) -> asyncpg.Record:
        async with self.store.connection() as connection:
            row = await connection.fetchrow(_ONE, body.org, body.query_id)
        if row is None:
            raise TraceError("query_not_found")
        if row["subject"] != body.subject and not body.admin:
            raise TraceError("query_forbidden")
        return row

    def _reply(self, row: asyncpg.Record, ahead: int) -> BatchQueryReply:
        state = _state(row)
        fields: dict[str, Any] = {}
        if state == "done":
            report = read_report(row["result"])
            fields["columns"] = msgspec.convert(report.get("columns") or [], list[ResultColumn])
            fields["row_count"], fields["size_bytes"] = report.get("row_count"), report.get("size_bytes")
        elif state in ("failed", "canceled"):
            fields["error"] = _failure(row)
        if row["ended_at"] is not None:
            fields["expires_at"] = row["ended_at"] + timedelta(days=self.config.query_batch_retention_days)
        return BatchQueryReply(
            query_id=row["query_id"],
            state=state,
            progress=_progress(row, state, ahead),
            subject=row["subject"],
            submitted_at=row["created_at"],
            started_at=row["claimed_at"],
            ended_at=row["ended_at"] or row["finished_at"],
            attempt=row["attempt"],
            datasets=msgspec.json.decode(row["datasets"], type=list[QueriedDataset]),
            input_bytes=row["input_bytes"],
            **fields,
        )


def _state(row: asyncpg.Record) -> BatchState:
    """The recorded outcome, if there is one; otherwise what follows from the task."""
    outcome = row["outcome"]
    if outcome is None and row["finished_at"] is not None:
        outcome, _ = outcome_of(row["status"], row["verdict"], row["error"])
    if outcome is not None:
        return "done" if outcome == OK else "canceled" if outcome == "query_canceled" else "failed"
    if row["cancel_requested"]:
        return "canceling"
    if row["status"] == Status.FAILED:
        return "retrying"
    return "running" if row["status"] == Status.RUNNING else "queued"


def _failure(row: asyncpg.Record) -> QueryFailure:
    code, message = outcome_of(row["status"], row["verdict"], row["error"])
    if row["outcome"] not in (None, code):  # a late report has changed the task since
        return QueryFailure(code=row["outcome"], message=CATALOGUE[row["outcome"]].message)
    return QueryFailure(code=code, message=message)


def _progress(row: asyncpg.Record, state: BatchState, ahead: int) -> str:
    match state:
        case "queued" if ahead:
            return f"waits; {ahead} queries of the organisation were submitted before it"
        case "queued":
            return "waits for a worker"
        case "running":
            seconds = int((row["now"] - row["claimed_at"]).total_seconds())
            return f"runs for {seconds} s, attempt {row['attempt']}"
        case "retrying":
            return f"attempt {row['attempt']} failed; the next one follows"
        case "canceling":
            return "is being canceled"
    return state


async def _list_files(connection: Connection, task_id: UUID) -> list[DataFile]:
    objects = await connection.fetchval(_FILES, task_id)
    return [] if objects is None else msgspec.json.decode(objects, type=list[DataFile])
