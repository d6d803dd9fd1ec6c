"""`trace token` and `trace whoami`: a user token signed by this stack's own keys, and whose token is in use."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click

from tracelake.cli.listing import fields
from tracelake.cli.options import home_option
from tracelake.cli.session import Session, user_command
from tracelake.client.stack import NoStackError
from tracelake.private_files import write_private
from tracelake.settings import Settings, SettingsError
from tracelake.settings.configs import user_token_rules
from tracelake.stack.credentials import ADMIN_LIFE, LiteCredentials, user_token
from tracelake.wire import routes
from tracelake.wire.contract import Role

_ORG = re.compile(r"[a-z][a-z0-9_]{0,127}")
_SUBJECT = re.compile(r"[!-~]{1,200}")


@click.command()
@click.option("--role", type=click.Choice([role.value for role in Role]), required=True, help="What the token may do.")
@click.option("--subject", required=True, metavar="NAME", help="Whose token it is; the audit log shows this name.")
@click.option("--org", help="The org whose data it gives access to (default: the stack's own).")
@click.option(
    "--days", type=click.IntRange(1, ADMIN_LIFE.days), default=1, show_default=True, help="How long it is valid."
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

    A reader sees everything of the org; a writer also deploys, triggers and acts on tasks; an admin also reads the
    audit log. One token alone cannot be revoked: `trace keys rotate user --leaked` ends all of them.

    \b
    Examples:
      trace token --role reader --subject bob --days 7 --out bob.token
      trace dags --token-file bob.token
    """
    settings = Settings.load({"home": home})
    if settings.user_jwks is not None:
        raise SettingsError(
            "user tokens of this stack come from the issuer whose keys user_jwks names; ask for one there"
        )
    if not any(settings.layout.keys.glob("user/*.pem")):
        raise NoStackError(f"{settings.home} holds no keys yet; `trace up --home {settings.home}` creates them")
    org = settings.org if org is None else org
    if not _ORG.fullmatch(org):
        raise click.BadParameter("a lower-case letter, then lower-case letters, digits or '_'", param_hint="--org")
    if not _SUBJECT.fullmatch(subject):
        raise click.BadParameter("1 to 200 visible ASCII characters", param_hint="--subject")
    now = datetime.now(UTC)
    token = user_token(
        LiteCredentials.ensure(settings.layout.keys).user_keys,
        user_token_rules(settings),
        subject=subject,
        org=org,
        roles=[Role(role)],
        now=now,
        life=timedelta(days=days),
    )
    if out is None:
        click.echo(token)
        return
    write_private(out, f"{token}\n")
    end = now + timedelta(days=days)
    click.echo(f"Wrote a {role} token of {subject} to {out}, valid until {end:%Y-%m-%d %H:%M} UTC.", err=True)
    click.echo(f"Use it with `--token-file {out}`.", err=True)


@click.command()
@user_command
def whoami(session: Session) -> None:
    """Show whose token your commands use: its subject, org and roles.

    \b
    Examples:
      trace whoami
      trace whoami --token-file ./analyst.token
    """
    reply = session.ask(lambda client: client.call(routes.WHOAMI))
    session.show(fields([("subject", reply.subject), ("org", reply.org), ("roles", ", ".join(reply.roles))]))
