"""`trace backup` and `trace restore`: the state database of a home is written to a dump, and replaced by one."""

from pathlib import Path

import click

from tracelake.cli.session import Session, operator_command
from tracelake.settings import Settings
from tracelake.settings.configs import dispatcher_config
from tracelake.stack import dumps
from tracelake.stack.backup import write_dump
from tracelake.stack.dumps import BackupError
from tracelake.stack.restore import Report, restore


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@operator_command
def command(session: Session, file: Path, force: bool) -> None:
    """Write a dump of the state database to FILE, while the stack runs.

    The dump holds everything the control plane knows: DAGs, tasks, events, manifests, the audit log. It does not hold
    the files of the object store, keys, secrets, your own files (*.toml), or the data database. Copy these after the
    dump, so that everything the dump refers to is in the copies.

    Copy the buckets of the object store with any program for S3; HOME/secrets/object-store.json has address and keys.
    Copy HOME/objects only after `trace down`: a copy made while the stack runs is of no use. The queue needs no
    backup. `trace restore FILE` loads the dump.

    \b
    Examples:
      trace backup state.dump
      trace backup "state-$(date +%F).dump"
    """
    settings = Settings.load({"home": session.home})
    if file.exists() and not force:
        raise BackupError(f"{file} exists; name another file, or add --force to replace it")
    size = write_dump(settings, file, replace=force)
    session.answer({"file": str(file), "bytes": size})
    click.echo(f"Wrote {file} ({size:,} bytes): the state database as it was when the dump began.")
    click.echo("The dump does not hold these; copy them now:")
    for line in _what_else(settings):
        click.echo(f"  {line}")
    click.echo(f"To load it: `trace restore {file}`.")


def _what_else(settings: Settings) -> list[str]:
    """What a backup needs besides the dump, and how to copy it while the stack runs."""
    home = settings.layout
    own = [file for file in (home.settings_file, home.rpc_file, home.secrets_file) if file.exists()]
    if settings.s3_endpoint is None:
        lines = [
            f"the object store: its buckets, by S3, with the address and keys in {home.object_store_file};",
            f"  or {home.objects} after `trace down` (a copy made while the stack runs is of no use)",
        ]
    else:
        lines = [f"the object store: its buckets, at {settings.s3_endpoint}"]
    lines.append(", ".join(map(str, [home.keys, home.secrets, *own])))
    lines.append("the data database, with the tables of buffered datasets: by pg_dump")
    return lines


@click.command()
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False, readable=True))
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@operator_command
def restore_command(session: Session, file: Path, yes: bool) -> None:
    """Replace the state database of a home by the dump in FILE. The stack must be down.

    Everything accepted after the dump is lost: deploys, events, tasks, deliveries, decisions of users. Attempts that
    still run somewhere are refused from then on, and their tasks are tried again; ids that were given out after the
    dump are not used again. The home may be a new one. A dump that cannot be used changes nothing.

    \b
    Examples:
      trace down && trace restore state.dump && trace up
      trace restore state.dump --home ./elsewhere --yes
    """
    settings = Settings.load({"home": session.home})
    config = dispatcher_config(settings)
    dump = dumps.inspect(file)
    if not yes:
        click.confirm(
            f"Replace the state of {settings.home} by {file}, a dump of {dump.made_at}? What came after it is lost.",
            abort=True,
            err=session.as_json,
        )
    _tell(session.answer(restore(settings, dump, config)), settings)


def _tell(report: Report, settings: Settings) -> None:
    done = report.rewound
    click.echo(f"The state of {settings.home} is now that of {report.file}, a dump of {report.made_at}:")
    click.echo(f"  {report.tasks:>9,}  tasks, and {report.events:,} events")
    click.echo(f"  {done.leases_ended:>9,}  leases ended; their tasks are tried again, except those being cancelled")
    click.echo(f"  {done.attempts_moved:>9,}  tasks continue with attempt numbers that were never used")
    click.echo(f"  {report.wake_ups:>9,}  wake-ups written; {report.messages_dropped:,} messages of the queue dropped")
    if report.leftovers_dropped:
        click.echo(f"Dropped first, left by a restore that was killed: {', '.join(report.leftovers_dropped)}.")
    if report.migrated:
        click.echo(f"  {len(report.migrated):>9,}  migrations applied")
    if not done.continued:
        click.echo("The replaced state did not descend from this dump, so new ids start far above those of both.")
        click.echo("Webhook secrets that were rotated elsewhere after the dump are the old ones again: rotate them.")
    click.echo(f"Next: `trace up --home {settings.home}`, then `trace status` and `trace sources`.")
