"""An operator that runs a query that no gate has read. The query comes as the traceparent of its task."""

from tracelake.catalogue.context import OperatorResult
from tracelake.spark.work import SparkWork

ROWS = """
SELECT id AS k, repeat('a', 2000) AS s, sequence(id, id + 49) AS xs, timestamp_seconds(id) AS ts FROM range(200)
"""


def run(work: SparkWork) -> OperatorResult:
    for view in ("t", "u"):
        work.session.sql(ROWS).createOrReplaceTempView(view)
    assert work.context.traceparent is not None
    work.session.sql(work.context.traceparent).write.format("noop").mode("overwrite").save()
    return OperatorResult()
