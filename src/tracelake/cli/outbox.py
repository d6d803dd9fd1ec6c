"""`trace outbox`: side effects that wait for their transport, those it rejected too often, and dead letters."""

import click
from rich.console import Console
from rich.table import Table

from tracelake.cli.session import Session, operator_command, show
from tracelake.cli.text import clean
from tracelake.wire import routes
from tracelake.wire.platform import DeadLettersReply, DropDeadLettersRequest, OutboxReply, RequeueRequest


@click.group()
def command() -> None:
    """Side effects (wake-ups, buffer pointers) on their way to the queues.

    Rows are published within milliseconds and then deleted. What stays Pending waits for a queue that is away; what is
    Failed was rejected by the queue itself too often and waits for you. A dead letter is a message that workers
    received too often without finishing with it.
    """


@command.command("list")
@click.option("--status", type=click.Choice(["pending", "failed"]), help="Only these (default: both).")
@click.option("--limit", type=click.IntRange(1, 1000), default=100, show_default=True, help="At most this many rows.")
@operator_command
def list_rows(session: Session, status: str | None, limit: int) -> None:
    """List outbox rows, oldest first."""
    reply = session.ask_service(lambda client: client.call(routes.LIST_OUTBOX, status=status, limit=limit))
    console = Console()
    if reply.rows:
        show(console, _table(reply))
    console.print(
        f"{reply.pending} pending (oldest {reply.oldest_pending_seconds:.0f} s), {reply.failed} failed.",
        highlight=False,
    )
    if reply.failed:
        console.print("Once the cause is mended: [bold]trace outbox requeue[/bold]")


@command.command()
@click.argument("outbox_ids", nargs=-1, type=int, metavar="[ID]...")
@operator_command
def requeue(session: Session, outbox_ids: tuple[int, ...]) -> None:
    """Try failed rows again: the given ones, or all of them."""
    reply = session.ask_service(
        lambda client: client.call(routes.REQUEUE_OUTBOX, RequeueRequest(outbox_ids=list(outbox_ids) or None))
    )
    click.echo(f"{reply.requeued} rows will be tried again." if reply.requeued else "There is no failed row.")


@command.command()
@click.option("--limit", type=click.IntRange(1, 1000), default=100, show_default=True, help="At most this many.")
@operator_command
def dead(session: Session, limit: int) -> None:
    """List dead letters, newest first: messages that were received too often and never acknowledged.

    The key is the task they were for. A task that is still ready has a new wake-up already, so a dead letter only tells
    you that something went wrong: a worker that died with it each time, or a message that nobody can read.
    """
    reply = session.ask_service(lambda client: client.call(routes.LIST_DEAD_LETTERS, limit=limit))
    console = Console()
    if reply.letters:
        show(console, _dead_table(reply))
    console.print(f"{reply.total} dead letters.", highlight=False)
    if reply.letters:
        console.print("Once you know why: [bold]trace outbox drop ID[/bold], or [bold]--all[/bold]")


@command.command()
@click.argument("message_ids", nargs=-1, metavar="[ID]...")
@click.option("--all", "everything", is_flag=True, help="Drop all of them.")
@operator_command
def drop(session: Session, message_ids: tuple[str, ...], everything: bool) -> None:
    """Drop dead letters: the given ones, or all of them with --all. The tasks they were for are not touched."""
    if bool(message_ids) == everything:
        raise click.UsageError("Name the dead letters to drop, or say --all.")
    reply = session.ask_service(
        lambda client: client.call(
            routes.DROP_DEAD_LETTERS, DropDeadLettersRequest(message_ids=list(message_ids) or None)
        ),
    )
    click.echo(f"{reply.dropped} dead letters dropped.")


def _table(reply: OutboxReply) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("id", "status", "kind", "queue", "key", "tries", "since", "last error"):
        table.add_column(name, justify="right" if name in ("id", "tries") else "left", overflow="fold")
    for row in reply.rows:
        table.add_row(
            str(row.outbox_id),
            row.status,
            row.kind,
            row.queue,
            row.key,
            str(row.tries),
            f"{row.created_at:%Y-%m-%d %H:%M:%S}",
            row.last_error or "",
        )
    return table


def _dead_table(reply: DeadLettersReply) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("id", "queue", "key", "receives", "died", "reason"):
        table.add_column(name, justify="right" if name in ("id", "receives") else "left", overflow="fold")
    for letter in reply.letters:
        died = f"{letter.died_at:%Y-%m-%d %H:%M:%S}"
        table.add_row(
            letter.message_id, letter.queue, clean(letter.key), str(letter.receives), died, clean(letter.reason)
        )
    return table
