"""`range_splitter`: cuts the block range of its input into units of `size` blocks, on every output."""

from collections.abc import Iterable, Iterator, Sequence

from tracelake.catalogue import RangeSplitterConfig
from tracelake.dispatcher.invoke.operators.context import MAX_UNITS, BadInputError, ControlContext
from tracelake.wire.units import EventIn, TaskOutput


async def range_splitter(context: ControlContext) -> Iterable[EventIn]:
    config = context.config
    assert isinstance(config, RangeSplitterConfig)
    _, start, end = context.block_range()
    units = count_units(start, end, config.size, align=config.align)
    if units > MAX_UNITS:
        raise BadInputError(
            f"the range has {units} units of {config.size} blocks, more than {MAX_UNITS}; "
            "split it in two steps, first into larger units"
        )
    if units > context.max_units:
        raise BadInputError(
            f"quota_units_per_range: the range has {units} units of {config.size} blocks, and the organisation's quota "
            f"is {context.max_units}; use a shorter range or larger units, or ask the platform's operator for more"
        )
    return _events(context.outputs, split(start, end, config.size, align=config.align))


def count_units(start: int, end: int, size: int, *, align: bool) -> int:
    origin = 0 if align else start
    return (end - origin) // size - (start - origin) // size + 1


def split(start: int, end: int, size: int, *, align: bool) -> Iterator[tuple[int, int]]:
    """Units side by side that cover the range exactly. Aligned ones end before multiples of `size`."""
    cut = start - (start % size if align else 0) + size
    while cut <= end:
        yield start, cut - 1
        start, cut = cut, cut + size
    yield start, end


def _events(outputs: Sequence[TaskOutput], units: Iterator[tuple[int, int]]) -> Iterator[EventIn]:
    targets = [(output.dataset_uuid, output.dataset_version) for output in outputs]
    for start, end in units:
        key = f"{start}-{end}"
        for dataset_uuid, dataset_version in targets:
            yield EventIn(
                dataset_uuid=dataset_uuid, dataset_version=dataset_version, partition_key=key, start=start, end=end
            )
