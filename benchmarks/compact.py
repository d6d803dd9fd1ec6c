"""Rows per second of `parquet_compact` against plain PySpark that does the same job.

    python -m benchmarks.compact [--blocks 1000] [--pairs 7] [--quick | --smoke]

Tables with blocks like mainnet's in an embedded Postgres, and one Spark session for both. The peer reads the same
tables in the same number of parts, by ADBC in `mapInArrow`, sorted by the same key, and writes them with
`df.write.parquet`, with the same compression, to the same disk. It checks nothing and hashes nothing. Both take turns,
ABBA. The last line is one JSON object.

- `compact_rows_per_s`, `pyspark_rows_per_s`: medians, of all three tables together.
- `compact_ratio`: the median of the pairs' ratios, `spread` its quartiles. The aim is 0.9.
"""

import asyncio
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import adbc_driver_postgresql.dbapi as adbc
import pyarrow as pa
from tests.support.postgres import TestCluster

from benchmarks.support.compact_data import fill_tables
from benchmarks.support.options import make_parser, parse, say
from benchmarks.support.stats import interleave, ratio
from tracelake.catalogue.context import LiveOutput, OperatorContext
from tracelake.catalogue.evm_columns import EVM_KEYS, EVM_TABLES, EvmTable
from tracelake.model.buffered import quoted, table_name
from tracelake.model.dag import ColumnType
from tracelake.spark.evm.tables import schema_of
from tracelake.spark.integer_types import signed
from tracelake.spark.session import SharedSession, SparkConfig
from tracelake.spark.testing import BUCKET, DirectoryTransfer, make_context, make_unit
from tracelake.wire.direct import DirectTable
from tracelake.worker.spark import SparkOperators

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AIM = 0.9


@dataclass
class Compaction:
    """Both subjects, over the same tables."""

    dsn: str
    tables: dict[EvmTable, DirectTable]
    counts: dict[EvmTable, int]
    blocks: int
    chunk_blocks: int
    engine: SparkOperators
    session: "SparkSession"
    scratch: Path

    @property
    def rows(self) -> int:
        return sum(self.counts.values())

    @property
    def ranges(self) -> list[tuple[int, int]]:
        starts = range(0, self.blocks, self.chunk_blocks)
        return [(first, min(self.blocks, first + self.chunk_blocks) - 1) for first in starts]

    async def compact(self) -> float:
        context = self._context()
        began = time.perf_counter()
        result = self.engine._run("tracelake.spark.operators.parquet_compact", context)
        rate = self.rows / (time.perf_counter() - began)
        assert [report.row_count for report in result.outputs] == [self.counts[name] for name in EVM_TABLES]
        shutil.rmtree(self.scratch / "objects")
        return rate

    def _context(self) -> OperatorContext:
        attempt = uuid4().hex
        prefixes: dict[str, str] = {name: f"{BUCKET}{name}/{attempt}/" for name in EVM_TABLES}
        unit = make_unit((0, self.blocks - 1))
        made = make_context("parquet_compact", {"chunk_blocks": self.chunk_blocks}, unit, [], prefixes)
        by_index = dict(enumerate(self.tables.values()))
        outputs = [
            type(output)(
                output_index=output.output_index,
                dataset_uuid=by_index[output.output_index].dataset_uuid,
                dataset_version=output.dataset_version,
                name=output.name,
                storage=output.storage,
            )
            for output in made.outputs
        ]
        return replace(
            made, outputs=outputs, live_output=lambda output: LiveOutput(by_index[output.output_index], None)
        )

    async def pyspark(self) -> float:
        from pyspark.sql.pandas.types import from_arrow_schema

        target = self.scratch / "pyspark"
        began = time.perf_counter()
        for name, table in self.tables.items():
            schema = signed(schema_of(name))
            read = read_function(self.dsn, name, table, schema, self.ranges)
            parts = len(self.ranges)
            frame = self.session.range(0, parts, 1, parts).mapInArrow(read, from_arrow_schema(schema))
            writer = frame.write.option("compression", "zstd").option("parquet.compression.codec.zstd.level", "1")
            writer.parquet(str(target / name))
        rate = self.rows / (time.perf_counter() - began)
        counts = [self.session.read.parquet(str(target / name)).count() for name in EVM_TABLES]
        assert counts == [self.counts[name] for name in EVM_TABLES]
        shutil.rmtree(target)
        return rate


def read_function(
    dsn: str, name: EvmTable, table: DirectTable, schema: pa.Schema, ranges: list[tuple[int, int]]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """As somebody would write it without Trace."""
    numeric = {column.name for column in table.schema.columns if column.type is ColumnType.DECIMAL}
    columns = ", ".join(f"t.{quoted(each)}{'::text' if each in numeric else ''}" for each in schema.names)
    order = ", ".join(f"t.{quoted(each)}" for each in EVM_KEYS[name])
    source = quoted(table_name(table.dataset_uuid))

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with adbc.connect(dsn) as connection, connection.cursor() as cursor:
            for first, last in (ranges[number] for batch in batches for number in batch.column(0).to_pylist()):
                cursor.execute(
                    f"SELECT {columns} FROM {source} t WHERE t.block_number BETWEEN {first} AND {last} ORDER BY {order}"
                )
                for batch in cursor.fetch_record_batch():
                    yield pa.RecordBatch.from_arrays(
                        [values.cast(field.type) for values, field in zip(batch.columns, schema, strict=True)],
                        schema=schema,
                    )

    return read


def measure_compaction(blocks: int, chunk: int, distinct: int, pairs: int) -> dict[str, Any]:
    with ExitStack() as resources:
        scratch = Path(resources.enter_context(tempfile.TemporaryDirectory(prefix="trace-bench-")))
        cluster = TestCluster.start()
        resources.callback(cluster.stop)
        dsn = cluster.fresh("data")
        tables, counts = fill_tables(dsn, blocks, distinct)
        say(f"{blocks} blocks: " + ", ".join(f"{count:,} {name}" for name, count in counts.items()))
        with adbc.connect(dsn, autocommit=True) as connection, connection.cursor() as cursor:
            for table in tables.values():
                cursor.execute(f"VACUUM ANALYZE {quoted(table_name(table.dataset_uuid))}")
        shared = resources.enter_context(closing(SharedSession(SparkConfig(scratch / "session", log_level="error"))))
        engine = SparkOperators(shared, DirectoryTransfer(scratch / "objects"), scratch / "work", lambda: dsn)
        subject = Compaction(dsn, tables, counts, blocks, chunk, engine, shared.get(), scratch)

        async def measure() -> dict[str, Any]:
            for warm_up in (subject.compact, subject.pyspark):
                await warm_up()
            series = await interleave({"compact": subject.compact, "pyspark": subject.pyspark}, pairs, say)
            ratios = ratio(series["compact"], series["pyspark"])
            return {
                "blocks": blocks,
                "rows": subject.rows,
                "pairs": pairs,
                "compact_rows_per_s": round(series["compact"].median),
                "pyspark_rows_per_s": round(series["pyspark"].median),
                "compact_ratio": round(ratios.median, 3),
                "spread": ratios.spread,
                "aim": AIM,
            }

        return asyncio.run(measure())


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--blocks", type=int, help="blocks of the unit")
    parser.add_argument("--pairs", type=int, help="readings of each")
    options = parse(parser)
    blocks, chunk, distinct, pairs = options.scale.pick((1000, 250, 100, 7), (500, 125, 100, 3), (20, 5, 10, 1))
    blocks, pairs = options.more.blocks or blocks, options.more.pairs or pairs
    print(json.dumps({"benchmark": "compact"} | measure_compaction(blocks, chunk, distinct, pairs)))


if __name__ == "__main__":
    main()
