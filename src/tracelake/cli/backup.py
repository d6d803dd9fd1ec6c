"""`trace backup`: a dump of the state database, taken while the stack runs."""

from pathlib import Path

import click
import msgspec

from tracelake.cli.json_output import json_option
from tracelake.cli.options import home_option
from tracelake.settings import Settings
from tracelake.stack.backup import write_dump
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
