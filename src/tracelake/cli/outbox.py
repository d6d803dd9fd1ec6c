"""`trace outbox`: queue messages that wait to be sent, those the queue rejected, and dead letters."""

import click

from tracelake.cli.listing import Listing, ListingColumn
from tracelake.cli.session import Session, operator_command
from tracelake.cli.text import count
from tracelake.wire import routes
from tracelake.wire.platform import DropDeadLettersRequest, RequeueRequest

_limit_option = click.option(
    "--limit", type=click.IntRange(1, 1000), default=100, show_default=True, help="At most this many rows."
)


@click.group()
def command() -> None:
    """Inspect messages on their way to the queues: wake-ups of workers and announcements of batches.

    An outbox row is a message that the Dispatcher has yet to send. Rows are sent within milliseconds and then deleted.
    A row stays Pending while the queue is down. It is Failed once the queue itself has rejected it too often: correct
    the cause, then requeue it. A dead letter is a message that workers received too often without finishing it.
    """


@command.command("list")
@click.option("--status", type=click.Choice(["pending", "failed"]), help="Only these rows (default: both).")
@_limit_option
@operator_command
def list_rows(session: Session, status: str | None, limit: int) -> None:
    """List outbox rows, oldest first."""
    reply = session.ask_service(lambda client: client.call(routes.LIST_OUTBOX, status=status, limit=limit))
    session.show(
        Listing(
            reply.rows,
            ListingColumn("id", lambda row: row.outbox_id, right=True),
            ListingColumn("status", lambda row: row.status),
            ListingColumn("kind", lambda row: row.kind),
            ListingColumn("queue", lambda row: row.queue),
            ListingColumn("key", lambda row: row.key),
            ListingColumn("tries", lambda row: row.tries, right=True),
            ListingColumn("since", lambda row: f"{row.created_at:%Y-%m-%d %H:%M:%S}", whole=True),
            ListingColumn("last error", lambda row: row.last_error),
        )
    )
    oldest = f" (oldest {reply.oldest_pending_seconds:.0f} s)" if reply.pending else ""
    session.say(f"{reply.pending} pending{oldest}, {reply.failed} failed.")
    if reply.failed:
        session.hint("once the cause is corrected, send them again", "outbox", "requeue")


@command.command()
@click.argument("outbox_ids", nargs=-1, type=int, metavar="[ID]...")
@operator_command
def requeue(session: Session, outbox_ids: tuple[int, ...]) -> None:
    """Send failed rows again: those with the given ids, or all of them."""
    reply = session.ask_service(
        lambda client: client.call(routes.REQUEUE_OUTBOX, RequeueRequest(outbox_ids=list(outbox_ids) or None))
    )
    session.say(f"{count(reply.requeued, 'row')} will be sent again." if reply.requeued else "There is no failed row.")


@command.command()
@_limit_option
@operator_command
def dead(session: Session, limit: int) -> None:
    """List dead letters, newest first: messages that workers received too often without finishing them.

    The key is the id of the task. The task is not lost: if it is still ready, it already has a new wake-up. A dead
    letter only shows that something went wrong: a worker that died with it each time, or a message that cannot be read.
    """
    reply = session.ask_service(lambda client: client.call(routes.LIST_DEAD_LETTERS, limit=limit))
    session.show(
        Listing(
            reply.letters,
            ListingColumn("id", lambda letter: letter.message_id, right=True),
            ListingColumn("queue", lambda letter: letter.queue),
            ListingColumn("key", lambda letter: letter.key),
            ListingColumn("received", lambda letter: letter.receives, right=True),
            ListingColumn("dead since", lambda letter: f"{letter.died_at:%Y-%m-%d %H:%M:%S}", whole=True),
            ListingColumn("reason", lambda letter: letter.reason),
        )
    )
    session.say(f"{count(reply.total, 'dead letter')}.")
    if reply.letters:
        session.hint("drop one", "outbox", "drop", "ID")
        session.hint("or drop all", "outbox", "drop", "--all")


@command.command()
@click.argument("message_ids", nargs=-1, metavar="[ID]...")
@click.option("--all", "everything", is_flag=True, help="Drop all of them.")
@operator_command
def drop(session: Session, message_ids: tuple[str, ...], everything: bool) -> None:
    """Drop dead letters: those with the given ids, or all of them with --all. Their tasks are not affected."""
    if bool(message_ids) == everything:
        raise click.UsageError("Give the ids of dead letters (`trace outbox dead` lists them), or --all.")
    request = DropDeadLettersRequest(message_ids=list(message_ids) or None)
    reply = session.ask_service(lambda client: client.call(routes.DROP_DEAD_LETTERS, request))
    session.say(f"{count(reply.dropped, 'dead letter')} dropped.")
