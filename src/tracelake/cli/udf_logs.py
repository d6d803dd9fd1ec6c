"""`trace udf logs`: the newest runs of a bundle or a job, and the log of the newest."""

from uuid import UUID

import click
import msgspec
from rich.text import Text

from tracelake.cli.listing import Listing, ListingColumn
from tracelake.cli.logs import show_log, show_next_steps
from tracelake.cli.names import find_job
from tracelake.cli.session import Session, user_command
from tracelake.cli.text import ago, shortened, unit_text
from tracelake.client.user import UserClient
from tracelake.errors import TraceError
from tracelake.wire import routes
from tracelake.wire.parameters import parse_uuid
from tracelake.wire.run_logs import FunctionRun, TaskLog

_STYLES = {"Completed": "green", "Failed": "bold red", "Timeout": "bold red", "Canceled": "dim"}


class RunsWithLog(msgspec.Struct, frozen=True, kw_only=True):
    runs: list[FunctionRun]
    log: TaskLog | None
    """Of the newest run."""


@click.command("logs")
@click.argument("subject", metavar="BUNDLE|DAG/JOB")
@click.option("--limit", type=click.IntRange(1, 100), default=10, show_default=True, help="At most this many runs.")
@user_command
def command(session: Session, subject: str, limit: int) -> None:
    """List the newest runs of a bundle or a job, and show the log of the newest.

    A run is one attempt of a task. A UUID is a bundle and DAG/JOB a job; a name alone is a job that only one active
    DAG has. `trace logs TASK` shows any other run.
    """
    newest = session.ask(lambda client: _collect(client, subject, limit))
    if not newest.runs:
        session.say("No run of it is kept.")
        session.hint("see its tasks", "tasks", *(() if parse_uuid(subject) else ("--job", subject)))
        return
    session.show(_listing(newest.runs))
    if newest.log is not None:
        session.say("")
        show_log(session, newest.log)
        show_next_steps(session, newest.log)
    if len(newest.runs) > 1:
        other = newest.runs[1]
        session.hint("see another run", "logs", str(other.task_id), "--attempt", other.attempt)


async def _collect(client: UserClient, subject: str, limit: int) -> RunsWithLog:
    bundle: UUID | None = parse_uuid(subject)
    if bundle is not None:
        runs = (await client.call(routes.LIST_RUNS, bundle_id=bundle, limit=limit)).runs
    else:
        dag, slash, job = subject.partition("/")
        if not slash:
            dag, job = await find_job(client, subject)
        runs = (await client.call(routes.LIST_RUNS, dag=dag, job=job, limit=limit)).runs
    if not runs:
        return RunsWithLog(runs=[], log=None)
    try:
        log = await client.call(routes.READ_LOG, task_id=runs[0].task_id, attempt=runs[0].attempt)
    except TraceError as error:
        if error.code not in ("log_not_found", "log_expired"):
            raise
        return RunsWithLog(runs=runs, log=None)
    return RunsWithLog(runs=runs, log=log)


def _listing(runs: list[FunctionRun]) -> Listing:
    return Listing(
        runs,
        ListingColumn("task", lambda run: str(run.task_id), whole=True),
        ListingColumn("attempt", lambda run: run.attempt, right=True),
        ListingColumn("job", lambda run: f"{run.dag}/{run.job}"),
        ListingColumn("unit", lambda run: unit_text(run.unit, run.window)),
        ListingColumn(
            "outcome",
            lambda run: Text(run.outcome or "Running", style=_STYLES.get(run.outcome or "", "cyan")),
            whole=True,
        ),
        ListingColumn("started", lambda run: ago(run.started_at), whole=True),
        ListingColumn("error", lambda run: Text(shortened(run.error or ""), style="red")),
    )
