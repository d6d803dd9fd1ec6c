"""`noop` in a worker announces the unit of its first input on the outputs that need no data."""

import threading
from typing import Any
from uuid import UUID, uuid4

import pytest

from tracelake.catalogue import NoopConfig
from tracelake.catalogue.context import OperatorContext
from tracelake.wire.units import CursorRange, EventIn, PayloadInput, StorageOut, TaskOutput, Unit
from tracelake.worker.operators import OPERATORS

OUTPUTS = [
    TaskOutput(output_index=index, dataset_uuid=uuid4(), dataset_version=uuid4(), storage=StorageOut(kind=kind))
    for index, kind in enumerate(("s3", "none", "buffered", "postgres"))
]


def payload_input(index: int, unit: Unit) -> PayloadInput:
    return PayloadInput(
        input_index=index, dataset_uuid=uuid4(), dataset_version=uuid4(), name="n", unit=unit, revision="r", where=None
    )


def run(*units: Unit) -> list[EventIn]:
    context = OperatorContext(
        task_id=UUID(int=1),
        attempt=1,
        config=NoopConfig(),
        inputs=[payload_input(index, unit) for index, unit in enumerate(units)],
        outputs=OUTPUTS,
        progress=lambda _text: None,
        cancel=threading.Event(),
        paused=threading.Event(),
        emit=lambda _events: None,
        files=lambda _item: [],
    )
    return OPERATORS["noop"].run(context).events


@pytest.mark.parametrize(
    ("unit", "said"),
    [
        (Unit(cursor=CursorRange(after=-1, to=0)), {"cursor": 0}),
        (Unit(cursor=CursorRange(after=3, to=8)), {"cursor": 8}),
        (Unit(partition_key="0-9", start=0, end=9), {"partition_key": "0-9", "start": 0, "end": 9}),
        (Unit(partition_key="2024-01"), {"partition_key": "2024-01"}),
    ],
)
def test_the_unit_of_the_first_input_is_announced(unit: Unit, said: dict[str, Any]) -> None:
    assert run(unit, Unit(partition_key="another")) == [
        EventIn(dataset_uuid=output.dataset_uuid, dataset_version=output.dataset_version, **said)
        for output in (OUTPUTS[1], OUTPUTS[3])
    ]


def test_without_an_input_there_is_nothing_to_say() -> None:
    assert run() == []
