"""Checks of active versions with their newest results, and results over time."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from tracelake.catalogue.check_values import describe_bounds, describe_values
from tracelake.db.transaction import Connection
from tracelake.dispatcher.records import columns, to_struct
from tracelake.dispatcher.views.paging import CAP
from tracelake.dispatcher.views.shared import from_json
from tracelake.dispatcher.views.words import span, unit_words
from tracelake.errors import TraceError
from tracelake.model.dag import CheckKind, OutputCheck
from tracelake.wire.checks import CheckResultRow, CheckResultsReply, CheckRow, ChecksReply, CheckState

_CHECKED = """
    SELECT d.name AS dataset, d.dataset_uuid, o.dataset_version, o.output_index, j.dag_name || '/' || j.name AS job,
           j.document -> 'checks' AS checks
    FROM dags a JOIN dag_version_jobs v ON v.dag_version_id = a.active_version JOIN jobs j USING (job_id)
    JOIN job_outputs o USING (job_id) JOIN datasets d USING (dataset_uuid)
    WHERE a.org_id = $1 AND ($2::text IS NULL OR d.name = $2) AND j.document -> 'checks' IS NOT NULL
    ORDER BY d.name, 5, o.output_index"""

# Of each check the newest result, and of each of its units whether the newest result is good.
_NEWEST = f"""
    SELECT k.dataset_uuid, k.name, last.*, s.units, s.failing_units
    FROM unnest($1::uuid[], $2::text[]) AS k(dataset_uuid, name)
    JOIN LATERAL (
        SELECT r.passed, r.checked_at, r.unit, r.rows, r.offending_rows, r.message, r.sample, r.task_id
        FROM check_results r WHERE r.dataset_uuid = k.dataset_uuid AND r.name = k.name
        ORDER BY r.checked_at DESC LIMIT 1) last ON true
    CROSS JOIN LATERAL (
        SELECT count(*) AS units, count(*) FILTER (WHERE NOT u.passed) AS failing_units FROM (
            SELECT DISTINCT ON (r.unit) r.passed FROM (
                SELECT unit, passed, checked_at FROM check_results r
                WHERE r.dataset_uuid = k.dataset_uuid AND r.name = k.name ORDER BY r.checked_at DESC LIMIT {CAP}) r
            ORDER BY r.unit, r.checked_at DESC) u) s"""  # noqa: S608 - constants only

# The newest event that was passed on: of files with their commit, of a table with the commit of its rows.
_COMMITTED = """
    SELECT k.dataset_uuid, k.dataset_version, newest.created_at AS committed_at, g.created_at, trace_now() AS now
    FROM unnest($1::uuid[], $2::uuid[]) AS k(dataset_uuid, dataset_version)
    JOIN dataset_versions g USING (dataset_uuid, dataset_version)
    LEFT JOIN LATERAL (
        SELECT v.created_at FROM events v
        WHERE v.dataset_uuid = k.dataset_uuid AND v.dataset_version = k.dataset_version AND v.routed_seq IS NOT NULL
        ORDER BY v.routed_seq DESC LIMIT 1) newest ON true"""

_DATASET = "SELECT dataset_uuid FROM datasets WHERE org_id = $1 AND name = $2"

_RESULTS = """
    SELECT name, kind, severity, passed, unit, rows, offending_rows, message, sample, checked_at, task_id, attempt,
           dataset_version
    FROM check_results
    WHERE dataset_uuid = $1 AND org_id = $2 AND ($3::text IS NULL OR name = $3) AND NOT (passed AND $4)
    ORDER BY checked_at DESC, task_id, name LIMIT $5"""


async def list_checks(connection: Connection, org_id: UUID, dataset: str | None = None) -> ChecksReply:
    if dataset is not None and await connection.fetchval(_DATASET, org_id, dataset) is None:
        raise TraceError("dataset_not_found")
    rows = await connection.fetch(_CHECKED, org_id, dataset)
    checks = [
        (row, check)
        for row in rows
        for check in msgspec.json.decode(row["checks"], type=list[OutputCheck])
        if check.output_index == row["output_index"]
    ]
    keys = list({(row["dataset_uuid"], check.name) for row, check in checks if check.kind.is_of_rows})
    newest = {(row["dataset_uuid"], row["name"]): row for row in await connection.fetch(_NEWEST, *columns(keys, 2))}
    timed = [row for row, check in checks if check.kind is CheckKind.FRESHNESS]
    ages = await read_ages(connection, [(row["dataset_uuid"], row["dataset_version"]) for row in timed])
    return ChecksReply(
        checks=[
            _freshness(row, check, *ages[row["dataset_uuid"], row["dataset_version"]])
            if check.kind is CheckKind.FRESHNESS
            else _row(row, check, newest.get((row["dataset_uuid"], check.name)))
            for row, check in checks
        ]
    )


async def read_ages(
    connection: Connection, generations: Sequence[tuple[UUID, UUID]]
) -> dict[tuple[UUID, UUID], tuple[int, datetime | None]]:
    """How many seconds ago the newest commit of each generation was, and when; one without any is as old as itself."""
    rows = await connection.fetch(_COMMITTED, *columns(list(set(generations)), 2)) if generations else []
    return {
        (row["dataset_uuid"], row["dataset_version"]): (
            max(0, int((row["now"] - (row["committed_at"] or row["created_at"])).total_seconds())),
            row["committed_at"],
        )
        for row in rows
    }


def _row(dataset: asyncpg.Record, check: OutputCheck, result: asyncpg.Record | None) -> CheckRow:
    state: CheckState = "unknown"
    fields: dict[str, Any] = {}
    if result is not None:
        bad: CheckState = "failed" if check.severity == "error" else "warned"
        state = "passed" if result["passed"] and not result["failing_units"] else bad
        names = ("checked_at", "rows", "offending_rows", "message", "task_id", "units", "failing_units")
        fields = {name: result[name] for name in names}
        fields |= {"unit": _unit(result["unit"]), "sample": from_json(result["sample"]) or []}
    return _check_row(dataset, check, state, fields)


def _freshness(dataset: asyncpg.Record, check: OutputCheck, age: int, committed_at: datetime | None) -> CheckRow:
    assert check.max_age_seconds is not None
    state: CheckState = "passed"
    message = ""
    if age > check.max_age_seconds:
        state = "failed" if check.severity == "error" else "warned"
        message = describe_age(check, age, committed=committed_at is not None)
    return _check_row(dataset, check, state, {"age_seconds": age, "message": message, "checked_at": committed_at})


def describe_age(check: OutputCheck, age: int, *, committed: bool) -> str:
    assert check.max_age_seconds is not None
    newest = f"the newest commit is {span(age)} old" if committed else f"nothing was committed for {span(age)}"
    return f"{newest}, expected at most {span(check.max_age_seconds)}"


def _check_row(dataset: asyncpg.Record, check: OutputCheck, state: CheckState, fields: dict[str, Any]) -> CheckRow:
    return CheckRow(
        dataset=dataset["dataset"],
        name=check.name,
        kind=check.kind,
        severity=check.severity,
        job=dataset["job"],
        expected=describe_expected(check),
        state=state,
        **fields,
    )


def describe_expected(check: OutputCheck) -> str:
    columns_text = ", ".join(check.columns)
    match check.kind:
        case CheckKind.NOT_NULL:
            return f"{columns_text} not null"
        case CheckKind.UNIQUE:
            return f"{columns_text} unique in the {check.scope}"
        case CheckKind.ACCEPTED_VALUES:
            return f"{columns_text} in {describe_values(check)}"
        case CheckKind.RANGE:
            return f"{columns_text} {describe_bounds(check)}"
        case CheckKind.ROW_COUNT:
            return f"{describe_bounds(check)} rows"
        case CheckKind.RELATIONSHIP:
            return f"{columns_text} in {check.dataset}.{check.target}"
        case CheckKind.FRESHNESS:
            assert check.max_age_seconds is not None
            return f"newest commit at most {span(check.max_age_seconds)} old"
        case _:
            return "no row of " + " ".join((check.query or "").split())[:120]


def _unit(key: str | None) -> str | None:
    return None if key is None else unit_words(key)


async def list_results(
    connection: Connection, org_id: UUID, name: str, *, check: str | None, failed: bool, limit: int
) -> CheckResultsReply:
    """The newest first."""
    dataset_uuid = await connection.fetchval(_DATASET, org_id, name)
    if dataset_uuid is None:
        raise TraceError("dataset_not_found")
    rows = await connection.fetch(_RESULTS, dataset_uuid, org_id, check, failed, limit)
    return CheckResultsReply(
        results=[
            to_struct(CheckResultRow, row, unit=_unit(row["unit"]), sample=from_json(row["sample"]) or [])
            for row in rows
        ]
    )
