"""Checks of active versions with their newest results, and results over time."""

from datetime import datetime
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from tracelake.catalogue.check_values import describe_bounds, describe_values
from tracelake.db.transaction import Connection
from tracelake.dispatcher.records import columns, to_struct
from tracelake.dispatcher.views.check_changes import CheckHistory
from tracelake.dispatcher.views.freshness import DatasetAge, read_ages
from tracelake.dispatcher.views.paging import CAP
from tracelake.dispatcher.views.shared import from_json
from tracelake.dispatcher.views.words import span, unit_words
from tracelake.errors import TraceError
from tracelake.model.dag import CheckKind, OutputCheck
from tracelake.wire.checks import (
    CheckResultPosition,
    CheckResultRow,
    CheckResultsReply,
    CheckRow,
    ChecksReply,
    CheckState,
    OrgCheckResult,
    OrgCheckResultsReply,
    OrgCheckResultsRequest,
)

_CHECKED = """
    SELECT d.name AS dataset, d.dataset_uuid, o.dataset_version, o.output_index, j.dag_name || '/' || j.name AS job,
           j.node_id, j.document -> 'checks' AS checks
    FROM dags a JOIN dag_version_jobs v ON v.dag_version_id = a.active_version JOIN jobs j USING (job_id)
    JOIN job_outputs o USING (job_id) JOIN datasets d USING (dataset_uuid)
    WHERE a.org_id = $1 AND ($2::text IS NULL OR d.name = $2) AND j.document -> 'checks' IS NOT NULL
    ORDER BY d.name, 5, o.output_index"""

# Of each check of a generation: the newest result of each unit, and one of them to show, of a unit that fails if there
# is one. Results of earlier generations are history: their units may not even exist any more. So are those of attempts
# that began before the check was changed.
_NEWEST = f"""
    SELECT k.dataset_uuid, k.dataset_version, k.name, shown.*, r.message, r.sample, g.units AS grid
    FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::timestamptz[])
        AS k(dataset_uuid, dataset_version, name, changed_at)
    JOIN LATERAL (
        SELECT u.*, count(*) OVER () AS units, count(*) FILTER (WHERE NOT u.passed) OVER () AS failing_units FROM (
            SELECT DISTINCT ON (r.unit) r.* FROM (
                SELECT r.passed, r.checked_at, r.unit, r.rows, r.offending_rows, r.task_id, r.attempt, r.output_index
                FROM check_results r
                WHERE r.dataset_uuid = k.dataset_uuid AND r.dataset_version = k.dataset_version AND r.name = k.name
                  AND (k.changed_at IS NULL OR r.checked_at >= k.changed_at AND NOT EXISTS (
                       SELECT FROM tasks t WHERE t.task_id = r.task_id AND t.attempt = r.attempt
                       AND t.claimed_at < k.changed_at))
                ORDER BY r.checked_at DESC LIMIT {CAP}) r
            ORDER BY r.unit, r.checked_at DESC) u
        ORDER BY u.passed, u.checked_at DESC LIMIT 1) shown ON true
    JOIN check_results r ON r.task_id = shown.task_id AND r.attempt = shown.attempt
        AND r.output_index = shown.output_index AND r.name = k.name
    LEFT JOIN dataset_versions g ON g.dataset_uuid = k.dataset_uuid AND g.dataset_version = k.dataset_version"""  # noqa: S608 - constants only

_DATASET = "SELECT dataset_uuid FROM datasets WHERE org_id = $1 AND name = $2 AND removed_at IS NULL"

_RESULTS = """
    SELECT r.*, g.units AS grid
    FROM (SELECT name, kind, severity, passed, unit, rows, offending_rows, message, sample, checked_at, task_id,
                 attempt, dataset_uuid, dataset_version
          FROM check_results
          WHERE dataset_uuid = $1 AND org_id = $2 AND ($3::text IS NULL OR name = $3) AND NOT (passed AND $4)
            AND checked_at >= coalesce($6::timestamptz, '-infinity')
            AND checked_at < coalesce($7::timestamptz, 'infinity')
          ORDER BY checked_at DESC FETCH FIRST $5 ROWS WITH TIES) r
    LEFT JOIN dataset_versions g USING (dataset_uuid, dataset_version)
    ORDER BY r.checked_at DESC, r.task_id, r.name"""


# Newest first, along an index from its end. A result outlives its job, and goes with its dataset.
def _newest_results(selection: str) -> str:
    return f"""
        SELECT r.name, r.kind, r.severity, r.passed, r.unit, r.rows, r.offending_rows, r.message,
               CASE WHEN $8 THEN r.sample END AS sample, r.checked_at, r.task_id, r.attempt, r.output_index,
               r.dataset_version, g.units AS grid, d.name AS dataset,
               d.removed_at IS NOT NULL AS is_removed, j.dag_name || '/' || j.name AS job
        FROM (SELECT * FROM check_results
              WHERE {selection} AND ($9::text IS NULL OR name = $9)
                AND (checked_at, task_id, attempt, output_index, name)
                    < (coalesce($2::timestamptz, 'infinity'), $3::uuid, $4::int, $5::int, $6::text)
              ORDER BY checked_at DESC, task_id DESC, attempt DESC, output_index DESC, name DESC LIMIT $7) r
        JOIN datasets d USING (dataset_uuid) LEFT JOIN dataset_versions g USING (dataset_uuid, dataset_version)
        LEFT JOIN tasks t USING (task_id) LEFT JOIN jobs j ON j.job_id = t.job_id
        ORDER BY r.checked_at DESC, r.task_id DESC, r.attempt DESC, r.output_index DESC, r.name DESC"""  # noqa: S608 - constants only


_RESULTS_OF_ORG = _newest_results("org_id = (SELECT org_id FROM orgs WHERE name = $1)")
_RESULTS_OF_DATASETS = _newest_results("dataset_uuid = ANY($1::uuid[])")
_DATASETS = """
    SELECT dataset_uuid FROM datasets WHERE org_id = (SELECT org_id FROM orgs WHERE name = $1) AND name = $2"""


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
    of_rows = [(row, check) for row, check in checks if check.kind.is_of_rows]
    history = await CheckHistory.read(connection, (row["node_id"] for row, _ in of_rows))
    changed = {_key(row, check.name): history.changed_at(row["node_id"], check) for row, check in of_rows}
    keys = [(*key, changed_at) for key, changed_at in changed.items()]
    newest = {_key(row, row["name"]): row for row in await connection.fetch(_NEWEST, *columns(keys, 4))}
    timed = [row for row, check in checks if check.kind is CheckKind.FRESHNESS]
    ages = await read_ages(connection, [(row["dataset_uuid"], row["dataset_version"]) for row in timed])
    return ChecksReply(
        checks=[
            _freshness(row, check, ages[row["dataset_uuid"], row["dataset_version"]])
            if check.kind is CheckKind.FRESHNESS
            else _row(row, check, newest.get(_key(row, check.name)), changed.get(_key(row, check.name)))
            for row, check in checks
        ]
    )


def _key(row: asyncpg.Record, check: str) -> tuple[UUID, UUID, str]:
    return row["dataset_uuid"], row["dataset_version"], check


def _row(
    dataset: asyncpg.Record, check: OutputCheck, result: asyncpg.Record | None, changed_at: datetime | None
) -> CheckRow:
    state: CheckState = "unknown"
    fields: dict[str, Any] = {} if changed_at is None else {"message": "not evaluated since it changed"}
    if result is not None:
        bad: CheckState = "failed" if check.severity == "error" else "warned"
        state = "passed" if result["passed"] else bad
        names = ("checked_at", "rows", "offending_rows", "message", "task_id", "units", "failing_units")
        fields = {name: result[name] for name in names}
        fields |= {"unit": _unit(result), "sample": from_json(result["sample"]) or []}
    return _check_row(dataset, check, state, fields | {"changed_at": changed_at})


def _freshness(dataset: asyncpg.Record, check: OutputCheck, age: DatasetAge) -> CheckRow:
    message = age.explain(check)
    bad: CheckState = "failed" if check.severity == "error" else "warned"
    fields = {
        "age_seconds": age.seconds(check.age_of),
        "committed_at": age.committed_at,
        "data_at": age.data_at,
        "message": message,
        "checked_at": age.newest(check.age_of),
    }
    return _check_row(dataset, check, bad if message else "passed", fields)


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
            newest = "block" if check.age_of == "data" else "commit"
            return f"newest {newest} at most {span(check.max_age_seconds)} old"
        case _:
            return "no row of " + " ".join((check.query or "").split())[:120]


def _unit(result: asyncpg.Record) -> str | None:
    return None if result["unit"] is None else unit_words(result["unit"], result["grid"])


async def list_results(
    connection: Connection,
    org_id: UUID,
    name: str,
    *,
    check: str | None,
    failed: bool,
    limit: int,
    since: datetime | None = None,
    until: datetime | None = None,
) -> CheckResultsReply:
    """The newest first."""
    dataset_uuid = await connection.fetchval(_DATASET, org_id, name)
    if dataset_uuid is None:
        raise TraceError("dataset_not_found")
    rows = await connection.fetch(_RESULTS, dataset_uuid, org_id, check, failed, limit, since, until)
    return CheckResultsReply(
        next=rows[-1]["checked_at"] if len(rows) >= limit else None,
        results=[
            to_struct(CheckResultRow, row, unit=_unit(row), sample=from_json(row["sample"]) or []) for row in rows
        ],
    )


async def list_org_results(connection: Connection, request: OrgCheckResultsRequest) -> OrgCheckResultsReply:
    """A page of the results of an org, newest first. A result that is stored meanwhile is on no later page."""
    page = request.page
    position = (
        (None, UUID(int=0), 0, 0, "")
        if page is None
        else (page.checked_at, page.task_id, page.attempt, page.output_index, page.name)
    )
    following = (*position, request.limit, request.samples, request.check)
    if request.dataset is None:
        rows = await connection.fetch(_RESULTS_OF_ORG, request.org, *following)
    else:
        datasets = [row["dataset_uuid"] for row in await connection.fetch(_DATASETS, request.org, request.dataset)]
        rows = await connection.fetch(_RESULTS_OF_DATASETS, datasets, *following)
    results = [
        to_struct(OrgCheckResult, row, unit=_unit(row), sample=from_json(row["sample"]) or [])
        for row in rows
        if not row["is_removed"]
    ]
    return OrgCheckResultsReply(
        results=results,
        next=_position(rows[-1]) if len(rows) == request.limit else None,
    )


def _position(row: asyncpg.Record) -> CheckResultPosition:
    return CheckResultPosition(**{name: row[name] for name in CheckResultPosition.__struct_fields__})
