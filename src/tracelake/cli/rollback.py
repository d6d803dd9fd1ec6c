"""`trace rollback`: another version of a DAG counts."""

import click

from tracelake.cli.activation import settle, show_plan
from tracelake.cli.session import Session, user_command


@click.command()
@click.argument("dag")
@click.option("--to", "version", type=click.IntRange(1), metavar="N", help="That version (default: the one before).")
@click.option("--now", is_flag=True, help="Cut over at once, also when a build is not finished.")
@click.option("--wait/--no-wait", default=True, help="Stay until a build is finished (default), or not.")
@user_command
def command(session: Session, dag: str, version: int | None, now: bool, wait: bool) -> None:
    """Let another version of DAG count: the one before, or version N.

    The data of a version that counted before is still there, so going back needs no build; what came in meanwhile is
    caught up.

    \b
    Examples:
      trace rollback pools          back to the version before
      trace rollback pools --to 3   to version 3, older or newer
    """
    reply = session.run(lambda client: client.activate(dag, version or "previous", now=now))
    if not session.as_json:
        show_plan(session, reply.plan)
    reply, good = settle(session, reply, wait=wait)
    if session.as_json:
        session.json(reply)
    elif good and reply.state == "Active":
        session.say((f"Version {reply.plan.version} of {reply.plan.dag} is active.", "green"))
        session.hint("see it run", "tasks", "--dag", reply.plan.dag)
    elif good:
        session.say(f"Version {reply.plan.version} of {reply.plan.dag} is being built; the active one goes on.")
        session.hint("see it", "dags", reply.plan.dag, "--watch")
    if not good:
        click.get_current_context().exit(1)
