"""`trace login` and `trace context`: stacks of other machines, by name."""

import asyncio
import re
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

import click

from tracelake.cli.json_output import json_option
from tracelake.cli.listing import Listing, ListingColumn, fields
from tracelake.cli.session import Session
from tracelake.cli.text import clean
from tracelake.client.contexts import LOCAL, NAME_RULE, ContextError, ContextStore, SavedContext, is_context_name
from tracelake.client.errors import DispatcherUnavailableError
from tracelake.client.http import HttpClient
from tracelake.client.stack import NoStackError, chosen_context, default_home
from tracelake.client.user import TextCredential, UserClient
from tracelake.wire import routes
from tracelake.wire.platform import WhoAmI

_CONNECT_SECONDS = 10.0
_LARGEST = 1024 * 1024
_TOKEN = re.compile(r"[!-~]{1,65536}")
_NOT_A_NAME = re.compile(r"[^a-z0-9._-]+")

_file = click.Path(path_type=Path, exists=True, dir_okay=False, readable=True)


@click.command()
@click.argument("url")
@click.option(
    "--ca",
    "ca_file",
    type=_file,
    help="The CA certificate of the stack, its `tls/ca.pem` (else this machine's CAs).",
)
@click.option("--token", "token_file", type=_file, required=True, help="A file that holds your token.")
@click.option("--name", help="The name of the context (default: the host of URL).")
@json_option
def command(url: str, ca_file: Path | None, token_file: Path, name: str | None, as_json: bool) -> None:
    """Connect to a stack of another machine, and use it from now on.

    URL is the public address of the stack, like https://trace.example.org:8443. A stack has a CA of its own, which --ca
    names. Leave it out if a proxy in front of the stack has a certificate of a CA that this machine trusts.

    The certificate and the token are verified by a call; then copies of both are kept as a context in ~/.config/trace
    (or below XDG_CONFIG_HOME), which only you can read. Logging in again with the same name replaces the context, as
    for a new token.

    Which stack a command uses, the first that is given: --home or --context; TRACE_CONTEXT; TRACE_HOME; the current
    context; the stack in ~/.trace.

    \b
    Examples:
      trace login https://trace.example.org:8443 --ca ca.pem --token bob.token
      trace login https://10.0.0.5:8443 --ca ca.pem --token bob.token --name lab
      trace login https://trace.example.org --token bob.token
    """
    session = Session(as_json=as_json)
    url = url.rstrip("/")
    host = urlsplit(url).hostname or ""
    name = _NOT_A_NAME.sub("-", host).strip("-._") if name is None else name
    if not is_context_name(name):
        raise click.BadParameter(f"expected {NAME_RULE}, and not {LOCAL!r}; received {name!r}", param_hint="--name")
    certificate = None if ca_file is None else _read(ca_file)
    token = _read(token_file).decode("ascii", "replace").strip()
    if not _TOKEN.fullmatch(token):
        raise click.BadParameter(
            f"{token_file} holds no token: expected one line of visible characters", param_hint="--token"
        )
    me = asyncio.run(_ask(url, ca_file, token))
    context = SavedContext(
        name=name,
        public_url=url,
        ca_file="",
        token_file="",
        query_url=None if me.query_url is None else _reachable(me.query_url, host),
        subject=me.subject,
        org=me.org,
        roles=me.roles,
        dags=me.dags,
    )
    saved = ContextStore.default().save(context, certificate, token)
    session.answer(_describe(saved, current=True))
    roles = ", ".join(me.roles) or "no role"
    session.say(f"Logged in to {url} as {me.subject} of {me.org} ({roles}); the current context is {name}.")
    if me.expires_at is not None:
        session.say(f"The token expires on {me.expires_at:%Y-%m-%d %H:%M} UTC.")
    session.hint("see its datasets", "datasets")


@click.group(invoke_without_command=True)
@json_option
@click.pass_context
def context(ctx: click.Context, as_json: bool) -> None:
    """List your contexts: stacks of other machines, made by `trace login`.

    The current context is the stack of every command that names no other. `local` stands for the stack of this
    machine: `trace context use local` goes back to it.

    \b
    Examples:
      trace context
      trace context use lab
      trace datasets --context lab
    """
    if ctx.invoked_subcommand is not None:
        return
    session, store = Session(as_json=as_json), ContextStore.default()
    try:
        current, contexts = store.current(), [store.read(name) for name in store.names()]
    except ContextError as error:
        raise NoStackError(str(error)) from None
    rows = [_describe(item, current=item.name == current) for item in contexts]
    rows.append({"name": LOCAL, "current": current is None, "url": str(default_home())})
    session.answer(rows)
    session.show(
        Listing(
            rows,
            ListingColumn("", lambda row: "*" if row["current"] else ""),
            ListingColumn("context", lambda row: str(row["name"]), whole=True),
            ListingColumn("stack", lambda row: str(row["url"])),
            ListingColumn("subject", lambda row: str(row.get("subject", ""))),
            ListingColumn("org", lambda row: str(row.get("org", ""))),
            ListingColumn("roles", lambda row: ", ".join(map(str, _list(row.get("roles"))))),
        )
    )
    in_effect = chosen_context() or LOCAL
    if in_effect != (current or LOCAL):
        session.say(f"TRACE_CONTEXT or TRACE_HOME is set: commands use {in_effect}.")


@context.command()
@click.argument("name")
def use(name: str) -> None:
    """Make a context the current one; `local` is the stack of this machine.

    \b
    Examples:
      trace context use lab
      trace context use local
    """
    try:
        ContextStore.default().use(name)
    except ContextError as error:
        raise NoStackError(str(error)) from None
    click.echo(f"The current context is {name}.")


@context.command()
@click.argument("name")
def remove(name: str) -> None:
    """Remove a context, with the copies of its certificate and its token. The token stays valid.

    \b
    Examples:
      trace context remove lab
    """
    try:
        ContextStore.default().remove(name)
    except ContextError as error:
        raise NoStackError(str(error)) from None
    click.echo(f"Removed the context {name}. The token itself is valid until it expires or an admin revokes it.")


@context.command()
@click.argument("name", required=False)
@json_option
def show(name: str | None, as_json: bool) -> None:
    """Show a context, or the one in effect; never its token.

    \b
    Examples:
      trace context show
      trace context show lab --json
    """
    session, store = Session(as_json=as_json), ContextStore.default()
    name = name or chosen_context() or LOCAL
    try:
        current = store.current()
        row = (
            {"name": LOCAL, "current": current is None, "url": str(default_home())}
            if name == LOCAL
            else _describe(store.read(name), current=name == current)
        )
    except ContextError as error:
        raise NoStackError(str(error)) from None
    session.answer(row)
    session.show(fields([(key, clean(_text(value))) for key, value in row.items()]))


async def _ask(url: str, ca_file: Path | None, token: str) -> WhoAmI:
    try:
        http = HttpClient(url, ca_file or "", connect_timeout=_CONNECT_SECONDS)
    except ValueError:
        raise click.BadParameter(f"expected https://host[:port]; received {url!r}", param_hint="URL") from None
    except OSError:
        raise click.BadParameter(f"{ca_file} holds no CA certificate", param_hint="--ca") from None
    client = UserClient(http, TextCredential(token))
    try:
        return await client.call(routes.WHOAMI)
    except DispatcherUnavailableError as error:
        issuer, next_step = f"of {ca_file}", "check the address and the certificate"
        if ca_file is None:
            issuer = "of a CA that this machine trusts"
            next_step = "check the address, or name the CA certificate of the stack with --ca"
        raise NoStackError(
            f"{url} does not answer, or its certificate is not {issuer} ({error.message}); {next_step}"
        ) from None
    finally:
        await client.close()


def _reachable(query_url: str, host: str) -> str:
    """The address of the Query Service as the stack has it. A loopback address is meant on the stack's machine."""
    url = urlsplit(query_url)
    try:
        local = ip_address(url.hostname or "").is_loopback
    except ValueError:
        local = url.hostname == "localhost"
    if not local:
        return query_url
    authority = f"[{host}]" if ":" in host else host
    return f"https://{authority}:{url.port or 443}"


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_LARGEST)


def _describe(item: SavedContext, *, current: bool) -> dict[str, object]:
    return {
        "name": item.name,
        "current": current,
        "url": item.public_url,
        "query_url": item.query_url,
        "subject": item.subject,
        "org": item.org,
        "roles": item.roles,
        "dags": item.dags,
    }


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, list) else "" if value is None else str(value)
