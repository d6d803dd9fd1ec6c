"""The work of `rows_per_block`: it counts the rows of each block. Workers import it with the first task."""

from tracelake.catalogue.context import NonRetryableError, OperatorResult
from tracelake.spark.work import SparkWork

from acme_operators.rows_per_block import RowsPerBlockConfig


def run(work: SparkWork) -> OperatorResult:
    from pyspark.sql import functions as F  # noqa: N812 - the usual alias

    config = work.context.config
    assert isinstance(config, RowsPerBlockConfig)
    # The rows of the unit: pinned to the task's version, with the range and the input's `where` applied.
    rows = work.read()
    if "block_number" not in rows.columns:
        # Another attempt would fail in the same way. Any other exception is retried.
        raise NonRetryableError("the input has no column block_number")
    counts = rows.groupBy("block_number").agg(F.count(F.lit(1)).alias("rows"))
    # Sorted, in one or several files below the attempt's prefix. They become data when the task completes.
    written = work.write(counts.filter(F.col("rows") >= config.least))
    work.context.progress(f"{written.rows} blocks")
    return work.result()
