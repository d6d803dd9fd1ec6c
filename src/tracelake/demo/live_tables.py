"""The end of the live chapter, printed: where its rows are, and what the reorganisation changed."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tracelake.cli.session import show
from tracelake.cli.text import count
from tracelake.demo.live import LiveStory, Reorganisation

_MOST_BLOCKS, _MOST_TOKENS = 6, 10


def tell_live(console: Console, story: LiveStory, tokens: Mapping[str, tuple[str, int]]) -> None:
    """`tokens`: names and decimals of tokens, by address."""
    _say(console, "\nLive: the chain from its first block to its head (DAG live_chain)", "bold")
    show(console, _datasets(story))
    _say(console, _position(story))
    if story.reorganisation is not None:
        _reorganisation(console, story.reorganisation, tokens)


def live_as_json(story: LiveStory) -> dict[str, Any]:
    reorganisation = story.reorganisation
    return {
        "first_block": story.first,
        "head_at_first": story.began,
        "last_block": story.last,
        "lag_blocks": None if story.progress is None else story.progress.lag_blocks,
        "reorgs": 0 if story.progress is None else story.progress.reorgs,
        "follower_attempts": story.attempts,
        "tasks": story.tasks,
        "seconds": round(story.seconds, 1),
        "datasets": {
            content.name: {
                "boundary": content.boundary,
                "files": content.files,
                "rows_in_files": content.in_files,
                "rows_in_table": content.in_table,
                "rows_to_remove": content.waiting,
            }
            for content in story.datasets
        },
        "transfers": story.transfers,
        "flows": story.flows,
        "reorganisation": None
        if reorganisation is None
        else {
            "first_block": reorganisation.first,
            "last_block": reorganisation.last,
            "seconds": round(reorganisation.seconds, 1),
            "blocks": [
                {
                    "number": before.number,
                    "hashes": [before.hash, after.hash],
                    "transactions": [before.transactions, after.transactions],
                    "logs": [before.logs, after.logs],
                }
                for before, after in zip(reorganisation.before, reorganisation.after, strict=True)
            ],
            "transfers": [
                {"token": f"0x{token}", "before": before, "after": after}
                for token, before, after in reorganisation.count_transfers()
            ],
        },
    }


def _datasets(story: LiveStory) -> Table:
    table = _table("dataset", "rows", "in files", "in the table", "files up to block")
    for content in story.datasets:
        table.add_row(
            content.name,
            f"{content.in_files + content.in_table:,}",
            f"{content.in_files:,}",
            f"{content.in_table:,}",
            "-" if content.boundary is None else f"{content.boundary:,}",
        )
    table.add_row("live_transfers", f"{story.transfers:,}", f"{story.transfers:,}", "", "")
    table.add_row("live_flows", f"{story.flows:,}", "", f"{story.flows:,}", "")
    return table


def _position(story: LiveStory) -> str:
    blocks = f"Blocks {story.first:,} to {story.last:,}; the head was at {story.began:,} when it began."
    lag = story.progress.lag_blocks if story.progress is not None else None
    behind = "" if lag is None else f" The follower is {count(lag, 'block')} behind the head now."
    again = "" if story.attempts < 2 else f" It is at attempt {story.attempts}: its worker was killed on the way."
    return f"{blocks}{behind}{again}"


def _reorganisation(console: Console, change: Reorganisation, tokens: Mapping[str, tuple[str, int]]) -> None:
    depth = len(change.before)
    blocks = f"blocks {change.first:,} to {change.last:,}"
    _say(
        console,
        f"\nA reorganisation: the node replaced {blocks}, and {change.seconds:.1f} s later the tables did",
        "bold",
    )
    table = _table("block", "hash before", "hash after", "transactions", "logs", left=3)
    for before, after in list(zip(change.before, change.after, strict=True))[:_MOST_BLOCKS]:
        table.add_row(
            f"{before.number:,}",
            _short(before.hash),
            _short(after.hash),
            _change(before.transactions, after.transactions),
            _change(before.logs, after.logs),
        )
    show(console, table)
    if depth > _MOST_BLOCKS:
        _say(console, f"... and {count(depth - _MOST_BLOCKS, 'block')} more")
    _say(console, "")
    table = _table("token", "transfers in these blocks before", "after")
    transfers = change.count_transfers()
    busiest = sorted(transfers, key=lambda row: -max(row[1:]))[:_MOST_TOKENS]
    for token, before_count, after_count in (row for row in transfers if row in busiest):
        name, _ = tokens.get(token, ("", 0))
        table.add_row(name or f"0x{token[:6]}...{token[-4:]}", f"{before_count:,}", f"{after_count:,}")
    show(console, table)
    if len(transfers) > _MOST_TOKENS:
        _say(console, f"... and {count(len(transfers) - _MOST_TOKENS, 'token')} more")


def _short(block_hash: str) -> str:
    return f"{block_hash[:10]}...{block_hash[-4:]}"


def _change(before: int, after: int) -> str:
    return f"{before:,}" if before == after else f"{before:,} -> {after:,}"


def _table(*columns: str, left: int = 1) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number < left else "right")
    return table


def _say(console: Console, text: str, style: str = "") -> None:
    console.print(Text(text, style=style), soft_wrap=True)
