"""Secrets of jobs on one machine: where workers find them, and `trace secrets`.

The environment of `trace up` (`TRACE_SECRET_<ORG>__<NAME>`) reaches its workers by a file that only they can read; no
child has it in its own environment. A worker that is started by hand has one of its own.
"""

import functools
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import click
import msgspec

from tracelake.adapters.secret_file import (
    LiteSecrets,
    SecretFileError,
    Tables,
    read_tables,
    remove_secret,
    set_secret,
    stray_names,
)
from tracelake.cli.json_output import json_option
from tracelake.cli.options import home_option
from tracelake.model.dag import SECRET_NAME
from tracelake.ports import SecretProvider
from tracelake.settings import SECRET_PREFIX, Settings, SettingsError
from tracelake.settings.home import Home, private_directory, write_private
from tracelake.stack import logs

_ORG = re.compile(r"[a-z][a-z0-9_]{0,127}")
_NAME = re.compile(SECRET_NAME)
_MAX_VALUE = 64 * 1024


# --- what the environment says


def from_environment(environ: Mapping[str, str]) -> Tables:
    """By org and name. The first `__` ends the org; a variable that says none is nobody's, and refused."""
    found: Tables = {}
    for variable, value in environ.items():
        if not variable.startswith(SECRET_PREFIX):
            continue
        org, separator, name = variable.removeprefix(SECRET_PREFIX).partition("__")
        if not separator or org != org.upper() or not _ORG.fullmatch(org.lower()) or not _NAME.fullmatch(name):
            raise SettingsError(f"the environment variable {variable} is no {SECRET_PREFIX}<ORG>__<NAME>")
        if value:  # set to nothing is how a shell says "not set"
            found.setdefault(org.lower(), {})[name] = value
    return found


def keep_environment(home: Home) -> None:
    """What this process was told by its environment, for the workers that it starts."""
    write_private(home.secrets_environment_file, json.dumps(from_environment(os.environ)) + "\n")


def forget_environment(home: Home) -> None:
    home.secrets_environment_file.unlink(missing_ok=True)


def _kept_environment(home: Home) -> Tables:
    try:
        return msgspec.json.decode(home.secrets_environment_file.read_bytes(), type=Tables)
    except (OSError, msgspec.DecodeError):
        return {}


@functools.cache
def _own_environment() -> Tables:
    """Read once and put away: what this process starts (Java, Python for Spark) must not inherit it."""
    found = from_environment(os.environ)
    for variable in [name for name in os.environ if name.startswith(SECRET_PREFIX)]:
        del os.environ[variable]
    return found


# --- for workers


class _HiddenInLogs:
    """Values are blanked in this process's logs before anybody has them, and for as long as it lives."""

    def __init__(self, provider: SecretProvider) -> None:
        self._provider = provider

    async def fetch(self, org: str, names: Sequence[str]) -> Mapping[str, str]:
        values = await self._provider.fetch(org, names)
        logs.HIDDEN.add(values.values())
        return values


def secret_provider(home: Home) -> SecretProvider:
    own = _own_environment()

    def told() -> Tables:
        kept = _kept_environment(home)
        return {org: kept.get(org, {}) | own.get(org, {}) for org in kept.keys() | own.keys()}

    return _HiddenInLogs(LiteSecrets(home.secrets_file, told))


# --- for people


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
        kept, strays = read_tables(layout.secrets_file), stray_names(layout.secrets_file)
    except SecretFileError as error:
        raise SettingsError(str(error)) from None
    places = [("file", kept), ("environment", _kept_environment(layout))]  # the later one counts
    found = {(owner, name): place for place, tables in places for owner, table in tables.items() for name in table}
    rows = [
        {"org": owner, "name": name, "from": place}
        for (owner, name), place in sorted(found.items())
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
    said = "Set" if new else "Replaced"
    click.echo(f"{said} {name} of {owner}. Jobs with `secrets: [{name}]` get it from their next task on.")
    if name in _kept_environment(layout).get(owner, {}):
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
        there = layout.secrets_file.exists() and remove_secret(layout.secrets_file, owner, name)
    except SecretFileError as error:
        raise SettingsError(str(error)) from None
    if not there:
        raise SettingsError(f"{owner} has no secret {name} in {layout.secrets_file}; see `trace secrets list`")
    click.echo(f"Removed {name} of {owner}. Tasks that need it fail from now on.")


def _checked(home: Path | None, org: str | None, name: str) -> tuple[Home, str]:
    settings = Settings.load({"home": home})
    owner = settings.org if org is None else org
    if not _ORG.fullmatch(owner):
        raise click.BadParameter("a lower-case letter, then lower-case letters, digits or '_'", param_hint="--org")
    if not _NAME.fullmatch(name):
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
