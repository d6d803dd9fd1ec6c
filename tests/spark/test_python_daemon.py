"""Spark's Python processes are copies of one that has imported what they need, and has no threads."""

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import SparkSession

_FACTS = "name string, value string"


def test_python_processes_are_copies_of_one_without_threads(spark: SparkSession) -> None:
    facts: dict[str, str] = dict(spark.range(0, 1, 1, 1).mapInArrow(_look, _FACTS).collect())
    assert "tracelake.spark.python_daemon" in facts["daemon"]
    assert facts["threads"] == "1", "a process with threads cannot be copied safely"
    assert facts["imported"] == "True"


def _look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import os
    import sys
    from pathlib import Path

    imported = {"pandas", "pyarrow", "tracelake.spark.operators.evm_ingest"} <= sys.modules.keys()
    daemon = Path("/proc", str(os.getppid()))
    facts = {
        "daemon": (daemon / "cmdline").read_text().replace("\0", " "),
        "threads": str(len(list((daemon / "task").iterdir()))),
        "imported": str(imported),
    }
    yield pa.RecordBatch.from_pydict({"name": list(facts), "value": list(facts.values())})
    for _ in batches:
        pass
