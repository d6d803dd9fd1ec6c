"""The config of `rows_per_block`, and its entry in the catalogue.

A deploy checks the config, without Spark, and reports errors with their field. Checks that msgspec cannot express (two
fields that exclude each other) belong in `__post_init__` and raise `ConfigFieldError`. The Dispatcher imports this
module and has no Spark: do not import `pyspark` here.
"""

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from tracelake.catalogue.plugins import OperatorPlugin
from tracelake.catalogue.spec import JobInput, OperatorConfig, OperatorSpec, ResultColumns, Writes
from tracelake.model.columns import DatasetColumn, DatasetColumns


class RowsPerBlockConfig(OperatorConfig, frozen=True, kw_only=True):
    least: Annotated[int, Meta(ge=1)] = 1
    """Blocks with fewer rows are left out."""

    def writes(self) -> Writes:
        return Writes(1)

    def result(self, output_index: int, inputs: Sequence[JobInput]) -> ResultColumns:
        """The columns of the output, with which queries downstream are checked before anything runs."""
        return ResultColumns(DatasetColumns(columns=_COLUMNS))


_COLUMNS = (
    DatasetColumn(name="block_number", type="bigint"),
    DatasetColumn(name="rows", type="bigint", nullable=False, description="How many rows the block has."),
)


PLUGIN = OperatorPlugin(
    OperatorSpec(
        "rows_per_block",
        RowsPerBlockConfig,
        "Counts the rows of each block.",
        output_storage="s3",
        windows="all",
    ),
    module="acme_operators.rows_per_block_work",
)
