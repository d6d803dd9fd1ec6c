"""`trace keys`: rotation of signing keys and shared tokens, while everything keeps running."""

from datetime import timedelta
from pathlib import Path

import click
import msgspec

from tracelake.adapters.lite.shared_secrets import utc_now
from tracelake.processes.credentials import LiteCredentials, prepare
from tracelake.processes.settings import Settings

_KINDS = ("task", "user", "worker", "service")


@click.group()
def command() -> None:
    """Signing keys and tokens of this stack."""


@command.command()
@click.argument("kind", type=click.Choice(_KINDS), default="task")
@click.option("--home", type=click.Path(path_type=Path, file_okay=False), help="The home of the stack.")
@click.option("--now", "at_once", is_flag=True, help="Sign with the new key at once (after a leak, say).")
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON.")
def rotate(kind: str, home: Path | None, at_once: bool, as_json: bool) -> None:
    """Rotate the keys of capability tokens (task) or user tokens (user), or the worker or service token.

    A new signing key is published at once and signs one cache period later, so that no verifier meets a key it
    does not know; the old one is served until its last token has expired. A new worker or service token works at
    once; the old one goes on working for the overlap time.
    """
    settings = Settings.load({"home": home})
    credentials = LiteCredentials.ensure(settings.layout.keys)
    now = utc_now()
    if kind in ("task", "user"):
        lead = 0.0 if at_once else settings.jwks_cache_seconds
        ring = credentials.task_keys if kind == "task" else credentials.user_keys
        kid = ring.rotate(now, lead_seconds=lead)
        if kind == "user" and at_once:
            prepare(settings, settings.layout)
        report = {"kind": kind, "kid": kid, "signs_from": now + timedelta(seconds=lead)}
        text = f"Key {kid} is published and signs from {report['signs_from']:%H:%M:%S} UTC."
    else:
        overlap = 0.0 if at_once else settings.credential_overlap_seconds
        secret = credentials.worker if kind == "worker" else credentials.service
        secret.rotate(now, overlap_seconds=overlap)
        report = {"kind": kind, "token_file": str(secret.token_file), "old_until": now + timedelta(seconds=overlap)}
        text = f"The new {kind} token is in its file; the old one works until {report['old_until']:%H:%M:%S} UTC."
    click.echo(msgspec.json.encode(report) if as_json else text)


@command.command("list")
@click.option("--home", type=click.Path(path_type=Path, file_okay=False), help="The home of the stack.")
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON.")
def list_keys(home: Path | None, as_json: bool) -> None:
    """Show the signing keys that verifiers know now."""
    settings = Settings.load({"home": home})
    credentials = LiteCredentials.ensure(settings.layout.keys)
    now = utc_now()
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
