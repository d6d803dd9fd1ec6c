"""What an operator hears when it asks which files an input has."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from unittest.mock import Mock
from uuid import UUID, uuid4

import msgspec
import pytest

from tests.worker.conftest import Bench
from tests.worker.fake_dispatcher import FakeTask, until
from tracelake.catalogue.context import (
    CanceledError,
    LiveInput,
    LiveOutput,
    NonRetryableError,
    OperatorContext,
    OperatorResult,
    TableInput,
)
from tracelake.errors import BoundaryMovedError, TraceError
from tracelake.model.dag import Column, ColumnType, Schema
from tracelake.ports import ObjectMeta, SecretValues
from tracelake.ports.direct_tables import RowsRefusedError
from tracelake.wire.direct import DirectTable
from tracelake.wire.task_calls import (
    DataFile,
    FilesReply,
    FileUnit,
    TableColumn,
    TaskDeliveriesReply,
    TaskDelivery,
)
from tracelake.wire.units import CursorRange, PayloadInput, StorageOut, TaskOutput, Unit
from tracelake.worker.direct_outputs import remove_rows
from tracelake.worker.operators import Operator
from tracelake.worker.wrapper import MOVED_AT_ONCE, _failed

DATASET, VERSION = uuid4(), uuid4()
OUTPUT = TaskOutput(
    output_index=0,
    dataset_uuid=DATASET,
    dataset_version=VERSION,
    name="blocks",
    storage=StorageOut(kind="s3", write_prefix="s3://bucket/blocks/1/1/"),
)
TABLE = DirectTable(
    dataset_uuid=DATASET,
    org_id=uuid4(),
    org="acme",
    name="blocks",
    schema=Schema(columns=(Column(name="block_number", type=ColumnType.INT64),), unique=("block_number",)),
)


Heard = list[ObjectMeta] | TableInput | LiveInput


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


@pytest.mark.parametrize("boundary", [None, 17])
def test_a_live_dataset_is_files_and_a_table(bench: Bench, boundary: int | None) -> None:
    task, heard, _ = asks(bench)
    columns = [TableColumn(name="block_number", type=ColumnType.INT64)]
    pages = [a_page(10, 10), a_page(15)]
    bench.dispatcher.file_answers.extend(
        msgspec.structs.replace(page, columns=columns, by_position=True, live=True, boundary=boundary) for page in pages
    )
    run_one(bench, task)
    files = [ObjectMeta(f"s3://bucket/{number}", number, "e", f"{number:064}") for number in (10, 15)]
    assert heard == [LiveInput(files, TableInput(tuple(columns), by_position=True), boundary)]


def test_a_live_dataset_without_files_is_still_one(bench: Bench) -> None:
    task, heard, _ = asks(bench)
    columns = [TableColumn(name="block_number", type=ColumnType.INT64)]
    bench.dispatcher.file_answers.append(FilesReply(units=[], columns=columns, by_position=True, live=True))
    run_one(bench, task)
    assert heard == [LiveInput([], TableInput(tuple(columns), by_position=True), None)]


def test_the_table_of_an_output_is_told_with_its_boundary(bench: Bench) -> None:
    replies: list[Any] = []

    def run(context: OperatorContext) -> OperatorResult:
        replies.append(context.live_output(OUTPUT))
        replies.append(context.live_output(OUTPUT))
        return OperatorResult()

    bench.operators["sleep"] = Operator(run)
    task = bench.dispatcher.add("sleep", {"seconds": 0})
    columns = [TableColumn(name="block_number", type=ColumnType.INT64)]
    reply = FilesReply(units=[], columns=columns, by_position=True, live=True, boundary=7, table=TABLE)
    bench.dispatcher.file_answers.extend([reply, FilesReply(units=[])])
    run_one(bench, task)
    assert replies == [LiveOutput(TABLE, 7)]
    request = bench.dispatcher.file_requests[0][1]
    assert (request.dataset_uuid, request.dataset_version) == (DATASET, VERSION)


@pytest.mark.parametrize(
    ("operator", "dataset", "boundary", "to", "refusal"),
    [
        ("parquet_compact", DATASET, 9, 9, None),
        ("parquet_compact", DATASET, 9, 10, "are not in committed files"),
        ("parquet_compact", DATASET, None, 0, "are not in committed files"),
        ("parquet_compact", uuid4(), 9, 9, "may not remove"),
        ("spark_sql", DATASET, 9, 9, "may not remove"),
    ],
)
def test_only_rows_of_committed_files_of_own_outputs_are_removed(
    operator: str, dataset: UUID, boundary: int | None, to: int, refusal: str | None
) -> None:
    attempt, tables = Mock(), Mock()
    attempt.task = Mock(operator=operator, outputs=[OUTPUT])
    tables.remove_rows.return_value = 3
    output = LiveOutput(msgspec.structs.replace(TABLE, dataset_uuid=dataset), boundary)
    if refusal is None:
        assert remove_rows(attempt, tables, output, to) == 3
        tables.remove_rows.assert_called_once_with([DATASET], to)
        tables.remove_rows.side_effect = RowsRefusedError("It is not sealed.")
        with pytest.raises(NonRetryableError, match="not sealed"):
            remove_rows(attempt, tables, output, to)
        with pytest.raises(NonRetryableError, match="data_dsn"):
            remove_rows(attempt, None, output, to)
        return
    with pytest.raises(NonRetryableError, match=refusal):
        remove_rows(attempt, tables, output, to)
    tables.remove_rows.assert_not_called()


@pytest.mark.parametrize("number", [1, MOVED_AT_ONCE, MOVED_AT_ONCE + 1])
def test_a_boundary_that_moved_starts_another_attempt_at_once(number: int) -> None:
    """Without a wait and without a cost; but a boundary that moves for ever must not keep a worker busy."""
    attempt = Mock(number=number, cancel_requested=False, leaving=False, log_fields={})
    attempt.secrets = SecretValues()
    attempt.final_when_leaving = lambda reason: ("again", reason)
    attempt.final = lambda _status, text, retryable: ("failed", text, retryable)
    final: Any = _failed(attempt, BoundaryMovedError("It moved."))
    if number <= MOVED_AT_ONCE:
        assert final == ("again", "boundary_moved: It moved.")
    else:
        assert final == ("failed", "BoundaryMovedError: boundary_moved: It moved.", True)


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
