"""`trace keys`: rotation of signing keys and shared tokens, while everything keeps running."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import msgspec

from tracelake.cli.json_output import json_option
from tracelake.cli.options import home_option
from tracelake.client.stack import NoStackError
from tracelake.settings import Settings
from tracelake.stack.credentials import LiteCredentials, prepare

_KINDS = ("task", "user", "worker", "service", "metrics")


@click.group()
def command() -> None:
    """Signing keys and tokens of this stack."""


@command.command()
@click.argument("kind", type=click.Choice(_KINDS), default="task")
@home_option
@click.option("--leaked", is_flag=True, help="The old one leaked: give it up at once, with all that it signed.")
@json_option
def rotate(kind: str, home: Path | None, leaked: bool, as_json: bool) -> None:
    """Rotate the keys of capability tokens (task) or user tokens (user), or the worker, service or metrics token.

    A new signing key is published at once and signs one cache period later, so that no verifier meets a key it
    does not know; the old one is served until its last token has expired. Another new token works at
    once; the old one goes on working for the overlap time.

    With --leaked there is no overlap. Workers then fetch fresh task tokens by themselves and go on; people need the
    new admin token. Running Dispatchers notice within a second.
    """
    settings, credentials = _open(home)
    rotated = _rotate_key if kind in ("task", "user") else _rotate_secret
    report, text = rotated(kind, settings, credentials, leaked=leaked)
    click.echo(msgspec.json.encode({"kind": kind} | report) if as_json else text)


@command.command("list")
@home_option
@json_option
def list_keys(home: Path | None, as_json: bool) -> None:
    """Show the signing keys that verifiers know now."""
    _, credentials = _open(home)
    now = datetime.now(UTC)
    rings = {"task": credentials.task_keys, "user": credentials.user_keys}
    rows = [
        {"kind": kind, "kid": key.kid, "signs": key.kid == ring.current_kid(now)}
        for kind, ring in rings.items()
        for key in ring.public_keys(now)
    ]
    if as_json:
        click.echo(msgspec.json.encode(rows))
        return
    for row in rows:
        click.echo(f"{row['kind']:<5} {row['kid']}  {'signs now' if row['signs'] else 'verifies'}")


def _open(home: Path | None) -> tuple[Settings, LiteCredentials]:
    """The credentials of a home that has some: looking must not make any."""
    settings = Settings.load({"home": home})
    if not any(settings.layout.keys.glob("*/*.pem")):
        raise NoStackError(f"{settings.home} holds no keys yet; `trace up --home {settings.home}` makes them")
    return settings, LiteCredentials.ensure(settings.layout.keys)


def _rotate_key(
    kind: str, settings: Settings, credentials: LiteCredentials, *, leaked: bool
) -> tuple[dict[str, Any], str]:
    ring = credentials.task_keys if kind == "task" else credentials.user_keys
    now = datetime.now(UTC)
    if not leaked:
        kid = ring.rotate(now, lead_seconds=settings.jwks_cache_seconds)
        # Key times are whole seconds, rounded up.
        signs_from = (now + timedelta(seconds=settings.jwks_cache_seconds + 1)).replace(microsecond=0)
        text = f"Key {kid} is published and signs from {signs_from:%Y-%m-%d %H:%M:%S} UTC."
        return {"kid": kid, "signs_from": signs_from}, text
    kid = ring.replace(now)
    text = f"Key {kid} signs now; what older keys signed is refused within a second."
    if kind == "user":
        prepare(settings, settings.layout)
        text += " The admin token was issued anew."
    return {"kid": kid, "signs_from": now}, text


def _rotate_secret(
    kind: str, settings: Settings, credentials: LiteCredentials, *, leaked: bool
) -> tuple[dict[str, Any], str]:
    secret = {"worker": credentials.worker, "service": credentials.service, "metrics": credentials.metrics}[kind]
    now = datetime.now(UTC)
    overlap = 0.0 if leaked else settings.credential_overlap_seconds
    secret.rotate(now, overlap_seconds=overlap)
    until = now + timedelta(seconds=overlap)
    end = "is refused within a second" if leaked else f"works until {until:%Y-%m-%d %H:%M:%S} UTC"
    text = f"The new {kind} token is in its file; the old one {end}."
    return {"token_file": str(secret.token_file), "old_until": until}, text
