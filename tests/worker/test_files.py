"""What an operator hears when it asks which files an input has."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from uuid import UUID, uuid4

import pytest

from tests.worker.conftest import Bench
from tests.worker.fake_dispatcher import FakeTask, until
from tracelake.catalogue.context import CanceledError, NonRetryableError, OperatorContext, OperatorResult, TableInput
from tracelake.errors import TraceError
from tracelake.model.dag import ColumnType
from tracelake.ports import ObjectMeta
from tracelake.wire.task_calls import (
    DataFile,
    FilesReply,
    FileUnit,
    TableColumn,
    TaskDeliveriesReply,
    TaskDelivery,
)
from tracelake.wire.units import CursorRange, PayloadInput, Unit
from tracelake.worker.operators import Operator

DATASET, VERSION = uuid4(), uuid4()


Heard = list[ObjectMeta] | TableInput


def an_input(unit: Unit) -> PayloadInput:
    return PayloadInput(
        input_index=0, dataset_uuid=DATASET, dataset_version=VERSION, name="x", unit=unit, revision="", where=None
    )


RANGE = an_input(Unit(partition_key="10-19", start=10, end=19))


def a_page(number: int, following: int | None = None) -> FilesReply:
    file = DataFile(uri=f"s3://bucket/{number}", size=number, etag="e", sha256=f"{number:064}")
    return FilesReply(units=[FileUnit(start=number, end=number, revision=1, files=[file])], next=following)


def asks(bench: Bench, item: PayloadInput = RANGE) -> tuple[FakeTask, list[Heard], list[BaseException]]:
    heard: list[Heard] = []
    errors: list[BaseException] = []

    def run(context: OperatorContext) -> OperatorResult:
        try:
            heard.append(context.files(item))
        except BaseException as error:
            errors.append(error)
            raise
        return OperatorResult()

    bench.operators["sleep"] = Operator(run)
    return bench.dispatcher.add("sleep", {"seconds": 0}), heard, errors


def run_one(bench: Bench, task: FakeTask, meanwhile: Callable[[], None] = lambda: None) -> None:
    async def main() -> None:
        async with bench.working():
            await bench.wake(task)
            await until(
                lambda: bench.dispatcher.calls["files"] + bench.dispatcher.refused_while_away["files"] > 0,
                "the question",
            )
            meanwhile()
            await until(lambda: task.final is not None or bench.signals["fenced"] > 0, "the end")

    asyncio.run(main())


def test_every_page_is_read(bench: Bench) -> None:
    task, heard, _ = asks(bench)
    bench.dispatcher.file_answers.extend([a_page(10, 10), a_page(15, 15), a_page(19)])
    run_one(bench, task)
    assert heard == [[ObjectMeta(f"s3://bucket/{number}", number, "e", f"{number:064}") for number in (10, 15, 19)]]
    requests = [request for _, request in bench.dispatcher.file_requests]
    assert [(request.start, request.end, request.after) for request in requests] == [
        (10, 19, None),
        (10, 19, 10),
        (10, 19, 15),
    ]
    assert {(request.dataset_uuid, request.dataset_version) for request in requests} == {(DATASET, VERSION)}
    assert {(request.task_id, request.attempt) for request in requests} == {(task.task_id, 1)}


def test_a_table_is_told_by_its_columns(bench: Bench) -> None:
    task, heard, _ = asks(bench, an_input(Unit(cursor=CursorRange(after=0, to=1))))
    columns = [
        TableColumn(name="key", type=ColumnType.INT64),
        TableColumn(name="price", type=ColumnType.DECIMAL, precision=20, scale=6),
    ]
    bench.dispatcher.file_answers.append(FilesReply(units=[], columns=columns))
    run_one(bench, task)
    assert heard == [TableInput(tuple(columns))]


@pytest.mark.parametrize(
    ("unit", "blocks"),
    [
        (Unit(cursor=CursorRange(after=9, to=12)), (10, 12)),
        (Unit(cursor=CursorRange(after=-1, to=0)), (0, 0)),
        (Unit(cursor=CursorRange(after=5, to=5)), (5, 5)),
        (Unit(partition_key="eu"), (None, None)),
    ],
)
def test_the_unit_says_which(bench: Bench, unit: Unit, blocks: tuple[int | None, int | None]) -> None:
    task, _, _ = asks(bench, an_input(unit))
    run_one(bench, task)
    ((_, request),) = bench.dispatcher.file_requests
    assert (request.start, request.end) == blocks


def test_it_asks_until_somebody_answers(bench: Bench) -> None:
    task, heard, _ = asks(bench)
    bench.dispatcher.file_answers.extend(
        [TraceError("store_unavailable"), TraceError("credential_expired"), a_page(10)]
    )
    run_one(bench, task)
    assert heard == [[ObjectMeta("s3://bucket/10", 10, "e", f"{10:064}")]]
    assert bench.dispatcher.calls["token"] == 1, "an old token is replaced"


def test_a_refusal_is_the_end_of_the_task(bench: Bench) -> None:
    task, _, errors = asks(bench)
    bench.dispatcher.file_answers.append(TraceError("dataset_forbidden"))
    run_one(bench, task)
    assert isinstance(errors[0], NonRetryableError)
    assert task.final is not None
    assert not task.final.retryable
    assert "dataset_forbidden" in (task.final.error_message or "")


def test_a_fenced_attempt_stops(bench: Bench) -> None:
    task, _, errors = asks(bench)
    bench.dispatcher.file_answers.append(TraceError("fenced"))
    run_one(bench, task)
    assert isinstance(errors[0], CanceledError)
    assert task.final is None
    assert UUID(str(task.task_id))


def test_deliveries_come_page_by_page(bench: Bench) -> None:
    moment = datetime(2026, 1, 31, tzinfo=UTC)
    pages = [[1, 2], [3]]
    for numbers in pages:
        deliveries = [
            TaskDelivery(number=n, delivery_id=f"d-{n}", received_at=moment, content_type="", body=b"x" * n)
            for n in numbers
        ]
        following = None if numbers is pages[-1] else numbers[-1]
        bench.dispatcher.delivery_answers.append(TaskDeliveriesReply(deliveries=deliveries, next=following))
    received: list[tuple[int, bytes]] = []

    def run(context: OperatorContext) -> OperatorResult:
        received.extend((item.number, item.body) for item in context.deliveries(RANGE))
        return OperatorResult()

    bench.operators["sleep"] = Operator(run)
    task = bench.dispatcher.add("sleep", {"seconds": 0})

    async def main() -> None:
        async with bench.working():
            await bench.wake(task)
            await until(lambda: task.final is not None, "a final word")

    asyncio.run(main())
    assert received == [(1, b"x"), (2, b"xx"), (3, b"xxx")]
    assert [request.after for _, request in bench.dispatcher.delivery_requests] == [None, 2]
