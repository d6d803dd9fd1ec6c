"""`trace token`: a user token signed by this stack's own keys."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click

from tracelake.cli.options import home_option
from tracelake.client.stack import NoStackError
from tracelake.private_files import write_private
from tracelake.settings import Settings, SettingsError
from tracelake.settings.configs import user_token_rules
from tracelake.stack.credentials import ADMIN_LIFE, LiteCredentials, user_token
from tracelake.wire.contract import Role

_ORG = re.compile(r"[a-z][a-z0-9_]{0,127}")
_SUBJECT = re.compile(r"[!-~]{1,200}")


@click.command()
@click.option("--role", type=click.Choice([role.value for role in Role]), required=True, help="What it may do.")
@click.option("--subject", required=True, metavar="NAME", help="Whose it is; the audit log names it.")
@click.option("--org", help="The org it opens (default: the stack's own).")
@click.option(
    "--days", type=click.IntRange(1, ADMIN_LIFE.days), default=1, show_default=True, help="How long it lives."
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write it to FILE, which only you can read, instead of printing it.",
)
@home_option
def command(role: str, subject: str, org: str | None, days: int, out: Path | None, home: Path | None) -> None:
    """Print a user token, signed by this stack's own keys.

    reader sees, writer also deploys and acts on tasks, admin also reads the audit log. A token cannot be taken back by
    itself: `trace keys rotate user --leaked` ends all of them.
    """
    settings = Settings.load({"home": home})
    if settings.user_jwks is not None:
        raise SettingsError("user tokens of this stack come from the issuer whose keys user_jwks names")
    if not any(settings.layout.keys.glob("user/*.pem")):
        raise NoStackError(f"{settings.home} holds no keys yet; `trace up --home {settings.home}` makes them")
    org = settings.org if org is None else org
    if not _ORG.fullmatch(org):
        raise click.BadParameter("a lower-case letter, then lower-case letters, digits or '_'", param_hint="--org")
    if not _SUBJECT.fullmatch(subject):
        raise click.BadParameter("1 to 200 visible ASCII characters", param_hint="--subject")
    keys = LiteCredentials.ensure(settings.layout.keys).user_keys
    token = user_token(
        keys,
        user_token_rules(settings),
        subject=subject,
        org=org,
        roles=[Role(role)],
        now=datetime.now(UTC),
        life=timedelta(days=days),
    )
    if out is None:
        click.echo(token)
    else:
        write_private(out, f"{token}\n")
