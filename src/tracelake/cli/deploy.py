"""`trace deploy`: stores a DAG document as a version and activates it."""

import sys
from pathlib import Path

import click
import msgspec

from tracelake.cli.build_progress import settle, show_plan, wait_option
from tracelake.cli.diagnostics import problem_lines
from tracelake.cli.session import Session, make_console, show, user_command
from tracelake.client.dag_documents import dag_name, name_of_file
from tracelake.errors import TraceError
from tracelake.wire import routes
from tracelake.wire.dags import DeployReply, InvalidDag

_STDIN = "<stdin>"


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True), metavar="FILE")
@click.option("--plan", "plan_only", is_flag=True, help="Show what would change, and change nothing.")
@click.option("--no-activate", is_flag=True, help="Only store the version; `trace activate` makes it active.")
@wait_option
@user_command
def command(session: Session, file: str, plan_only: bool, no_activate: bool, wait: bool) -> None:
    """Deploy a DAG document (YAML): store it as a version of the DAG, and make that version active.

    FILE `-` reads standard input. Deploying the same document again changes nothing. A version that computes other data
    than the active one is first built beside it, and takes over when its build is finished. All errors of a document
    are listed at once, each with its line. docs/dag.md describes the language.

    Exit status: 0 if the version is active (or planned, or stored, as the options ask), 1 otherwise.

    \b
    Examples:
      trace deploy pools.yaml --plan       what would change
      trace deploy pools.yaml              deploy, and wait for the build
      trace deploy - --json < pools.yaml   for programs
    """
    source = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    name = dag_name(source) or name_of_file("dag" if file == "-" else Path(file).stem)
    try:
        reply = session.run(
            lambda client: client.call(routes.DEPLOY, source, dag=name, dry_run=plan_only, activate=not no_activate),
        )
    except TraceError as error:
        invalid = _invalid(error)
        if invalid is None:
            raise
        if session.as_json:
            session.error(error)
        show(make_console(stderr=True), *problem_lines(invalid.problems, _STDIN if file == "-" else file, source))
        click.get_current_context().exit(1)
    if not session.as_json:
        show_plan(session, reply.plan)
    reply, good = settle(session, reply, wait=wait)
    session.answer(reply, status=0 if good else 1)
    if not good:
        click.get_current_context().exit(1)
    _tell(session, reply, file)


def _invalid(error: TraceError) -> InvalidDag | None:
    if error.code != "dag_invalid":
        return None
    try:
        return msgspec.convert(error.details, InvalidDag)
    except msgspec.ValidationError:
        return None


def _tell(session: Session, reply: DeployReply, file: str) -> None:
    plan = reply.plan
    version = f"Version {plan.version} of {plan.dag}"
    match reply.state:
        case "Planned":
            if not plan.changes:
                session.say(f"Nothing would change: version {plan.version} of {plan.dag} is active.")
                return
            how = "it would first be built beside the active one" if plan.needs_build else "it would be active at once"
            session.say(f"{version}: ", (how, "bold"), ". Nothing was changed.")
            session.hint("deploy it", "deploy", file)
        case "Created":
            session.say(f"{version} is stored; it is not active yet.")
            session.hint("make it active", "activate", plan.dag, plan.version)
        case "Building":
            session.say(f"{version} is being built; the active version runs meanwhile.")
            session.hint("follow the build", "dags", plan.dag, "--watch")
        case "Active":
            if not plan.changes:
                session.say(f"Nothing changed: version {plan.version} of {plan.dag} is active.")
            else:
                session.say((f"{version} is active.", "green"))
            session.hint("see its jobs and sources", "jobs", plan.dag)
