"""`trace rollback` and `trace activate`: another version of a DAG becomes active."""

from collections.abc import Callable
from typing import Any, Literal

import click

from tracelake.cli.build_progress import settle, show_plan
from tracelake.cli.missing import explained
from tracelake.cli.session import Session, user_command
from tracelake.wire import routes
from tracelake.wire.dags import ActivateRequest

_now_option = click.option("--now", is_flag=True, help="Cut over at once, also when a build is not finished.")
_wait_option = click.option("--wait/--no-wait", default=True, help="Stay until a build is finished (default), or not.")


def _how(function: Callable[..., Any]) -> Callable[..., Any]:
    return _now_option(_wait_option(user_command(function)))


@click.command()
@click.argument("dag")
@click.option("--to", "version", type=click.IntRange(1), metavar="N", help="The same as `trace activate DAG N`.")
@_how
def command(session: Session, dag: str, version: int | None, now: bool, wait: bool) -> None:
    """Go back to the version of DAG that was active before; again: forth.

    The data of a version that was active before is still there, so going back needs no build; what came in meanwhile is
    caught up.

    \b
    Example:
      trace rollback pools
    """
    _activate(session, dag, version or "previous", now=now, wait=wait)


@click.command()
@click.argument("dag")
@click.argument("version", type=click.IntRange(1), metavar="N")
@_how
def activate(session: Session, dag: str, version: int, now: bool, wait: bool) -> None:
    """Make version N of DAG active, older or newer.

    A version that writes other data than the active one is built beside it first and takes over when its build is
    finished. One that was active before needs no build.

    \b
    Examples:
      trace activate pools 3
      trace activate pools 4 --now   take over with what is built so far
    """
    _activate(session, dag, version, now=now, wait=wait)


def _activate(session: Session, dag: str, version: int | Literal["previous"], *, now: bool, wait: bool) -> None:
    reply = session.run(
        lambda client: explained(
            client, client.call(routes.ACTIVATE, ActivateRequest(version=version, now=now), dag=dag), dag=dag
        )
    )
    if not session.as_json:
        show_plan(session, reply.plan)
    reply, good = settle(session, reply, wait=wait)
    session.answer(reply, status=0 if good else 1)
    if good and reply.state == "Active":
        session.say((f"Version {reply.plan.version} of {reply.plan.dag} is active.", "green"))
        session.hint("see it run", "tasks", "--dag", reply.plan.dag)
    elif good:
        session.say(f"Version {reply.plan.version} of {reply.plan.dag} is being built; the active one goes on.")
        session.hint("see it", "dags", reply.plan.dag, "--watch")
    if not good:
        click.get_current_context().exit(1)
