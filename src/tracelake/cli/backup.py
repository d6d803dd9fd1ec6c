"""`trace backup` and `trace restore`: a whole stack, or its state, is written to files and replaced by them."""

from pathlib import Path

import click

from tracelake.cli.session import Session, operator_command
from tracelake.settings import Settings
from tracelake.settings.configs import dispatcher_config
from tracelake.stack import dumps
from tracelake.stack.backup import write_dump
from tracelake.stack.backup_files import verify_backup
from tracelake.stack.dumps import BackupError
from tracelake.stack.full_backup import FullBackupReport, Say, write_backup
from tracelake.stack.full_restore import refuse_unfinished, restore_backup
from tracelake.stack.restore import Report, restore


@click.command()
@click.argument("target", type=click.Path(path_type=Path))
@click.option("--all", "everything", is_flag=True, help="Back up the whole stack; TARGET is a new directory.")
@click.option("--force", is_flag=True, help="Replace the file TARGET if it exists; not with --all.")
@click.option("--without-secrets", is_flag=True, help="With --all: leave out keys, certificates and your *.toml files.")
@click.option("--allow-missing", is_flag=True, help="With --all: go on if the store has lost files; they are named.")
@operator_command
def command(
    session: Session, target: Path, everything: bool, force: bool, without_secrets: bool, allow_missing: bool
) -> None:
    """Write a backup while the stack runs: with --all of the whole stack, else of the state database alone.

    With --all, TARGET becomes a directory with the state, the tables, the objects, and the keys and settings of the
    home, all as of one moment. `trace restore --all TARGET` restores it, also into a new home. It holds secrets:
    protect it like the home, or leave them out (--without-secrets) and keep HOME/keys, HOME/tls and HOME/*.toml
    yourself. The queue needs no backup. Variables (TRACE_*) are not in it.

    Without --all, TARGET becomes a dump of the state database: DAGs, tasks, events, manifests, the audit log. Copy
    objects, keys, secrets, your own files (*.toml) and the data database yourself, after the dump.

    \b
    Examples:
      trace backup --all "backup-$(date +%F)"
      trace backup state.dump
    """
    settings = Settings.load({"home": session.home})
    if everything:
        if force:
            raise click.UsageError("--force goes with a dump; a backup of the whole stack is never replaced.")
        report = write_backup(
            settings,
            target,
            with_secrets=not without_secrets,
            allow_missing=allow_missing,
            say=_progress(session),
        )
        _tell_backup(session.answer(report), settings)
        return
    if without_secrets or allow_missing:
        raise click.UsageError("--without-secrets and --allow-missing go with --all.")
    _write_dump(session, settings, target, force=force)


def _write_dump(session: Session, settings: Settings, file: Path, *, force: bool) -> None:
    if file.is_dir():
        raise BackupError(f"{file} is a directory; name a file, or add --all for a backup of the whole stack")
    if file.exists() and not force:
        raise BackupError(f"{file} exists; name another file, or add --force to replace it")
    size = write_dump(settings, file, replace=force)
    session.answer({"file": str(file), "bytes": size})
    click.echo(f"Wrote {file} ({size:,} bytes): the state database as it was when the dump began.")
    click.echo("The dump does not hold these; copy them now, or use `trace backup --all`:")
    for line in _what_else(settings):
        click.echo(f"  {line}")
    click.echo(f"To load it: `trace restore {file}`.")


def _progress(session: Session) -> Say:
    """Lines for a person; a program gets the report alone."""
    return (lambda _text: None) if session.as_json else (lambda text: click.echo(f"{text} ...", err=True))


def _tell_backup(report: FullBackupReport, settings: Settings) -> None:
    click.echo(f"Wrote {report.directory} ({report.bytes:,} bytes): the stack of {settings.home} at {report.made_at}:")
    click.echo("  state and tables, as of one moment")
    click.echo(f"  {report.objects:,} objects ({report.object_bytes:,} bytes)")
    if report.has_secrets:
        click.echo("  keys, certificates, settings.toml, rpc.toml, secrets.toml: protect the backup like the home")
    else:
        home = settings.layout
        files = (home.keys, home.tls, home.settings_file, home.rpc_file, home.secrets_file)
        click.echo(f"Not in it, keep them yourself: {', '.join(str(path) for path in files if path.exists())}")
    if report.missing:
        click.echo(f"WARNING: {len(report.missing):,} files were missing or damaged, the first is {report.missing[0]}")
    click.echo(f"To restore it: `trace restore --all {report.directory}`.")


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
@click.argument("source", type=click.Path(path_type=Path, exists=True, readable=True))
@click.option("--all", "everything", is_flag=True, help="Restore the whole stack; SOURCE is such a backup.")
@click.option("--replace", is_flag=True, help="With --all: replace the data of a home that is not empty.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@operator_command
def restore_command(session: Session, source: Path, everything: bool, replace: bool, yes: bool) -> None:
    """Restore a backup: with --all the whole stack, else the state database. The stack must be down.

    Everything accepted after the backup is lost: deploys, events, tasks, deliveries, decisions of users. Attempts that
    still run somewhere are refused from then on, and their tasks are tried again; ids that were given out after the
    backup are not used again. The home may be a new one. A backup that cannot be used changes nothing.

    With --all, every hash is verified first. A home that holds a stack is refused without --replace. Keys, certificates
    and *.toml files are written where the home has none. An interrupted restore is finished by the same command; until
    then `trace up` refuses to start.

    \b
    Examples:
      trace restore --all backup-2026-11-18 --home ./elsewhere
      trace down && trace restore --all backup-2026-11-18 --replace && trace up
      trace down && trace restore state.dump && trace up
    """
    if everything:
        _restore_all(session, source, replace=replace, yes=yes)
        return
    if replace:
        raise click.UsageError("--replace goes with --all.")
    if source.is_dir():
        raise BackupError(f"{source} is a directory; add --all to restore a backup of the whole stack")
    settings = Settings.load({"home": session.home})
    refuse_unfinished(settings.layout)
    config = dispatcher_config(settings)
    dump = dumps.inspect(source)
    if not yes:
        click.confirm(
            f"Replace the state of {settings.home} by {source}, a dump of {dump.made_at}? What came after it is lost.",
            abort=True,
            err=session.as_json,
        )
    _tell(session.answer(restore(settings, dump, config)), settings)


def _restore_all(session: Session, directory: Path, *, replace: bool, yes: bool) -> None:
    say = _progress(session)
    say("verifying the backup")
    backup = verify_backup(directory)
    root = Settings.load({"home": session.home}).home
    if replace and not yes:
        click.confirm(
            f"Replace all data of {root} by {directory}, a backup of {backup.manifest.made_at}? What came after it is "
            "lost.",
            abort=True,
            err=session.as_json,
        )
    report = restore_backup(lambda: Settings.load({"home": session.home}), backup, replace=replace, say=say)
    session.answer(report)
    done = report.state.rewound
    click.echo(f"{report.home} is now what {report.backup} holds, a backup of {report.made_at}:")
    click.echo(f"  {report.state.tasks:>9,}  tasks, and {report.state.events:,} events")
    click.echo(f"  {report.objects:>9,}  objects")
    click.echo(f"  {done.leases_ended:>9,}  leases ended; their tasks are tried again, except those being cancelled")
    click.echo(f"  {report.state.wake_ups:>9,}  wake-ups written")
    if report.files_kept:
        names = f"{len(report.files_kept)} files, such as {report.files_kept[0]}"
        click.echo(f"Kept, because {report.home} had keys, certificates or settings of its own: {names}.")
    if not backup.manifest.has_secrets:
        click.echo(f"The backup has no keys and settings: first copy those that you kept into {report.home}.")
    if not done.continued:
        click.echo("Webhook secrets that were rotated after the backup are the old ones again: rotate them.")
    click.echo(f"Next: `trace up --home {report.home}`, then `trace status` and `trace sources`.")


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
