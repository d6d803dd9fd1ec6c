"""`trace whoami`: whose token the commands use."""

import click

from tracelake.cli.listing import fields
from tracelake.cli.session import Session, user_command
from tracelake.wire import routes


@click.command()
@user_command
def command(session: Session) -> None:
    """Show who you are to this stack: subject, org and roles of your token.

    \b
    Examples:
      trace whoami
      trace whoami --token-file ./analyst.token
    """
    reply = session.ask(lambda client: client.call(routes.WHOAMI))
    session.show(fields([("subject", reply.subject), ("org", reply.org), ("roles", ", ".join(reply.roles))]))
