"""`range_aggregator`: emits a window of `size` blocks once its input has all of them.

Whichever task sees the window complete says so. When the last two units come at once, both may: consumers make one task
for a unit and revision, however often it is announced. None can be missed, because a unit is recorded in the
transaction that makes the task for it.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence

from tracelake.catalogue import RangeAggregatorConfig
from tracelake.dispatcher.engine.routing.coverage import merge
from tracelake.dispatcher.invoke.operators.context import MAX_UNITS, BadInputError, ControlContext
from tracelake.wire.base import MAX_CURSOR
from tracelake.wire.units import EventIn, TaskOutput

_FIRST = ("", "1")
"""Revisions of a unit that is there for the first time: announced, or committed as files."""
_MAX_REVISION = 200

_COVERAGE = """
    SELECT range_start, range_end FROM dataset_runs
    WHERE dataset_uuid = $1 AND dataset_version = $2 AND range_start <= $4 AND range_end >= $3
    ORDER BY range_start"""


async def range_aggregator(context: ControlContext) -> Iterable[EventIn]:
    config = context.config
    assert isinstance(config, RangeAggregatorConfig)
    source, start, end = context.block_range()
    size = config.size
    first, last = start // size, end // size
    if last - first >= MAX_UNITS:
        raise BadInputError(
            f"the unit touches {last - first + 1} windows of {size} blocks, more than {MAX_UNITS}; use larger windows"
        )
    until = min((last + 1) * size - 1, MAX_CURSOR)
    async with context.store.connection() as connection:
        runs = await connection.fetch(_COVERAGE, source.dataset_uuid, source.dataset_version, first * size, until)
    covered = merge((run["range_start"], run["range_end"]) for run in runs)
    revision = _revision(f"{start}-{end}", context.revision)
    return _events(context.outputs, complete_windows(first, last, size, covered), revision)


def complete_windows(first: int, last: int, size: int, covered: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The windows from number `first` to number `last` that lie within one of the ranges."""
    for start, end in covered:
        window = max(first, -(-start // size))
        while window <= last and (window + 1) * size - 1 <= end:
            yield window * size, (window + 1) * size - 1
            window += 1


def _revision(unit: str, revision: str) -> str:
    """A window whose unit was made anew is new as well; it says which unit, and which making of it."""
    if revision in _FIRST:
        return ""
    text = f"{unit}@{revision}"
    if len(text) <= _MAX_REVISION:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()
    return f"{text[: _MAX_REVISION - len(digest) - 1]}:{digest}"


def _events(outputs: Sequence[TaskOutput], windows: Iterator[tuple[int, int]], revision: str) -> Iterator[EventIn]:
    for start, end in windows:
        for output in outputs:
            yield EventIn(
                dataset_uuid=output.dataset_uuid,
                dataset_version=output.dataset_version,
                partition_key=f"{start}-{end}",
                start=start,
                end=end,
                revision=revision,
            )
