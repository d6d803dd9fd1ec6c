"""`trace checks`: what must hold for datasets, and what came of it."""

from collections.abc import Awaitable, Iterable
from datetime import UTC, datetime
from functools import partial
from typing import Any

import click
from rich.text import Text

from tracelake.cli.listing import Listing, ListingColumn, sections
from tracelake.cli.options import TIME
from tracelake.cli.session import Session, user_command
from tracelake.cli.text import ago, clean
from tracelake.client.user import UserClient
from tracelake.wire import routes
from tracelake.wire.base import Reply
from tracelake.wire.checks import CheckResultRow, CheckRow

_STYLES = {"passed": "green", "failed": "bold red", "warned": "yellow", "unknown": "dim"}
_SHOWN_ROWS = 2
MOST = 10_000
"""Results that one command reads."""


class DatasetChecks(Reply, frozen=True, kw_only=True):
    """What `--json` prints of one dataset."""

    checks: list[CheckRow]
    results: list[CheckResultRow]


@click.command()
@click.argument("dataset", required=False)
@click.option("--check", metavar="NAME", help="Results of this check only.")
@click.option("--failed", is_flag=True, help="Only checks that did not pass.")
@click.option(
    "--limit",
    type=click.IntRange(1, MOST),
    default=20,
    show_default=True,
    help="How many results to show.",
)
@click.option("--since", type=TIME, help="Results since then: 30m, 2h, 7d, or a time like 2026-01-31T12:00:00Z.")
@click.option(
    "--over-time", is_flag=True, help=f"A summary of each day (UTC) and check, of the newest {MOST:,} results."
)
@user_command
def command(
    session: Session,
    dataset: str | None,
    check: str | None,
    failed: bool,
    limit: int,
    since: datetime | None,
    over_time: bool,
) -> None:
    """List the checks of all datasets, or show those of DATASET with their newest results.

    A unit fails a check if its newest result is a failure. `warned` is a check of severity `warn` that failed: its rows
    are committed all the same.

    \b
    Examples:
      trace checks
      trace checks transfers
      trace checks transfers --failed --limit 100 --json
      trace checks transfers --over-time --since 7d
    """
    if dataset is None:
        if check is not None:
            raise click.UsageError("--check NAME needs a DATASET: checks of several datasets may have one name.")
        if since is not None or over_time:
            raise click.UsageError("--since and --over-time need a DATASET.")
        _show_all(session, failed=failed)
        return
    find = partial(find_results, name=dataset, check=check, failed=failed, since=since)
    if over_time:
        summary = session.ask(lambda client: _summarise(find(client, limit=MOST)), dataset=dataset)
        session.show(days_listing(summary.days))
        if summary.more:
            session.say(f"Only the newest {MOST:,} results: name a --check, or a later --since.")
        return

    async def ask(client: UserClient) -> DatasetChecks:
        reply = await client.call(routes.LIST_CHECKS, dataset=dataset)
        return DatasetChecks(checks=_chosen(reply.checks, failed=failed), results=await find(client, limit=limit))

    detail = session.ask(ask, dataset=dataset)
    if not detail.checks and not detail.results:
        session.say(f"{dataset} has no {'failing ' if failed else ''}checks.")
        return
    session.show(*sections(("Checks", checks_listing(detail.checks)), ("Results", results_listing(detail.results))))
    if any(row.state == "failed" for row in detail.checks):  # a warning stops nothing
        session.hint("see why it waits", "why", dataset)


async def find_results(
    client: UserClient, *, limit: int, since: datetime | None, **filters: Any
) -> list[CheckResultRow]:
    """The newest results, page by page."""
    results: list[CheckResultRow] = []
    until: datetime | None = None
    while len(results) < limit:
        page_size = min(500, limit - len(results))
        page = await client.call(routes.LIST_CHECK_RESULTS, since=since, until=until, limit=page_size, **filters)
        results += page.results
        until = page.next
        if until is None:
            break
    return results[:limit]


class CheckDay(Reply, frozen=True, kw_only=True):
    """The results of one check of a day."""

    day: str
    check: str
    evaluated: int
    failed: int
    warned: int
    offending_rows: int


class CheckDays(Reply, frozen=True, kw_only=True):
    """What `--over-time --json` prints."""

    days: list[CheckDay]
    more: bool = False
    """There are older results that were not read."""


async def _summarise(results: Awaitable[list[CheckResultRow]]) -> CheckDays:
    rows = await results
    return CheckDays(days=summarise_days(rows), more=len(rows) >= MOST)


def summarise_days(results: Iterable[CheckResultRow]) -> list[CheckDay]:
    by_day: dict[tuple[str, str], list[CheckResultRow]] = {}
    for row in results:
        by_day.setdefault((row.checked_at.astimezone(UTC).date().isoformat(), row.name), []).append(row)
    return [
        CheckDay(
            day=day,
            check=check,
            evaluated=len(rows),
            failed=sum(not row.passed and row.severity == "error" for row in rows),
            warned=sum(not row.passed and row.severity != "error" for row in rows),
            offending_rows=sum(row.offending_rows or 0 for row in rows),
        )
        for (day, check), rows in sorted(by_day.items())
    ]


def days_listing(days: list[CheckDay]) -> Listing:
    return Listing(
        days,
        ListingColumn("day", lambda row: row.day, whole=True),
        ListingColumn("check", lambda row: clean(row.check)),
        ListingColumn("evaluated", lambda row: row.evaluated, right=True),
        ListingColumn("failed", lambda row: row.failed, right=True),
        ListingColumn("warned", lambda row: row.warned, right=True),
        ListingColumn("offending rows", lambda row: row.offending_rows, right=True),
    )


def _show_all(session: Session, *, failed: bool) -> None:
    reply = session.ask(lambda client: client.call(routes.LIST_CHECKS))
    checks = _chosen(reply.checks, failed=failed)
    if not checks:
        session.say("No check fails." if failed else "No dataset has checks.")
        return
    session.show(checks_listing(checks, with_dataset=True))
    session.hint("see results over time", "checks", checks[0].dataset)


def _chosen(checks: list[CheckRow], *, failed: bool) -> list[CheckRow]:
    return [row for row in checks if not failed or row.state in ("failed", "warned")]


def checks_listing(checks: list[CheckRow], *, with_dataset: bool = False) -> Listing:
    dataset: list[ListingColumn[CheckRow]] = [ListingColumn("dataset", lambda row: row.dataset)] if with_dataset else []
    return Listing(
        checks,
        *dataset,
        ListingColumn("check", lambda row: Text(clean(row.name), style="bold")),
        ListingColumn("state", lambda row: Text(row.state, style=_STYLES[row.state]), whole=True),
        ListingColumn("severity", lambda row: row.severity, whole=True),
        ListingColumn("expected", lambda row: row.expected),
        ListingColumn("units", _units, right=True, whole=True),
        ListingColumn("last", lambda row: ago(row.checked_at), whole=True),
        ListingColumn("found", lambda row: row.message or _ages(row)),
    )


def _ages(row: CheckRow) -> str:
    """Of a dataset that is fresh: how new it is, by both measures."""
    times = (("newest commit", row.committed_at), ("newest block", row.data_at))
    return ", ".join(f"{name} {ago(at)}" for name, at in times if at is not None)


def _units(row: CheckRow) -> str:
    if not row.units:
        return ""
    return f"{row.failing_units:,} of {row.units:,} fail" if row.failing_units else f"{row.units:,}"


def results_listing(results: list[CheckResultRow]) -> Listing:
    return Listing(
        results,
        ListingColumn("at", lambda row: ago(row.checked_at), whole=True),
        ListingColumn("unit", lambda row: row.unit),
        ListingColumn("check", lambda row: row.name),
        ListingColumn("result", _result, whole=True),
        ListingColumn("rows", lambda row: row.rows, right=True),
        ListingColumn("found", _found),
        ListingColumn("task", lambda row: str(row.task_id), whole=True, style="dim"),
    )


def _result(row: CheckResultRow) -> Text:
    state = "passed" if row.passed else "failed" if row.severity == "error" else "warned"
    return Text(state, style=_STYLES[state])


def _found(row: CheckResultRow) -> str:
    rows = [
        "(" + ", ".join(f"{name}: {'null' if value is None else value}" for name, value in item.items()) + ")"
        for item in row.sample[:_SHOWN_ROWS]
    ]
    return f"{row.message}: {' '.join(rows)}" if rows else row.message
