"""An archive of the classes that Spark loads, which lets Java start in half of the time (class-data sharing).

    python -m tracelake.spark.class_archive        # made once for an installation; `make setup` does it

It lies beside the installed packages and is mapped into memory by every Java process of this installation. Java checks
by itself that it fits (the same Java, the same jars), and starts without it otherwise. So does whoever has none.
"""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tracelake.spark import gateway
from tracelake.spark.java import find_java
from tracelake.spark.session import SparkConfig, open_session
from tracelake.spark.sizes import session_for_small
from tracelake.spark.spark_home import link_spark_home

_DUMP_SECONDS = 180.0
_QUERY = """
    WITH ranked AS (
        SELECT *, row_number() OVER (PARTITION BY name ORDER BY weight DESC, number) AS place FROM rows
        WHERE name <> '6')
    SELECT r.name, date_trunc('hour', timestamp_seconds(r.number)) AS hour, lower(hex(r.key)) AS key,
           CASE WHEN hex(r.key) = repeat('0', 40) THEN 'first' ELSE 'later' END AS kind,
           count(*) AS n, count(DISTINCT r.number) AS numbers, sum(r.weight) AS total, max(t.top) AS top
    FROM ranked r JOIN (SELECT name, max(number) AS top FROM rows GROUP BY name) t ON t.name = r.name
    WHERE r.place <= 5 AND r.number <= t.top
    GROUP BY r.name, date_trunc('hour', timestamp_seconds(r.number)), r.key"""


def make_archive() -> Path:
    """Start Spark, do a little of everything, and keep the classes that were loaded."""
    with tempfile.TemporaryDirectory(prefix="trace-classes-") as directory:
        scratch = Path(directory)
        java = find_java(scratch)
        if java.bundled:
            # It comes without the archive of Java's own classes, which ours builds upon.
            subprocess.run([java.program, "-Xshare:dump"], check=True, capture_output=True)
        link_spark_home()
        path = java.class_archive
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        aside = path.with_suffix(".new")
        aside.unlink(missing_ok=True)
        options = (f'-XX:ArchiveClassesAtExit="{aside}"', "-Xlog:disable", "-XX:TieredStopAtLevel=1")
        config = SparkConfig(scratch, master="local[1]", memory="512m", log_level="error", java_options=options)
        session = open_session(config)
        try:
            _exercise(session, scratch)
        finally:
            gateway.end(session, _DUMP_SECONDS)
        aside.replace(path)
    return path


def _exercise(session: Any, scratch: Path) -> None:
    """Load what operators load: readers, joins, aggregates, windows, Python; of large units and of small ones."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = scratch / "rows.parquet"
    numbers = list(range(100))
    columns = {"number": numbers, "name": [str(number % 7) for number in numbers], "weight": [0.5] * 100}
    pq.write_table(pa.table(columns | {"key": [bytes([number]) * 20 for number in numbers]}), file)
    for each in (session, session_for_small(session)):
        rows = each.read.parquet(str(file))
        rows.filter("number BETWEEN 0 AND 99").createOrReplaceTempView("rows")
        frame = each.sql(_QUERY)
        frame.repartition(1).sortWithinPartitions("name").mapInArrow(_pass_on, frame.schema).collect()
        each.range(0, 1, 1, 1).mapInArrow(_pass_on, "id long").collect()


def _pass_on(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches


def _describe(error: Exception) -> str:
    try:
        return str(error)
    except Exception:  # an error of Java asks Java for its text, and Java may have ended
        return type(error).__name__


def main() -> int:
    gateway.quiet_pyspark()
    try:
        path = make_archive()
    except Exception as error:  # everything works without it
        sys.stderr.write(f"The classes of Spark could not be archived, so it starts more slowly: {_describe(error)}\n")
        return 0
    sys.stdout.write(f"Archived the classes of Spark for faster starts ({path.stat().st_size >> 20} MB).\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
