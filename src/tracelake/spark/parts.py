"""How Spark's tasks write files and tell the driver of them: in one job, with what else has to be known of the rows.

Each partition is a part: a `PartSink` takes its batches and reports in the end what it wrote, in one row for the
driver. If `unique` names columns in which no two rows may be the same, the parts hand on these columns too, and Spark
counts them behind the writers, spread by their hashes: exactly, in bounded memory, and without making any row twice. A
part that a cluster runs again reports under the same number, so that the driver hears of one run of it.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

import pyarrow as pa

from tracelake.catalogue.context import NonRetryableError
from tracelake.spark.python_gc import settle

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_KEY_OF_ROW = -1
"""Instead of a part's number: the row holds values of `unique`."""
_GIVEN_UP = ""
_SHOWN_CHARACTERS = 80
"""Of a value in an error."""
_COLUMNS = [pa.field("part", pa.int32()), pa.field("report", pa.string())]


class MisplacedRowsError(Exception):
    """Rows do not come as somebody expected: the part is given up, and somebody writes all of them in another way."""


class PartSink(Protocol):
    def write(self, batch: pa.RecordBatch) -> None: ...

    def finish(self) -> str:
        """The report, which is not empty."""
        ...

    def discard(self) -> None:
        """Called in any case, at last."""
        ...


MakeSink: TypeAlias = Callable[[int], PartSink]
"""Of the part with this number. It is pickled."""


def arrow_schema(frame: "DataFrame") -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema

    schema: pa.Schema = to_arrow_schema(frame.schema, timezone="UTC")
    return schema


def write_parts(frame: "DataFrame", make: MakeSink, *, unique: Sequence[str] = (), single: bool) -> list[str] | None:
    """The reports of all parts; None if one was given up. `single`: the frame has one partition."""
    from pyspark.sql.types import IntegerType, StringType, StructField, StructType

    kinds = {field.name: field.dataType for field in frame.schema.fields}
    keys = [StructField(f"key{number}", kinds[name]) for number, name in enumerate(unique)]
    columns = StructType([StructField("part", IntegerType()), StructField("report", StringType()), *keys])
    part_rows = frame.mapInArrow(_part_function(make, unique, arrow_schema(frame)), columns)
    if not unique:
        reports = [row.report for row in part_rows.collect()]
    else:
        (row,) = _count(part_rows, [key.name for key in keys], single=single).collect()
        if row.twice is not None:
            values = zip(unique, row.twice, strict=True)
            example = ", ".join(f"{name} = {'null' if value is None else value}" for name, value in values)
            message = f"two rows of the result have the same {', '.join(unique)}, which `unique` forbids"
            raise NonRetryableError(f"{message}, for example {example}")
        reports = row.reports
    return None if _GIVEN_UP in reports else reports


def _count(rows: "DataFrame", keys: Sequence[str], *, single: bool) -> "DataFrame":
    """In one row: keys that are there twice, as text, or null; and the reports."""
    import pyspark.sql.functions as F  # noqa: N812 - as everybody calls it

    # Spread by the part and not by its report, which differs from one run of the part to the next.
    spread = rows if single else rows.repartition("part", *keys)
    counts = spread.groupBy("part", "report", *keys).agg(F.count(F.lit(1)).alias("n"))
    example = F.array(*(_as_text(counts, key) for key in keys))
    return counts.agg(
        F.min(F.when(F.expr(f"part = {_KEY_OF_ROW} AND n > 1"), example)).alias("twice"),
        F.collect_list("report").alias("reports"),
    )


def _as_text(frame: "DataFrame", name: str) -> "Column":
    """The value of a column for people: bytes in hexadecimal, long values cut."""
    import pyspark.sql.functions as F  # noqa: N812 - as everybody calls it
    from pyspark.sql.types import BinaryType

    value = F.col(name)
    if isinstance(frame.schema[name].dataType, BinaryType):
        text = F.concat(F.lit("0x"), F.lower(F.hex(value)))
    else:
        text = value.cast("string")
    return F.substring(text, 1, _SHOWN_CHARACTERS)


def _part_function(
    make: MakeSink, unique: Sequence[str], schema: pa.Schema
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    types = [schema.field(name).type for name in unique]
    columns = pa.schema([*_COLUMNS, *(pa.field(f"key{number}", kind) for number, kind in enumerate(types))])

    def write_part(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle()
        number = _part_number()
        sink = make(number)
        try:
            for batch in batches:
                sink.write(batch)
                if unique:
                    rows = batch.num_rows
                    part = pa.repeat(pa.scalar(_KEY_OF_ROW, pa.int32()), rows)
                    keys = [batch.column(name).cast(kind) for name, kind in zip(unique, types, strict=True)]
                    yield pa.RecordBatch.from_arrays([part, pa.nulls(rows, pa.string()), *keys], schema=columns)
            report = sink.finish()
        except MisplacedRowsError:
            report = _GIVEN_UP
        finally:
            sink.discard()
        own = [pa.array([number], pa.int32()), pa.array([report], pa.string())]
        yield pa.RecordBatch.from_arrays([*own, *(pa.nulls(1, kind) for kind in types)], schema=columns)

    return write_part


def _part_number() -> int:
    from pyspark import TaskContext

    context = TaskContext.get()
    return 0 if context is None else context.partitionId()
