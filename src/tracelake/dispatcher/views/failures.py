"""Tasks that failed and have no retry left, grouped by error: one mistake often fails many tasks with one error.

Errors are compared without what differs from task to task: numbers, hexadecimal values and ids. Only the newest tasks
are compared (`MOST_GROUPED`), and only the beginning of their errors; of each group the error of its newest task is
shown whole.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

import asyncpg

from tracelake.db.transaction import Connection
from tracelake.dispatcher.predicates import is_finally_failed
from tracelake.dispatcher.views.job_selection import JobFilter, select_jobs
from tracelake.dispatcher.views.paging import CAP
from tracelake.dispatcher.views.words import unit_words
from tracelake.wire.failures import MAX_GROUPS, ErrorGroup, FailuresReply

MOST_GROUPED = 1_000
_COMPARED_CHARACTERS = 400
_JOBS_SHOWN = 10
NO_ERROR = "(no error was reported)"

_VARYING = re.compile(
    r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|0x[0-9a-fA-F]+|\b[0-9a-fA-F]{16,}\b|\d+(?:[.,_:]\d+)*"
)
_LEAST, _EVER = UUID(int=0), datetime.fromtimestamp(0).astimezone()

_FAILED = f"job_id = j.job_id AND {is_finally_failed()} AND task_id >= $2 AND created_at >= $3"

_COUNT = f"""
    SELECT count(*) FROM (
        SELECT FROM unnest($1::uuid[]) AS j(job_id) CROSS JOIN LATERAL (
            SELECT FROM tasks WHERE {_FAILED} LIMIT {CAP}) t
        LIMIT {CAP}) counted"""  # noqa: S608 - constants only

_NEWEST = f"""
    SELECT t.task_id, t.error, j.job_id FROM unnest($1::uuid[]) AS j(job_id) CROSS JOIN LATERAL (
        SELECT task_id, left(error, {_COMPARED_CHARACTERS}) AS error FROM tasks
        WHERE {_FAILED} ORDER BY task_id DESC LIMIT {MOST_GROUPED}) t
    ORDER BY t.task_id DESC LIMIT {MOST_GROUPED}"""  # noqa: S608 - constants only

_JOB_NAMES = "SELECT job_id, dag_name || '/' || name AS job FROM jobs WHERE job_id = ANY($1)"

_SAMPLES = """
    SELECT t.task_id, t.error, t.unit_key, t.finished_at,
           (SELECT g.units FROM job_outputs o JOIN dataset_versions g USING (dataset_uuid, dataset_version)
            WHERE o.job_id = t.job_id ORDER BY o.output_index LIMIT 1) AS units
    FROM tasks t WHERE t.task_id = ANY($1)"""


@dataclass(slots=True)
class _Group:
    task_id: UUID
    tasks: int = 0
    job_ids: dict[UUID, None] = field(default_factory=dict)


class GroupedFailures(NamedTuple):
    tasks: int
    """Counted up to the cap."""
    grouped: int
    groups: list[ErrorGroup]
    other_groups: int


async def list_failures(connection: Connection, org_id: UUID, filters: JobFilter) -> FailuresReply:
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        now = await connection.fetchval("SELECT trace_now()")
        job_ids = await select_jobs(connection, org_id, filters)
        failures = await group_failed(connection, job_ids)
    return FailuresReply(now=now, more=failures.tasks == CAP, **failures._asdict())


async def group_failed(
    connection: Connection, job_ids: Sequence[UUID], least: UUID = _LEAST, created_since: datetime = _EVER
) -> GroupedFailures:
    """Groups the failed tasks of these jobs; of those with ids from `least` on that were created since a time."""
    of_jobs = (list(job_ids), least, created_since)
    rows = await connection.fetch(_NEWEST, *of_jobs)
    number = len(rows) if len(rows) < MOST_GROUPED else await connection.fetchval(_COUNT, *of_jobs)
    groups: dict[str, _Group] = {}
    for row in rows:
        group = groups.setdefault(comparable(row["error"] or ""), _Group(row["task_id"]))
        group.tasks += 1
        group.job_ids[row["job_id"]] = None
    largest = sorted(groups.values(), key=lambda group: -group.tasks)[:MAX_GROUPS]
    names = {
        row["job_id"]: row["job"]
        for row in await connection.fetch(_JOB_NAMES, list({job_id for group in largest for job_id in group.job_ids}))
    }
    samples = {row["task_id"]: row for row in await connection.fetch(_SAMPLES, [group.task_id for group in largest])}
    error_groups = [_to_error_group(group, samples[group.task_id], names) for group in largest]
    return GroupedFailures(number, len(rows), error_groups, len(groups) - len(largest))


def comparable(error: str) -> str:
    """The error without what differs from task to task."""
    return _VARYING.sub("#", error)


def _to_error_group(group: _Group, sample: asyncpg.Record, names: dict[UUID, str]) -> ErrorGroup:
    unit_key = sample["unit_key"]
    return ErrorGroup(
        error=sample["error"] or NO_ERROR,
        tasks=group.tasks,
        jobs=sorted({names[job_id] for job_id in group.job_ids})[:_JOBS_SHOWN],
        task_id=group.task_id,
        unit=None if unit_key is None else unit_words(unit_key, sample["units"]),
        failed_at=sample["finished_at"],
    )
