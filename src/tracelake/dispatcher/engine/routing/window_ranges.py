"""The windows of a range that a user triggers: each of them gets a task of its own."""

from tracelake.dispatcher.engine.routing.directory import Consumer, ConsumerInput
from tracelake.dispatcher.engine.routing.upstream_graph import UpstreamGraph
from tracelake.errors import TraceError
from tracelake.model.dag import ReadMode, UnitGrid
from tracelake.model.windows import Window, describe_range, next_window, parse_range, window_at
from tracelake.wire.jobs import MAX_TRIGGERED_WINDOWS, BlockRange

NO_WINDOWS = "The units of this job are no windows of time: give a range, a cursor or a partition_key instead."


def parse_windows(grid: UnitGrid | None, text: str, *, several: bool) -> BlockRange:
    """The seconds of windows of time that a user named by their dates."""
    if grid is None or grid.by != "time":
        raise TraceError("trigger_invalid", NO_WINDOWS, field="window")
    try:
        window = parse_range(grid, text)
    except ValueError as error:
        raise TraceError("trigger_invalid", f"The window: {error}.", field="window") from None
    if not several and window != window_at(grid, window.start):
        raise TraceError("trigger_invalid", "Expected one window, received several: trigger each.", field="window")
    return BlockRange(start=window.start, end=window.end)


def split_range(consumer: Consumer, graph: UpstreamGraph, blocks: BlockRange) -> list[Window]:
    """The windows of a job that a range consists of. Raises TraceError for parts of windows, and for too many."""
    span, grid = Window(blocks.start, blocks.end), consumer.job.units
    if grid is None:  # it has the units of its inputs, whatever those are
        grid = next((graph.grid_of(item.generation) for item in consumer.inputs if _takes_units(consumer, item)), None)
        return [span] if grid is None else _split(grid, span) or [span]
    try:
        windows = _split(grid, span)
        expected = window_at(grid, span.start)
    except ValueError as error:
        raise TraceError("trigger_invalid", f"The range: {error}.", field="range") from None
    if not windows:
        dates = f" ({describe_range(grid, *expected)})" if grid.by == "time" else ""
        text = (
            f"Expected a unit of the job, like {expected.start}-{expected.end}{dates}, or several side by side; "
            f"received {span.start}-{span.end}."
        )
        raise TraceError("trigger_invalid", text, field="range")
    if len(windows) > 1 and any(consumer.spec(item).read is ReadMode.PREVIOUS for item in consumer.inputs):
        text = "Each unit of this job reads the one before it: trigger the first, and the others follow."
        raise TraceError("trigger_invalid", text, field="range")
    return windows


def _takes_units(consumer: Consumer, item: ConsumerInput) -> bool:
    return consumer.spec(item).read is ReadMode.UNIT


def _split(grid: UnitGrid, span: Window) -> list[Window]:
    """The windows of the range; none if it begins or ends inside of one."""
    window = window_at(grid, span.start)
    if window.start != span.start:
        return []
    windows = [window]
    while window.end < span.end:
        if len(windows) == MAX_TRIGGERED_WINDOWS:
            text = (
                f"Expected at most {MAX_TRIGGERED_WINDOWS:,} units, received more: trigger a part of the range first."
            )
            raise TraceError("trigger_invalid", text, field="range")
        window = next_window(grid, window)
        windows.append(window)
    return windows if window.end == span.end else []
