"""`trace secrets`: list, set and remove the secrets that jobs name."""

import sys
from pathlib import Path

import click

from tracelake.cli.listing import Listing, ListingColumn
from tracelake.cli.options import home_option
from tracelake.cli.session import Session, operator_command
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
    """List, set and remove the secrets of jobs.

    Secrets are kept in HOME/secrets.toml, which only you can read; each belongs to one org. A job gets the secrets that
    its `secrets` in the DAG document names. A change takes effect with the next task.

    \b
    Examples:
      trace secrets set EXPLORER_KEY               asks for the value
      trace secrets set EXPLORER_KEY < key.txt
      trace secrets list
      trace secrets remove EXPLORER_KEY --org acme
    """


_org_option = click.option("--org", help="The org it belongs to (default: the stack's own).")


@command.command("list")
@click.option("--org", help="Only secrets of this org.")
@operator_command
def list_command(session: Session, org: str | None) -> None:
    """List the names of secrets, by org; values are never shown.

    A secret is in the file HOME/secrets.toml, or in the environment of `trace up`, which comes first.
    """
    layout = Settings.load({"home": session.home}).layout
    try:
        own_tables, strays = read_tables(layout.secrets_file), stray_names(layout.secrets_file)
    except SecretFileError as error:
        raise SettingsError(str(error)) from None
    for name in strays:
        click.echo(f"{layout.secrets_file}: {name} is in no org's table, so no job gets it", err=True)
    places = [("file", own_tables), ("environment", read_environment(layout))]  # the later one replaces the earlier
    places_by_secret = {
        (owner, name): place for place, tables in places for owner, table in tables.items() for name in table
    }
    rows = [
        {"org": owner, "name": name, "from": place}
        for (owner, name), place in sorted(places_by_secret.items())
        if org in (None, owner)
    ]
    if not session.answer(rows):
        session.say("There are no secrets.")
        session.hint("set one", "secrets", "set", "NAME")
        return
    session.show(
        Listing(
            rows,
            ListingColumn("org", lambda row: row["org"], whole=True),
            ListingColumn("name", lambda row: row["name"], whole=True),
            ListingColumn("from", lambda row: row["from"]),
        )
    )


@command.command("set")
@click.argument("name")
@_org_option
@home_option
def set_command(name: str, org: str | None, home: Path | None) -> None:
    """Set the secret NAME; its value is asked for, or read from standard input.

    The value is never an argument, because other users of the machine can see those. One line break at the end of the
    input is left out.

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
        click.echo("It has no effect yet: the environment of `trace up` has a secret of that name, which comes first.")


@command.command("remove")
@click.argument("name")
@_org_option
@home_option
def remove_command(name: str, org: str | None, home: Path | None) -> None:
    """Remove the secret NAME; tasks of jobs that name it fail from then on.

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
        raise SettingsError(
            f"{owner} has no secret {name} in {layout.secrets_file}; `trace secrets list` shows the names"
        )
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
