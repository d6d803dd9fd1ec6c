"""`trace remove`: removes a DAG with its datasets, restores one, or deletes one for good."""

import sys

import click
from rich.console import Group, RenderableType
from rich.text import Text

from tracelake.cli.listing import Listing, ListingColumn
from tracelake.cli.session import Session, looks, user_command
from tracelake.cli.text import clean, count, grouped, moment, size_text, storage_text
from tracelake.client.user import UserClient
from tracelake.errors import TraceError
from tracelake.wire import routes
from tracelake.wire.contract import Role
from tracelake.wire.removal import HeldDataset, RemovalPlan, RemovalReply, RemovedDag, RemovedDagsReply


@click.command()
@click.argument("dag", required=False)
@click.option("--plan", "only_plan", is_flag=True, help="Show what DAG holds and who needs it, and change nothing.")
@click.option("--undo", is_flag=True, help="Bring a removed DAG back.")
@click.option("--purge", is_flag=True, help="Delete DAG for good, now. Needs an admin; there is no way back.")
@click.option("--wait", is_flag=True, help="With --purge: return when everything is deleted.")
@click.option("--yes", is_flag=True, help="Do not ask for the name of the DAG to be typed.")
@click.option("--list", "listed", is_flag=True, help="List the DAGs that were removed.")
@user_command
def command(
    session: Session,
    dag: str | None,
    only_plan: bool,
    undo: bool,
    purge: bool,
    wait: bool,
    yes: bool,
    listed: bool,
) -> None:
    """Remove DAG with its datasets. It can be restored for some days (`removed_retention_days`), and is then deleted.

    A removed DAG does nothing: its sources stop, its tasks are cancelled, and its datasets are in no list and no query.
    Its names stay taken until it is deleted. A DAG whose datasets other DAGs need is not removed.

    \b
    Examples:
      trace remove pools --plan      what it holds, and who needs it
      trace remove pools             remove it, after you typed its name
      trace remove --list            what was removed, and until when it can be restored
      trace remove --undo pools      bring it back
      trace remove --purge pools     delete it for good
    """
    if listed:
        if dag is not None or only_plan or undo or purge:
            raise click.UsageError("--list stands alone.")
        _show_removed(session)
        return
    if dag is None:
        raise click.UsageError("Name the DAG, or list those that were removed: `trace remove --list`.")
    if sum((only_plan, undo, purge)) > 1 or (wait and not purge):
        raise click.UsageError("Choose one of --plan, --undo and --purge; --wait goes with --purge.")
    if only_plan:
        plan = session.ask(lambda client: client.call(routes.PLAN_REMOVAL, dag=dag), dag=dag)
        session.show(plan_view(plan))
        _say_verdict(session, plan)
    elif undo:
        _restore(session, dag)
    elif purge:
        _purge(session, dag, yes=yes, wait=wait)
    else:
        _remove(session, dag, yes=yes)


def _show_removed(session: Session) -> None:
    reply = session.ask(lambda client: client.call(routes.LIST_REMOVED))
    session.show(removed_view(reply))
    restorable = next((row.dag for row in reply.dags if row.state == "removed"), None)
    if restorable is not None:
        session.hint("bring it back", "remove", "--undo", restorable)


def _remove(session: Session, dag: str, *, yes: bool) -> None:
    plan = session.run(lambda client: _find_plan(client, dag), dag=dag)
    if plan is not None and not _is_needed(plan):
        _confirm(session, plan_view(plan), dag, f"remove {dag}", yes=yes)
    # With readers the call is refused, and the error names them.
    reply = session.ask(lambda client: client.call(routes.REMOVE_DAG, dag=dag), dag=dag)
    _say_removed(session, reply)


async def _find_plan(client: UserClient, dag: str) -> RemovalPlan | None:
    """None if the DAG was removed before: there is nothing to lose."""
    try:
        return await client.call(routes.PLAN_REMOVAL, dag=dag)
    except TraceError as error:
        if error.code == "dag_removed":
            return None
        raise


def _say_removed(session: Session, reply: RemovalReply) -> None:
    if reply.state == "purging":
        session.say(f"{reply.dag} was removed before, and is being deleted.")
        return
    was = "was removed before" if reply.duplicate else "is removed"
    until = "until somebody purges it" if reply.restorable_until is None else f"until {moment(reply.restorable_until)}"
    session.say((f"{reply.dag} {was}.", "green"), f" It can be restored {until}; then it is deleted with its data.")
    session.hint("bring it back", "remove", "--undo", reply.dag)


def _restore(session: Session, dag: str) -> None:
    reply = session.ask(lambda client: client.call(routes.RESTORE_DAG, dag=dag), dag=dag)
    if reply.duplicate:
        session.say(f"{dag} is not removed.")
    elif reply.version is None:
        session.say((f"{dag} is back.", "green"), " No version of it was active.")
    else:
        session.say(
            (f"{dag} is back", "green"), f" with version {reply.version}; it catches up with what came meanwhile."
        )
    session.hint("see its jobs", "jobs", dag)


def _purge(session: Session, dag: str, *, yes: bool, wait: bool) -> None:
    plan = session.run(lambda client: _find_plan(client, dag), dag=dag)
    if plan is None:
        _confirm(session, Text(f"{clean(dag)} was removed before."), dag, f"delete {dag} for good", yes=yes)
    elif not _is_needed(plan):
        _confirm(session, plan_view(plan), dag, f"delete {dag} for good", yes=yes)

    async def purge(client: UserClient) -> RemovalReply:
        if plan is not None:
            await _require_admin(client)
            await client.call(routes.REMOVE_DAG, dag=dag)
        reply = await client.call(routes.PURGE_DAG, dag=dag)
        if wait:
            session.say(f"Deleting the rows, files and tables of {dag}; waiting until all are gone ...")
            async for look in looks(lambda: client.call(routes.LIST_REMOVED)):
                if isinstance(look, RemovedDagsReply) and all(row.dag != dag for row in look.dags):
                    return RemovalReply(dag=dag, state="purged")
        return reply

    reply = session.ask(purge, dag=dag)
    if reply.state == "purged":
        session.say((f"{dag} is deleted.", "green"), " Its names are free.")
    else:
        session.say((f"{dag} is being deleted.", "green"), " Its names are free when that is done.")
        session.hint("see whether it is done", "remove", "--list")


async def _require_admin(client: UserClient) -> None:
    """A purge is two calls, and only the second one needs an admin: without this check, half of it would be done."""
    if Role.ADMIN not in (await client.call(routes.WHOAMI)).roles:
        raise TraceError("role_forbidden", f"Deleting a DAG for good needs the role {Role.ADMIN}; nothing was changed.")


def _confirm(session: Session, view: RenderableType, dag: str, purpose: str, *, yes: bool) -> None:
    """Shows what goes, and has the name typed. Without a terminal nobody can type it."""
    if yes:
        return
    if not _is_asked(session.as_json):
        raise click.UsageError(f"Nobody can be asked whether to {clean(purpose)}: pass --yes.")
    session.show(view)
    typed = click.prompt(f"Type {clean(dag)} to {clean(purpose)}", default="", show_default=False)
    if typed.strip() != dag:
        raise click.ClickException("That is not its name; nothing was changed.")


def _is_asked(as_json: bool) -> bool:
    return not as_json and sys.stdin.isatty()


def _is_needed(plan: RemovalPlan) -> bool:
    return bool(plan.readers or plan.more_readers)


def _say_verdict(session: Session, plan: RemovalPlan) -> None:
    if _is_needed(plan):
        session.say((f"{plan.dag} cannot be removed while other DAGs need it.", "yellow"))
        if plan.readers:
            session.hint("see one of them", "jobs", plan.readers[0].dag)
    else:
        session.hint("remove it", "remove", plan.dag)


def plan_view(plan: RemovalPlan) -> RenderableType:
    tasks = f"{grouped(plan.open_tasks)}{'+' if plan.more_tasks else ''}"
    active = "no active version" if plan.active_version is None else f"version {plan.active_version} is active"
    lines = [
        Text.assemble(
            (clean(plan.dag), "bold"), f": {count(plan.versions, 'version')}, {active}, {count(plan.jobs, 'job')}"
        ),
        Text(f"open tasks: {tasks}"),
    ]
    for name, items in (("sources", plan.sources), ("webhooks", plan.webhooks), ("functions", plan.functions)):
        if items:
            lines.append(Text(f"{name}: {clean(', '.join(items))}"))
    term = "until it is purged" if not plan.kept_days else f"for {count(plan.kept_days, 'day')}"
    lines.append(Text(f"removed, it can be restored {term}"))
    datasets = Listing(
        plan.datasets,
        ListingColumn("dataset", lambda row: row.name),
        ListingColumn("stored", lambda row: storage_text(row.storage), whole=True),
        ListingColumn("generations", lambda row: row.generations, right=True),
        ListingColumn("rows", _rows, right=True),
        ListingColumn("size", lambda row: "" if row.bytes is None else size_text(row.bytes), right=True),
    )
    if plan.more_readers:
        lines.append(Text(f"needed by {count(plan.more_readers, 'job')} of DAGs that your token does not reach"))
    if not plan.readers:
        return Group(*lines, datasets)
    readers = Listing(
        plan.readers,
        ListingColumn("needed by", lambda row: f"{row.dag}/{row.job}"),
        ListingColumn("how", lambda row: row.how, whole=True),
        ListingColumn("dataset", lambda row: row.dataset),
    )
    return Group(*lines, datasets, readers)


def _rows(row: HeldDataset) -> str:
    return "" if row.rows is None else grouped(row.rows)


def removed_view(reply: RemovedDagsReply) -> RenderableType:
    if not reply.dags:
        return Text("No DAG was removed, or what was removed is deleted.")
    return Listing(
        reply.dags,
        ListingColumn("dag", lambda row: Text(clean(row.dag), style="bold")),
        ListingColumn("state", lambda row: row.state, whole=True),
        ListingColumn("datasets", lambda row: row.datasets, right=True),
        ListingColumn("removed", lambda row: moment(row.removed_at), whole=True),
        ListingColumn("by", lambda row: row.removed_by),
        ListingColumn("restorable until", _until, whole=True),
    )


def _until(row: RemovedDag) -> str:
    if row.state == "purging":
        return "being deleted"
    return "purged" if row.restorable_until is None else moment(row.restorable_until)
