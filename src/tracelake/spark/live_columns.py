"""The columns of a live dataset: those of its table, also for rows in files, so that a reader cannot tell where a row
was. A column that a file lacks is null in its rows: the job that wrote the file did not read it yet. A column that only
files have is left out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from tracelake.catalogue.context import NonRetryableError
from tracelake.spark.integer_types import signed
from tracelake.storage.snapshots import arrow_columns
from tracelake.wire.task_calls import TableColumn

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


@dataclass(frozen=True, slots=True)
class LiveColumns:
    """Can be pickled."""

    schema: pa.Schema

    @classmethod
    def of(cls, columns: Sequence[TableColumn]) -> "LiveColumns":
        return cls(arrow_columns(columns))

    def spark_schema(self) -> "StructType":
        from pyspark.sql.pandas.types import from_arrow_schema

        return from_arrow_schema(self.schema)

    def check(self, name: str, file: pa.Schema) -> None:
        """That the columns of a file have the types of the table."""
        from pyspark.sql.pandas.types import from_arrow_schema

        types = {field.name: field.dataType for field in from_arrow_schema(signed(file)).fields}
        for field in self.spark_schema().fields:
            if types.get(field.name, field.dataType) != field.dataType:
                raise NonRetryableError(
                    f"the column {field.name} of {name} is {types[field.name].simpleString()} in its files and"
                    f" {field.dataType.simpleString()} in its table: all jobs that write a live dataset must write"
                    " its columns with the same types"
                )
