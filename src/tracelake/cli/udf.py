"""`trace udf`: functions of users, from a new directory to a bundle that a DAG can name."""

from pathlib import Path
from uuid import UUID

import click
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from tracelake.bundles.entrypoint import Language
from tracelake.cli import udf_logs
from tracelake.cli.listing import Listing, ListingColumn
from tracelake.cli.options import cursor_option, limit_option
from tracelake.cli.session import Session, user_command
from tracelake.cli.text import ago, count
from tracelake.cli.udf_project import build_project, digest, open_bundle
from tracelake.cli.udf_templates import RUST_BUILD, TEMPLATES, TESTS
from tracelake.client.paging import collect
from tracelake.client.uploads import push_bundle
from tracelake.client.user import UserClient
from tracelake.wire import routes
from tracelake.wire.bundles import BundleDetail, BundleRow, FinalizeBundleRequest

_TEST = "test"
_LANGUAGES = click.Choice(["python", "node", "rust"])
_DIRECTORY = click.argument("directory", type=click.Path(path_type=Path))


class _UdfGroup(click.Group):
    """Loads `test` when it is called: what it needs takes a while to import."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), _TEST])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name == _TEST:
            from tracelake.cli.udf_test import command as test

            return test
        return super().get_command(ctx, cmd_name)


@click.group(cls=_UdfGroup)
def command() -> None:
    """Write, test, build and upload functions: your own code in Python, JavaScript or Rust, which jobs run.

    A function is a directory; its archive, once uploaded, is a bundle, which never changes. A job of a DAG names the
    bundle by its id (`operator: udf`); docs/functions.md has the rules.

    \b
    Examples:
      trace udf new --language python my_function
      trace udf test my_function
      trace udf push my_function
      trace udf list
      trace udf logs my_dag/my_job
      trace udf disable 0192d6a2-...
    """


command.add_command(udf_logs.command)


@command.command()
@click.option("--language", type=_LANGUAGES, required=True, help="The language of the function.")
@_DIRECTORY
def new(language: Language, directory: Path) -> None:
    """Write the files of a new function, with a test, into a directory that is new or empty."""
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise click.ClickException(f"{directory} exists and is not empty; name a new directory.")
    for name, content in TEMPLATES[language].items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    click.echo(f"Wrote {count(len(TEMPLATES[language]), 'file')} to {directory}.")
    click.echo(f"test it: (cd {directory} && {TESTS[language]})")
    if language == "rust":
        click.echo(f"build it: (cd {directory} && {RUST_BUILD})")
    click.echo(f"run it in its sandbox, against samples: trace udf test {directory}")
    click.echo(f"upload it: trace udf push {directory}")


@command.command()
@_DIRECTORY
@click.option(
    "--output", type=click.Path(path_type=Path), help="The archive (default: the directory's name with .zip)."
)
def build(directory: Path, output: Path | None) -> None:
    """Make the archive of a function. Equal files make equal bytes, whenever and wherever they are built."""
    archive, names, _ = build_project(directory)
    target = output or Path(f"{directory.resolve().name}.zip")
    target.write_bytes(archive)
    click.echo(f"{target}: {count(len(names), 'file')}, {len(archive)} bytes, SHA-256 {digest(archive)}")


@command.command()
@click.argument("source", type=click.Path(exists=True, path_type=Path))
@click.option("--language", type=_LANGUAGES, help="Of an archive that was built elsewhere.")
@click.option("--entrypoint", help="Of such an archive: the function in it, like main.handler.")
@click.option("--id", "only_id", is_flag=True, help="Print the id of the bundle and nothing else, for scripts.")
@user_command
def push(session: Session, source: Path, language: Language | None, entrypoint: str | None, only_id: bool) -> None:
    """Upload a function: a directory, or an archive that was built before. Prints the id for the DAG.

    The same archive again is the same bundle, as long as that is enabled.
    """
    archive, project = open_bundle(source, language, entrypoint)
    request = FinalizeBundleRequest(sha256=digest(archive), language=project.language, entrypoint=project.entrypoint)
    bundle = session.ask(lambda client: _push(session, client, archive, request))
    if only_id:
        click.echo(str(bundle.bundle_id))
        return
    what = "is uploaded already" if bundle.duplicate else "is ready"
    session.say("Bundle ", (str(bundle.bundle_id), "bold"), f" {what}.")
    for notice in bundle.notices:
        session.say(("note: ", "yellow"), f"{notice.entry}: {notice.message}")
    tail = "" if bundle.entrypoint is None else f", entrypoint: {bundle.entrypoint}"
    session.say_to_copy("in a job", f"udf: {{ bundle_id: {bundle.bundle_id}{tail} }}")


async def _push(session: Session, client: UserClient, archive: bytes, request: FinalizeBundleRequest) -> BundleDetail:
    columns = (TextColumn("uploading"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=session.console, transient=True, disable=not session.console.is_terminal) as bar:
        line = bar.add_task("upload", total=len(archive))
        return await push_bundle(client, archive, request, lambda sent_bytes: bar.update(line, completed=sent_bytes))


@command.command("list")
@limit_option(50)
@cursor_option
@user_command
def list_bundles(session: Session, limit: int, cursor: str | None) -> None:
    """List the bundles of your org, newest first."""
    reply = session.ask(lambda client: collect(client, routes.LIST_BUNDLES, "bundles", limit=limit, cursor=cursor))
    if not reply.bundles:
        session.say("There are no bundles.")
        session.hint("begin with a new function", "udf", "new", "--language", "python", "my_function")
        return
    session.show(_listing(reply.bundles))
    if reply.next is not None:
        session.hint("see the next page", "udf", "list", "--limit", limit, "--cursor", reply.next)


def _listing(bundles: list[BundleRow]) -> Listing:
    return Listing(
        bundles,
        ListingColumn("bundle", lambda row: str(row.bundle_id), whole=True),
        ListingColumn("state", lambda row: row.status, whole=True),
        ListingColumn("language", lambda row: row.language, whole=True),
        ListingColumn("entrypoint", lambda row: row.entrypoint),
        ListingColumn("bytes", lambda row: row.size_bytes, right=True),
        ListingColumn("uploaded", lambda row: ago(row.created_at), whole=True),
        ListingColumn("by", lambda row: row.created_by),
    )


@command.command()
@click.argument("bundle", type=click.UUID)
@user_command
def show(session: Session, bundle: UUID) -> None:
    """Show a bundle: its language, hash and size, and why it was rejected if it was."""
    detail = session.ask(lambda client: client.call(routes.SHOW_BUNDLE, bundle_id=bundle))
    session.say("Bundle ", (str(detail.bundle_id), "bold"), f", {detail.status}")
    if detail.reason is not None:
        session.say((f"  {detail.reason_code}: {detail.reason}", "red"))
    if detail.language is not None:
        session.say(f"  {detail.language}{'' if detail.entrypoint is None else f', {detail.entrypoint}'}")
    if detail.sha256 is not None:
        session.say((f"  SHA-256 {detail.sha256}", "dim"))
    files = "" if detail.entry_count is None else f", {count(detail.entry_count, 'file')}"
    session.say((f"  {detail.size_bytes} bytes{files}", "dim"))
    session.say((f"  uploaded {ago(detail.created_at)} by {detail.created_by}", "dim"))
    if detail.disabled_at is not None:
        session.say((f"  disabled {ago(detail.disabled_at)} by {detail.disabled_by}", "dim"))
    for notice in detail.notices:
        session.say(("  note: ", "yellow"), f"{notice.entry}: {notice.message}")


@command.command()
@click.argument("bundle", type=click.UUID)
@click.option("--yes", is_flag=True, help="Do not ask.")
@user_command
def disable(session: Session, bundle: UUID, yes: bool) -> None:
    """Disable a bundle for good: running attempts go on, and no attempt starts with it from now on."""
    if not yes:
        click.confirm(f"Disable {bundle} for good?", abort=True, err=session.as_json)
    detail = session.ask(lambda client: client.call(routes.DISABLE_BUNDLE, bundle_id=bundle))
    session.say(f"Bundle {bundle} {'was disabled before' if detail.duplicate else 'is disabled'}.")
