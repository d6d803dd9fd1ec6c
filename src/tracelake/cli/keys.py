"""`trace keys`: rotation of signing keys and shared tokens, while everything keeps running."""

from datetime import UTC, datetime, timedelta
from typing import Any

import click

from tracelake.cli.listing import Listing, ListingColumn
from tracelake.cli.session import Session, operator_command
from tracelake.client.stack import NoStackError
from tracelake.settings import Settings
from tracelake.stack.credentials import LiteCredentials, prepare

_KINDS = ("task", "user", "worker", "service", "metrics")


@click.group()
def command() -> None:
    """List and rotate the signing keys and shared tokens of this stack."""


@command.command()
@click.argument("kind", type=click.Choice(_KINDS), default="task")
@click.option("--leaked", is_flag=True, help="The old one leaked: refuse it at once, with everything it signed.")
@operator_command
def rotate(session: Session, kind: str, leaked: bool) -> None:
    """Replace a signing key (task, user) or a shared token (worker, service, metrics) by a new one.

    The key `task` signs the tokens of tasks, `user` those of users. A new key is published at once and signs after one
    cache period (`jwks_cache_seconds`), when every verifier knows it; the old one verifies until its last token has
    expired. A new shared token works at once; the old one works for `credential_overlap_seconds` more.

    With --leaked there is no overlap. Workers fetch fresh task tokens by themselves and go on; users need new tokens,
    and the admin token is issued anew. Running Dispatchers notice within a second.
    """
    settings, credentials = _open(session)
    rotate_kind = _rotate_key if kind in ("task", "user") else _rotate_secret
    report, text = rotate_kind(kind, settings, credentials, leaked=leaked)
    session.answer({"kind": kind} | report)
    click.echo(text)


@command.command("list")
@operator_command
def list_keys(session: Session) -> None:
    """List the signing keys: the one that signs now, and those that still verify earlier tokens."""
    _, credentials = _open(session)
    now = datetime.now(UTC)
    rings = {"task": credentials.task_keys, "user": credentials.user_keys}
    rows: list[dict[str, Any]] = [
        {"kind": kind, "kid": key.kid, "signs": key.kid == ring.current_kid(now)}
        for kind, ring in rings.items()
        for key in ring.public_keys(now)
    ]
    session.show(
        Listing(
            session.answer(rows),
            ListingColumn("kind", lambda row: row["kind"]),
            ListingColumn("key", lambda row: row["kid"], whole=True),
            ListingColumn("use", lambda row: "signs now" if row["signs"] else "verifies only"),
        )
    )


def _open(session: Session) -> tuple[Settings, LiteCredentials]:
    """The settings and credentials of a home that has some already; looking must not create any."""
    settings = Settings.load({"home": session.home})
    if not any(settings.layout.keys.glob("*/*.pem")):
        raise NoStackError(f"{settings.home} holds no keys yet; `trace up --home {settings.home}` creates them")
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
    text = f"Key {kid} signs now; tokens that older keys signed are refused within a second."
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
    text = f"The new {kind} token is in {secret.token_file}; the old one {end}."
    return {"token_file": str(secret.token_file), "old_until": until}, text
