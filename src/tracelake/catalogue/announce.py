"""The events of operators that write no data: each output gets the unit of the input."""

from collections.abc import Sequence

from tracelake.wire.units import EventIn, PayloadInput, TaskOutput

ANNOUNCED = ("none", "postgres")
"""Storage of outputs that need no data; others get a unit only when files or batches are committed."""


def announce(inputs: Sequence[PayloadInput], outputs: Sequence[TaskOutput]) -> list[EventIn]:
    """One event for each output that needs no data. Without an input there is no unit, and no event."""
    if not inputs:
        return []
    unit = inputs[0].unit
    return [
        EventIn(
            dataset_uuid=output.dataset_uuid,
            dataset_version=output.dataset_version,
            cursor=None if unit.cursor is None else unit.cursor.to,
            partition_key=unit.partition_key,
            start=unit.start,
            end=unit.end,
        )
        for output in outputs
        if output.storage.kind in ANNOUNCED
    ]
