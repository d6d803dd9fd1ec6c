"""What a dataset lacks, told to whoever reads its rows."""

import click

from tracelake.cli.session import Session
from tracelake.cli.text import clean, count
from tracelake.client.errors import DispatcherUnavailableError
from tracelake.errors import TraceError
from tracelake.wire import routes
from tracelake.wire.datasets import DatasetDetail
from tracelake.wire.why import WhyReply

_SHOWN = 5
_OPEN_WORK = frozenset({
    "backlog_full", "batch_not_sent", "batches_await_task", "batches_wait", "dead_letters", "edge_draining",
    "edge_held", "events_await_commit", "no_sink", "outputs_stale", "over_quota", "pressure", "rebuilding",
    "tasks_at_quota", "tasks_backing_off", "tasks_failed", "tasks_limited", "tasks_ready", "tasks_running",
    "tasks_unheard", "unit_waits", "units_differ",
})  # fmt: skip
"""Reasons of `trace why` by which rows will change, or are missing. A source that waits for new data is none."""


def list_gaps(detail: DatasetDetail, start: int | None, end: int | None) -> list[str]:
    first, last = 0 if start is None else start, 2**63 - 1 if end is None else end

    def is_asked(low: int | None, high: int | None) -> bool:
        return low is None or high is None or (low <= last and high >= first)

    given_up = [item for item in detail.given_up if is_asked(item.start, item.end)]
    sentences = [f"unit {item.unit} of {item.job} was {item.state}" for item in given_up]
    # Between units that are there, but nobody gave them up: failed, still to come, or never asked for.
    for gap in [] if detail.content is None else detail.content.gaps:
        explains = any(
            item.start is not None and item.end is not None and item.start <= gap.end and item.end >= gap.start
            for item in given_up
        )
        if is_asked(gap.start, gap.end) and not explains:
            sentences.append(f"no unit covers {gap.text}")
    return sentences


def tell_gaps(sentences: list[str]) -> None:
    """Goes to standard error: rows may be going to a program."""
    if sentences:
        left = len(sentences) - _SHOWN
        more = f"; and {left:,} more" if left > 0 else ""
        click.echo(clean(f"{count(len(sentences), 'gap')}: {'; '.join(sentences[:_SHOWN])}{more}."), err=True)


def ask_open_work(session: Session, dataset: str) -> str | None:
    """Says that rows of the dataset are still being computed, and which; None if it is up to date.

    Asked before the rows are read: work that ends meanwhile is told rather than concealed. No answer is no failure,
    but a Dispatcher that is silent would be so for the rows, too.
    """
    try:
        reply = session.run(lambda client: client.call(routes.EXPLAIN_DATASET, name=dataset))
    except DispatcherUnavailableError:
        raise
    except TraceError:
        return None
    return describe_open_work(reply)


def describe_open_work(reply: WhyReply) -> str | None:
    text = next((item.text for item in reply.reasons if item.code in _OPEN_WORK), None)
    return text and f"{reply.id} is not complete: {text} `trace why {reply.id}` says when it is."


def tell_open_work(sentence: str | None) -> None:
    """Goes to standard error, as gaps do."""
    if sentence is not None:
        click.echo(clean(sentence), err=True)
