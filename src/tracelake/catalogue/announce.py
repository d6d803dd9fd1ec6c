"""What operators without data say, wherever they run: their outputs have the unit that their input has."""

from collections.abc import Sequence

from tracelake.wire.units import EventIn, PayloadInput, TaskOutput

ANNOUNCED = ("none", "postgres")
"""Other kinds of output have a unit only once files or batches of it are committed, and these operators write none."""


def announce(inputs: Sequence[PayloadInput], outputs: Sequence[TaskOutput]) -> list[EventIn]:
    """One event for each output that needs no data of its own. Without an input there is no unit to speak of."""
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
