"""What a dataset lacks, told to whoever reads its rows."""

import click

from tracelake.cli.session import Session
from tracelake.cli.text import clean, count
from tracelake.errors import TraceError
from tracelake.wire import routes
from tracelake.wire.datasets import DatasetDetail

_SHOWN = 5


def find_gaps(session: Session, dataset: str, start: int | None, end: int | None) -> list[str]:
    """A sentence for each gap in the range. A dataset whose rows can be read is read, even if nobody tells its gaps."""
    try:
        detail = session.run(lambda client: client.call(routes.SHOW_DATASET, name=dataset))
    except TraceError:
        return []
    return list_gaps(detail, start, end)


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
