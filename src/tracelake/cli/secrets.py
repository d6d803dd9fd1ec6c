"""`trace secrets`: list, set and remove the secrets that jobs name."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import click
import msgspec

from tracelake.cli.json_output import json_option
from tracelake.cli.options import home_option
from tracelake.settings import Settings, SettingsError
from tracelake.settings.home import Home, private_directory
from tracelake.stack.job_secrets import (
    NAME,
    ORG,
    SecretFileError,
    read_environment,
    read_tables,
    remove_secret,
    set_secret,
    stray_names,
)

_MAX_VALUE = 64 * 1024


@click.group()
def command() -> None:
    """Secrets that jobs name: list, set and remove them.

    They are kept in HOME/secrets.toml, which only you can read, and belong to one org each. A job gets those that its
    `secrets` list; a change counts for the next task.

    \b
    Examples:
      trace secrets set EXPLORER_KEY               asks for the value
      trace secrets set EXPLORER_KEY < key.txt
      trace secrets list
      trace secrets remove EXPLORER_KEY --org acme
    """


_org_option = click.option("--org", help="Whose it is (default: the stack's own org).")


@command.command("list")
@click.option("--org", help="Of this org alone.")
@home_option
@json_option
def list_command(org: str | None, home: Path | None, as_json: bool) -> None:
    """Show whose secrets there are, by name; never a value."""
    layout = Settings.load({"home": home}).layout
    try:
        own_tables, strays = read_tables(layout.secrets_file), stray_names(layout.secrets_file)
    except SecretFileError as error:
        raise SettingsError(str(error)) from None
    places = [("file", own_tables), ("environment", read_environment(layout))]  # the later one counts
    places_by_secret = {
        (owner, name): place for place, tables in places for owner, table in tables.items() for name in table
    }
    rows = [
        {"org": owner, "name": name, "from": place}
        for (owner, name), place in sorted(places_by_secret.items())
        if org in (None, owner)
    ]
    if as_json:
        click.echo(msgspec.json.encode(rows))
    else:
        _print_rows(rows)
    for name in strays:
        click.echo(f"{layout.secrets_file}: {name} stands in no org's table, so no job gets it", err=True)


def _print_rows(rows: Sequence[Mapping[str, str]]) -> None:
    if not rows:
        click.echo("There are none. Set one with `trace secrets set NAME`.")
        return
    lines = [{"org": "ORG", "name": "NAME", "from": "FROM"}, *rows]
    widths = {column: max(len(line[column]) for line in lines) for column in ("org", "name")}
    for line in lines:
        click.echo(f"{line['org']:<{widths['org']}}  {line['name']:<{widths['name']}}  {line['from']}")


@command.command("set")
@click.argument("name")
@_org_option
@home_option
def set_command(name: str, org: str | None, home: Path | None) -> None:
    """Keep a value under NAME: asked for, or read from standard input.

    It is never an argument: others see those. One line break at the end of the input is left out.

    \b
    Examples:
      trace secrets set EXPLORER_KEY
      trace secrets set DEPLOY_KEY --org acme < key.pem
    """
    layout, owner = _checked(home, org, name)
    value = _read_value(name)
    if not layout.root.exists():
        private_directory(layout.root)
    try:
        new = set_secret(layout.secrets_file, owner, name, value)
    except SecretFileError as error:
        raise SettingsError(str(error)) from None
    verb = "Set" if new else "Replaced"
    click.echo(f"{verb} {name} of {owner}. Jobs with `secrets: [{name}]` get it from their next task on.")
    if name in read_environment(layout).get(owner, {}):
        click.echo("Not yet: `trace up` was started with one of that name in its environment, which comes first.")


@command.command("remove")
@click.argument("name")
@_org_option
@home_option
def remove_command(name: str, org: str | None, home: Path | None) -> None:
    """Forget the value of NAME.

    \b
    Example:
      trace secrets remove EXPLORER_KEY
    """
    layout, owner = _checked(home, org, name)
    try:
        removed = layout.secrets_file.exists() and remove_secret(layout.secrets_file, owner, name)
    except SecretFileError as error:
        raise SettingsError(str(error)) from None
    if not removed:
        raise SettingsError(f"{owner} has no secret {name} in {layout.secrets_file}; see `trace secrets list`")
    click.echo(f"Removed {name} of {owner}. Tasks that need it fail from now on.")


def _checked(home: Path | None, org: str | None, name: str) -> tuple[Home, str]:
    settings = Settings.load({"home": home})
    owner = settings.org if org is None else org
    if not ORG.fullmatch(owner):
        raise click.BadParameter("a lower-case letter, then lower-case letters, digits or '_'", param_hint="--org")
    if not NAME.fullmatch(name):
        raise click.BadParameter(
            "a letter or '_', then letters, digits, '_', '.' or '-', at most 128 in all", param_hint="NAME"
        )
    return settings.layout, owner


def _read_value(name: str) -> str:
    if sys.stdin.isatty():
        value = str(click.prompt(f"Value of {name}", hide_input=True, confirmation_prompt=True))
    else:
        value = sys.stdin.buffer.read(_MAX_VALUE + 3).decode("utf-8", "surrogateescape")
        value = value.removesuffix("\n").removesuffix("\r")
    try:
        length = len(value.encode())
    except UnicodeEncodeError:
        raise SettingsError("the value is not UTF-8 text") from None
    if not 1 <= length <= _MAX_VALUE:
        raise SettingsError(f"a secret has 1 to {_MAX_VALUE} bytes; type it, or give it on standard input")
    return value
