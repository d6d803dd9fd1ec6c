"""Tables of buffered datasets for tests of reading: who writes them, and tasks that read them."""

import asyncio
import dataclasses
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from uuid import uuid4

import asyncpg
import pyarrow as pa

from tests.sink.support import Publisher
from tests.sink.test_store import ask
from tracelake.catalogue.context import OperatorContext, OperatorResult, TableInput
from tracelake.model.dag import Schema
from tracelake.sink.store import TableStore
from tracelake.spark.testing import make_context
from tracelake.spark.work import SparkWork
from tracelake.wire.buffers import BufferedDataset
from tracelake.wire.task_calls import TableColumn
from tracelake.wire.units import CursorRange, PayloadInput, Unit
from tracelake.worker.spark import SparkOperators

HIGHEST = 2**256 - 1
LEAST: dict[str, Any] = {
    "key": "a",
    "number": -(2**31),
    "flag": False,
    "small": -(2**15),
    "large": -(2**63),
    "signed": -(2**255),
    "unsigned": 0,
    "ratio": -1.7976931348623157e308,
    "amount": "-99999999999999.999999",
    "class": "low",
    "data": "0x",
    "at": "0001-01-01T00:00:00Z",
    "day": "0001-01-01",
    "more": {},
}
MOST: dict[str, Any] = {
    "key": "b",
    "number": 2**31 - 1,
    "flag": True,
    "small": 2**15 - 1,
    "large": 2**63 - 1,
    "signed": 2**255 - 1,
    "unsigned": HIGHEST,
    "ratio": 5e-324,
    "amount": "99999999999999.999999",
    "class": "high",
    "data": "0x" + "ff" * 32,
    "at": "9999-12-31T23:59:59.999999Z",
    "day": "9999-12-31",
    "more": {"n": 12345678901234567890123, "t": "\u2028'\"\\"},
}


@dataclasses.dataclass
class Kept:
    """A table, and who writes it."""

    dsn: str
    dataset: BufferedDataset
    store: TableStore
    publisher: Publisher

    def commit(self, *batches: Sequence[Mapping[str, Any]]) -> None:
        """Batches that become visible together."""
        parts = [self.publisher.loaded(rows) for rows in batches]
        self.store.commit_direct(self.dataset, [loaded for loaded, _ in parts], [rows for _, rows in parts])

    def item(self, after: int, to: int, where: Mapping[str, Any] | None = None) -> PayloadInput:
        return PayloadInput(
            input_index=0,
            dataset_uuid=self.dataset.dataset_uuid,
            dataset_version=uuid4(),
            name="rows",
            unit=Unit(cursor=CursorRange(after=after, to=to)),
            revision="",
            where=None if where is None else dict(where),
        )

    @property
    def declared(self) -> TableInput:
        return declared(self.dataset.schema)

    def context(self, item: PayloadInput, config: Mapping[str, Any] | None = None) -> OperatorContext:
        prefix = f"s3://bucket-one/datasets/out/{uuid4()}/"
        operator = "noop" if config is None else "spark_sql"
        made = make_context(operator, config or {}, item.unit, [(item.name, [], None)], {"out": prefix})
        return dataclasses.replace(made, inputs=[item], files=lambda _item: self.declared)

    def holders(self) -> int:
        """Connections that hold a moment of this database."""
        ((found,),) = ask(
            self.dsn,
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            " AND state LIKE 'idle in transaction%' AND pid <> pg_backend_pid()",
        )
        return int(found)


def declared(schema: Schema) -> TableInput:
    """As the Dispatcher tells it."""
    return TableInput(
        tuple(
            TableColumn(name=column.name, type=column.type, precision=column.precision, scale=column.scale)
            for column in schema.columns
        )
    )


def run(engine: SparkOperators, context: OperatorContext, operator: Callable[[SparkWork], Any]) -> list[Any]:
    """What the function answers, run as the worker runs an operator."""
    answers: list[Any] = []

    def wrapped(work: SparkWork) -> OperatorResult:
        answers.append(operator(work))
        return OperatorResult()

    module = types.ModuleType(f"tests_spark_operator_{uuid4().hex}")
    module.run = wrapped  # type: ignore[attr-defined]
    sys.modules[module.__name__] = module
    try:
        engine._run(module.__name__, context)
    finally:
        del sys.modules[module.__name__]
    return answers


def rows_of(engine: SparkOperators, kept: Kept, item: PayloadInput) -> pa.Table:
    (found,) = run(engine, kept.context(item), lambda work: work.read().toArrow())
    assert isinstance(found, pa.Table)
    return found.sort_by(kept.dataset.schema.unique[0])


def explained(dsn: str, statement: str) -> str:
    async def explain() -> str:
        connection = await asyncpg.connect(dsn)
        try:
            await connection.execute("SET enable_seqscan = off")
            return "\n".join(row[0] for row in await connection.fetch(f"EXPLAIN {statement}"))
        finally:
            await connection.close()

    return asyncio.run(explain())
