"""`trace rollback`, `trace activate` and `trace rebuild`: another version becomes active, or stale outputs are computed
again."""

from typing import Literal

import click

from tracelake.cli.build_progress import settle, show_plan, wait_option
from tracelake.cli.session import Session, user_command
from tracelake.client.errors import RemoteError
from tracelake.errors import TraceError
from tracelake.wire import routes
from tracelake.wire.dags import ActivateRequest

_now_option = click.option("--now", is_flag=True, help="Activate it at once, even if its build is not finished.")


@click.command()
@click.argument("dag")
@click.option("--to", "version", type=click.IntRange(1), metavar="N", help="The same as `trace activate DAG N`.")
@_now_option
@wait_option
@user_command
def command(session: Session, dag: str, version: int | None, now: bool, wait: bool) -> None:
    """Activate the version of DAG that was active before the present one. A second rollback undoes the first.

    The data of that version still exists, so a rollback needs no build; it catches up with the events that came
    meanwhile.

    \b
    Example:
      trace rollback pools
    """
    _activate(session, dag, version or "previous", now=now, wait=wait)


@click.command()
@click.argument("dag")
@click.argument("version", type=click.IntRange(1), metavar="N")
@_now_option
@wait_option
@user_command
def activate(session: Session, dag: str, version: int, now: bool, wait: bool) -> None:
    """Make version N of DAG the active one.

    A version that computes other data than the active one is first built beside it, and takes over when its build is
    finished. A version that was active before needs no build.

    \b
    Examples:
      trace activate pools 3
      trace activate pools 4 --now   activate it with what is built so far
    """
    _activate(session, dag, version, now=now, wait=wait)


def _activate(session: Session, dag: str, version: int | Literal["previous"], *, now: bool, wait: bool) -> None:
    request = ActivateRequest(version=version, now=now)
    try:
        reply = session.run(lambda client: client.call(routes.ACTIVATE, request, dag=dag), dag=dag)
    except TraceError as error:
        if error.code != "dag_version_not_found" or version != "previous":
            raise
        message = f"No other version of {dag} has been active, so there is none to go back to. See `trace dags {dag}`."
        raise RemoteError(error.code, error.status, message) from None
    if not session.as_json:
        show_plan(session, reply.plan)
    reply, good = settle(session, reply, wait=wait)
    session.answer(reply, status=0 if good else 1)
    if good and reply.state == "Active":
        session.say((f"Version {reply.plan.version} of {reply.plan.dag} is active.", "green"))
        session.hint("see its tasks", "tasks", "--dag", reply.plan.dag)
    elif good:
        session.say(
            f"Version {reply.plan.version} of {reply.plan.dag} is being built; the active version runs meanwhile."
        )
        session.hint("follow the build", "dags", reply.plan.dag, "--watch")
    if not good:
        click.get_current_context().exit(1)


@click.command()
@click.argument("target", metavar="DAG/JOB")
@user_command
def rebuild(session: Session, target: str) -> None:
    """Compute the stale outputs of DAG/JOB again, unit by unit.

    An output is stale when another DAG has rebuilt a dataset that the job reads: its earlier units were computed from
    the older generation. `trace datasets` marks stale datasets, and `trace why DATASET` explains each. Jobs that read
    the outputs follow by themselves.

    \b
    Example:
      trace rebuild reports/hourly
    """
    dag, _, job = target.partition("/")
    if not dag or not job:
        raise click.UsageError("Name the job as DAG/JOB, such as `reports/hourly`.")
    reply = session.ask(lambda client: client.call(routes.REBUILD, dag=dag, job=job), dag=dag, job=job)
    state = "are being computed again already" if reply.duplicate else "are computed again"
    session.say(f"The outputs of {reply.dag}/{reply.job} {state}, from the current {reply.because}.")
    session.hint("see its tasks", "tasks", "--dag", reply.dag, "--job", reply.job)
