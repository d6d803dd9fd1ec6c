"""What a small unit costs, in Spark's own terms: jobs and tasks of each operator. More of them is more waiting."""

from typing import Any
from uuid import uuid4

import pytest

from tests.spark.chain_tables import chain_tables
from tests.spark.support import Bench
from tracelake.spark.operators import decode_logs, integrity_check, spark_sql

SUMMARY = """
SELECT date_trunc('hour', timestamp_seconds(b.timestamp)) AS hour, lower(hex(t.address)) AS token, count(*) AS n,
       count(DISTINCT t.topic1) AS senders
FROM t JOIN b ON b.block_number = t.block_number GROUP BY 1, 2
"""


@pytest.mark.parametrize(
    ("operator", "module", "config", "inputs", "outputs", "jobs"),
    [
        ("integrity_check", integrity_check, {}, ("blocks", "transactions", "logs"), 1, 1),
        ("decode_logs", decode_logs, {}, ("logs",), 2, 1),
        ("spark_sql", spark_sql, {"query": "SELECT block_number, hex(data) AS d FROM logs"}, ("logs",), 1, 1),
        ("spark_sql", spark_sql, {"query": SUMMARY, "inputs": {"t": 0, "b": 1}}, ("logs", "blocks"), 1, 1),
    ],
)
def test_jobs_and_tasks_of_a_small_unit(
    bench: Bench, operator: str, module: Any, config: dict[str, Any], inputs: tuple[str, ...], outputs: int, jobs: int
) -> None:
    chain = chain_tables(250)
    for name in inputs:
        bench.add_input(name, chain[name])
    for index in range(outputs):
        bench.add_output(f"out{index}")
    context = bench.session.sparkContext
    group = uuid4().hex
    context.setJobGroup(group, "a test")
    try:
        bench.run(operator, module.run, config, blocks=(0, 249))
    finally:
        for name in ("spark.jobGroup.id", "spark.job.description"):
            context.setLocalProperty(name, None)  # type: ignore[arg-type]
    tracker = context.statusTracker()
    found = [job for number in tracker.getJobIdsForGroup(group) if (job := tracker.getJobInfo(number)) is not None]
    numbers = [number for job in found for number in job.stageIds]
    stages = [stage for number in numbers if (stage := tracker.getStageInfo(number)) is not None]
    assert (len(found), sum(stage.numTasks for stage in stages)) == (jobs, jobs)
