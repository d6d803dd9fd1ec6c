"""`trace operators`: what jobs can run."""

import click
from rich.text import Text

from tracelake.cli.listing import Listing, ListingColumn
from tracelake.cli.session import Session, user_command
from tracelake.wire import routes
from tracelake.wire.operators import OperatorRow


@click.command()
@user_command
def command(session: Session) -> None:
    """List the operators that jobs can name, with the packages that provide them.

    Operators without a package are those of Trace itself (docs/operators/README.md describes them). To write your own,
    follow docs/operators/adding.md.

    \b
    Examples:
      trace operators
      trace operators --json
    """
    reply = session.ask(lambda client: client.call(routes.LIST_OPERATORS))
    session.show(
        Listing(
            reply.operators,
            ListingColumn("operator", lambda row: row.name, whole=True),
            ListingColumn("package", lambda row: row.package),
            ListingColumn("summary", _summary),
        )
    )
    if missing := [row.name for row in reply.operators if not row.available]:
        session.say((f"Not usable: {', '.join(missing)}. The log of the Dispatcher has the reason.", "yellow"))


def _summary(row: OperatorRow) -> str | Text:
    return row.summary if row.available else Text("could not be loaded", style="red")
