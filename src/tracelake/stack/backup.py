"""`trace backup`: a dump of the state database, taken while the stack runs.

The file is there whole or not at all: it is written beside its place under another name, made durable, and put there
in one step. It is one snapshot, so that every row it holds fits every other; nothing waits for it.
"""

import contextlib
import os
import tempfile
from pathlib import Path

import click
import msgspec

from tracelake.cli.json_output import json_option
from tracelake.cli.options import home_option
from tracelake.settings import Settings, SettingsError
from tracelake.settings.home import sync_directory
from tracelake.stack import dumps
from tracelake.stack.dumps import BackupError


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@home_option
@click.option("--force", is_flag=True, help="Replace FILE if it is there.")
@json_option
def command(file: Path, home: Path | None, force: bool, as_json: bool) -> None:
    """Write a dump of the state database to FILE, while the stack runs.

    It holds the truth of the control plane: DAGs, tasks, events, manifests, the audit log. It does not hold files of
    the object store, keys, secrets, your own files (*.toml), or the data database. Copy these after the dump: what it
    names is then there.

    Copy the buckets of the object store with any program for S3; HOME/secrets/object-store.json has address and keys.
    A copy of HOME/objects that was made while the stack runs is of no use; after `trace down` it is. The queue needs no
    backup. `trace restore FILE` brings the dump back.

    \b
    Examples:
      trace backup state.dump
      trace backup "state-$(date +%F).dump"
    """
    settings = Settings.load({"home": home})
    if file.exists() and not force:
        raise BackupError(f"{file} is there already; name another file, or add --force to replace it")
    size = write_dump(settings, file, replace=force)
    if as_json:
        click.echo(msgspec.json.encode({"file": str(file), "bytes": size}))
        return
    click.echo(f"Wrote {file} ({size:,} bytes): the state database as it was when the dump began.")
    for line in _what_else(settings):
        click.echo(line)
    click.echo("Bring it back with `trace restore`.")


def _what_else(settings: Settings) -> list[str]:
    """What a backup needs beside the dump, and how to copy it while the stack runs."""
    home = settings.layout
    lines = ["Not in it, so copy them now (what the dump names is then there):"]
    if settings.s3_endpoint is None:
        lines.append(f"  the object store: its buckets, by S3, with the address and keys in {home.object_store_file};")
        lines.append(f"    or {home.objects} after `trace down` (a copy made while the stack runs is of no use)")
    else:
        lines.append(f"  the object store: its buckets, at {settings.s3_endpoint}")
    own = [file for file in (home.settings_file, home.rpc_file, home.secrets_file) if file.exists()]
    lines.append("  " + ", ".join(map(str, [home.keys, home.secrets, *own])))
    lines.append("  the data database, with the tables of buffered datasets: by pg_dump")
    return lines


def write_dump(settings: Settings, file: Path, *, replace: bool) -> int:
    """Dump the state database of these settings into the file; answers its size in bytes."""
    dsn = _state_dsn(settings)
    directory = file.absolute().parent
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{file.name}.", suffix=".partial", dir=directory)
    except FileNotFoundError:
        raise BackupError(f"there is no directory {directory}; make it, or name a file in another one") from None
    except OSError as error:
        raise BackupError(f"nothing can be written in {directory} ({error.strerror}); name another place") from None
    os.close(descriptor)  # made 0600, and pg_dump leaves it so
    partial = Path(name)
    try:
        done = dumps.run_program("pg_dump", "--format=custom", "--no-privileges", f"--file={partial}", dsn=dsn)
        if done.returncode != 0:
            raise BackupError(_refusal(dumps.reason(done)))
        dumps.inspect(partial)
        _sync(partial)
        if replace:
            partial.replace(file)
        else:
            _put(partial, file)
        sync_directory(file.absolute().parent)
        return file.stat().st_size
    finally:
        with contextlib.suppress(FileNotFoundError):
            partial.unlink()


def _state_dsn(settings: Settings) -> str:
    try:
        return settings.resolve_state_dsn()
    except SettingsError:
        raise BackupError(f"{settings.home} has no state database yet; `trace up` makes it") from None


def _put(partial: Path, file: Path) -> None:
    """Under its name, unless somebody else has put a file there meanwhile."""
    try:
        file.hardlink_to(partial)
    except FileExistsError:
        raise BackupError(f"{file} is there already; name another file, or add --force to replace it") from None


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _refusal(said: str) -> str:
    if "server version mismatch" in said:
        return "the state database is of a newer Postgres than the programs of this release; use its own pg_dump"
    if "connection to server" in said:
        return "the state database does not answer; a dump needs a running stack (`trace status`, `trace up`)"
    return f"the dump failed: {said}"
