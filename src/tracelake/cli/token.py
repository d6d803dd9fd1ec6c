"""`trace token` and `trace whoami`: tokens of users of the public API, and whose the current one is."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID, uuid4

import click

from tracelake.cli.listing import Listing, ListingColumn, fields
from tracelake.cli.options import cursor_option, limit_option, stack_option
from tracelake.cli.session import Session, user_command
from tracelake.cli.text import ago
from tracelake.client.paging import collect
from tracelake.client.stack import HostOnlyError, NoStackError, chosen_context
from tracelake.private_files import write_private
from tracelake.settings import Settings, SettingsError
from tracelake.settings.configs import user_token_rules
from tracelake.stack.credentials import ADMIN_LIFE, LiteCredentials, user_token
from tracelake.wire import routes
from tracelake.wire.contract import Role
from tracelake.wire.tokens import RevokeRequest, UserTokenRequest, UserTokenRow

_ORG = re.compile(r"[a-z][a-z0-9_]{0,127}")
_SUBJECT = re.compile(r"[!-~]{1,200}")
_ROLES = click.Choice([role.value for role in Role])
_SUBJECT_HELP = "Whose token it is; the audit log shows this name."

_days_option = click.option(
    "--days", type=click.IntRange(1, ADMIN_LIFE.days), default=1, show_default=True, help="How long it is valid."
)
_out_option = click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write it to FILE, which only you can read, instead of printing it.",
)


@click.group(invoke_without_command=True)
@click.option("--role", type=_ROLES, help="What the token may do.")
@click.option("--subject", metavar="NAME", help=_SUBJECT_HELP)
@click.option("--org", help="The org whose data it gives access to (default: the stack's own).")
@_days_option
@_out_option
@stack_option
@click.pass_context
def command(
    ctx: click.Context, role: str | None, subject: str | None, org: str | None, days: int, out: Path | None,
    home: Path | None,
) -> None:  # fmt: skip
    """Make, list and revoke tokens of users.

    `trace token create` asks the stack for a token, which is then listed and can be revoked; it needs a token of an
    admin. Without a command, `trace token --role ROLE --subject NAME` signs a token with the keys of the stack on this
    machine, also while the stack is down: for the first admin, and for any org. Such a token is not listed; it is
    revoked with `trace token revoke --subject`.

    A reader sees everything of the org; a writer also deploys, triggers and acts on tasks; an admin also reads the
    audit log, makes tokens and revokes them.

    \b
    Examples:
      trace token create --role reader --subject bob --days 7 --out bob.token
      trace token list
      trace token revoke 0190a8a0-7b5e-7c3f-9d43-a25a3c1f7f11
      trace token --role admin --subject ada --org research --out ada.token
    """
    if ctx.invoked_subcommand is not None:
        return
    context = chosen_context(home)
    if context is not None:
        raise HostOnlyError(
            "`trace token --role` signs with the keys of a stack of this machine, and your context is "
            f"{context}: use `trace token create`, or add `--home DIR`"
        )
    for name, value in (("--role", role), ("--subject", subject)):
        if value is None:
            raise click.MissingParameter(param_hint=name, param_type="option", ctx=ctx)
    assert role is not None
    assert subject is not None
    _sign(role, subject, org, days, out, home)


def _sign(role: str, subject: str, org: str | None, days: int, out: Path | None, home: Path | None) -> None:
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
        token_id=str(uuid4()),
    )
    _hand_over(token, role, subject, now + timedelta(days=days), out)


@command.command()
@click.option("--role", type=_ROLES, required=True, help="What the token may do.")
@click.option("--subject", required=True, metavar="NAME", help=_SUBJECT_HELP)
@_days_option
@click.option(
    "--dag", "dags", multiple=True, metavar="NAME",
    help="Limit it to this DAG; may be given several times. Not for admins.",
)  # fmt: skip
@click.option(
    "--read-dag", "read_dags", multiple=True, metavar="NAME",
    help="With --dag: another DAG that it may read and not change; may be given several times.",
)  # fmt: skip
@_out_option
@user_command
def create(
    session: Session,
    role: str,
    subject: str,
    days: int,
    dags: tuple[str, ...],
    read_dags: tuple[str, ...],
    out: Path | None,
) -> None:
    """Make a token of your org. For admins.

    It is listed by `trace token list` and revoked by `trace token revoke`; the token itself is shown once and not
    kept. With --dag it reaches only these DAGs, their jobs, tasks, datasets and events, and SQL over their datasets;
    with --read-dag it also reads others, such as the chain that these DAGs are made from.

    \b
    Examples:
      trace token create --role reader --subject bob --days 7 --out bob.token
      trace token create --role writer --subject ci --days 30 --dag pools --dag prices --out ci.token
      trace token create --role writer --subject ana --days 30 --dag ana_models --read-dag chain --out ana.token
    """
    if not _SUBJECT.fullmatch(subject):
        raise click.BadParameter("1 to 200 visible ASCII characters", param_hint="--subject")
    if read_dags and not dags:
        raise click.UsageError("--read-dag needs --dag: without it, the token may change every DAG.")
    request = UserTokenRequest(
        subject=subject,
        role=Role(role).value,
        days=days,
        dags=list(dags) or None,
        read_dags=list(read_dags) or None,
    )
    reply = session.run(lambda client: client.call(routes.CREATE_TOKEN, request))
    if out is None:
        session.answer(reply)
    _hand_over(reply.token, role, subject, reply.row.expires_at, out)
    if out is not None:
        session.answer(reply.row)
        click.echo(f"Revoke it with `trace token revoke {reply.row.token_id}`.", err=True)


@command.command("list")
@limit_option(50)
@cursor_option
@user_command
def list_command(session: Session, limit: int, cursor: str | None) -> None:
    """List the tokens that admins of your org made, newest first. For admins.

    \b
    Examples:
      trace token list
      trace token list --json
    """
    page = session.ask(lambda client: collect(client, routes.LIST_TOKENS, "tokens", limit=limit, cursor=cursor))
    if not page.tokens:
        session.say("No tokens were made yet.")
        session.hint("make one", "token", "create", "--role", "reader", "--subject", "NAME")
        return
    session.show(
        Listing(
            page.tokens,
            ListingColumn("token", lambda row: str(row.token_id), whole=True),
            ListingColumn("subject", lambda row: row.subject),
            ListingColumn("role", lambda row: row.role, whole=True),
            ListingColumn("DAGs", _dags),
            ListingColumn("state", _state, whole=True),
            ListingColumn("made by", lambda row: row.created_by),
        )
    )
    if page.next is not None:
        session.hint("see the next page", "token", "list", "--limit", limit, "--cursor", page.next)


@command.command()
@click.argument("token_id", required=False, type=click.UUID)
@click.option("--subject", metavar="NAME", help="All tokens of this subject that were issued until now.")
@click.option("--jti", metavar="TEXT", help="A token without a record: its claim `jti`.")
@user_command
def revoke(session: Session, token_id: UUID | None, subject: str | None, jti: str | None) -> None:
    """Revoke a token, or all tokens of a person. For admins.

    Every listener refuses it within seconds; what it was doing at that moment is finished. Tokens of an identity
    provider are revoked by --subject or --jti. A subject that was revoked may get new tokens.

    \b
    Examples:
      trace token revoke 0190a8a0-7b5e-7c3f-9d43-a25a3c1f7f11
      trace token revoke --subject bob
    """
    if sum(value is not None for value in (token_id, subject, jti)) != 1:
        raise click.UsageError("Give the id of a token, --subject or --jti, and one of the three.")
    if token_id is not None:
        reply = session.ask(lambda client: client.call(routes.REVOKE_TOKEN, token_id=token_id))
    else:
        request = RevokeRequest(token_id=jti, subject=subject)
        reply = session.ask(lambda client: client.call(routes.REVOKE_UNRECORDED, request))
    what = f"Tokens of {subject} that were issued until now are" if subject is not None else "The token is"
    session.say("It had been revoked before." if reply.duplicate else f"{what} revoked.")


@click.command()
@user_command
def whoami(session: Session) -> None:
    """Show whose token your commands use: its subject, org, roles and DAGs.

    \b
    Examples:
      trace whoami
      trace whoami --token-file ./analyst.token
    """
    reply = session.ask(lambda client: client.call(routes.WHOAMI))
    rows = [("subject", reply.subject), ("org", reply.org), ("roles", ", ".join(reply.roles))]
    if reply.dags is not None:
        rows.append(("DAGs", ", ".join(reply.dags) or "none"))
    if reply.read_dags is not None:
        rows.append(("reads besides", ", ".join(reply.read_dags)))
    context = session.stack.context
    if context is not None:
        rows.append(("context", context))
    session.show(fields(rows))


def _dags(row: UserTokenRow) -> str:
    return ", ".join([*(row.dags or ()), *(f"{dag} (read)" for dag in row.read_dags or ())])


def _state(row: UserTokenRow) -> str:
    if row.revoked_at is not None:
        return f"revoked {ago(row.revoked_at)}"
    now = datetime.now(UTC)
    if row.expires_at <= now:
        return "expired"
    return f"until {row.expires_at:%Y-%m-%d %H:%M}"


def _hand_over(token: str, role: str, subject: str, end: datetime, out: Path | None) -> None:
    if out is None:
        click.echo(token)
        return
    write_private(out, f"{token}\n")
    click.echo(f"Wrote a {role} token of {subject} to {out}, valid until {end:%Y-%m-%d %H:%M} UTC.", err=True)
    click.echo(f"Use it with `--token-file {out}`, or on another machine with `trace login`.", err=True)
