"""`trace outbox`: side effects that wait for their transport, and those it rejected too often."""

import asyncio
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.table import Table

from tracelake.cli.options import home_option, json_option
from tracelake.cli.session import show
from tracelake.client.stack import find_stack
from tracelake.wire.platform import OutboxReply, RequeueReply


@click.group()
def command() -> None:
    """Side effects (wake-ups, buffer pointers) on their way to the queues.

    Rows are published within milliseconds and then deleted. What stays Pending waits for a queue that is away; what is
    Failed was rejected by the queue itself too often and waits for you.
    """


@command.command("list")
@home_option
@json_option
@click.option("--status", type=click.Choice(["pending", "failed"]), help="Only these (default: both).")
@click.option("--limit", type=click.IntRange(1, 1000), default=100, show_default=True, help="At most this many rows.")
def list_rows(home: Path | None, as_json: bool, status: str | None, limit: int) -> None:
    """List outbox rows, oldest first."""
    reply = asyncio.run(_list(home, status, limit))
    if as_json:
        click.echo(msgspec.json.encode(reply))
        return
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
@home_option
@json_option
def requeue(outbox_ids: tuple[int, ...], home: Path | None, as_json: bool) -> None:
    """Try failed rows again: the given ones, or all of them."""
    reply = asyncio.run(_requeue(home, outbox_ids))
    if as_json:
        click.echo(msgspec.json.encode(reply))
    else:
        click.echo(f"{reply.requeued} rows will be tried again." if reply.requeued else "There is no failed row.")


async def _list(home: Path | None, status: Any, limit: int) -> OutboxReply:
    client = find_stack(home).internal_client()
    try:
        return await client.outbox(status, limit)
    finally:
        await client.close()


async def _requeue(home: Path | None, outbox_ids: tuple[int, ...]) -> RequeueReply:
    client = find_stack(home).internal_client()
    try:
        return await client.requeue_outbox(list(outbox_ids) or None)
    finally:
        await client.close()


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
