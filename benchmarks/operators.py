"""Each Spark operator as a task of a worker, against the same PySpark script alone.

    python -m benchmarks.operators [--rows 5_000_000] [--pairs 5] [--only decode_logs ...] [--quick | --smoke]

Rows are made once, from a seed: logs with ERC-20 transfers; blocks, transactions and logs of a chain that is whole.
They are kept in a real object store, in files as a task writes them. A task goes through the worker's own engine: it
asks for its files, reads them from the worker's cache (which is warm), runs the operator, and uploads its files to the
store. The plain script has the same session with the same settings, reads the same files from the same disk, does the
same transformation, sorts each of its partitions as the task sorts its files, and writes zstd-compressed Parquet to the
local disk by Spark's own writer. It uploads nothing, and its files may share blocks; the task's never do.

Both are warm and take turns, ABBA: on the whole range, and on small units of 100 blocks, one after another. Memory is
that of a process of its own for each task, all its children included (resident pages; what processes share counts
once): at a quarter of the range, and at the whole range. The last line is one JSON object.

- `rows_per_s`, `plain_rows_per_s`: medians, of rows that are read. `ratio`: median of the pairs; `spread`: quartiles.
- `cpu_ratio`: seconds of processors that the script takes for one that the task takes; median of the pairs.
- `small_cpu_ms`, `plain_small_cpu_ms`: milliseconds of processors for a small unit; medians.
- `peak_mb_quarter`, `peak_mb`: the most memory that the task took; `memory_ratio`: the second by the first.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyspark.sql.functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql import DataFrame, SparkSession

from benchmarks.support.ingest_chain import cpu_seconds_below
from benchmarks.support.operator_data import BLOCK_ROWS, LOGS_PER_BLOCK, make_chain, make_logs
from benchmarks.support.operator_scripts import decode, integrity, query
from benchmarks.support.options import Scale, make_parser, parse, say
from tracelake.adapters.s3.transfer import S3Transfer
from tracelake.ports import ObjectMeta
from tracelake.spark.session import SharedSession, SparkConfig
from tracelake.spark.testing import Given, make_context, make_unit
from tracelake.spark.writer import Spread, Target, write_frame
from tracelake.stack.seaweedfs import EmbeddedObjectStore, StorePorts
from tracelake.worker.spark import SparkOperators

BUCKET = "bench"
SMALL_BLOCKS = 100
TRANSFORM = """
SELECT block_number, log_index, lower(hex(address)) AS token, substring(topic1, 13, 20) AS sender,
       substring(topic2, 13, 20) AS receiver,
       CAST(conv(hex(substring(data, 25, 8)), 16, 10) AS DECIMAL(20, 0)) AS amount
FROM logs WHERE topic2 IS NOT NULL
"""
SUMMARISE = """
SELECT block_number DIV 1000 AS period, address AS token, count(*) AS transfers, count(DISTINCT topic1) AS senders
FROM logs WHERE topic2 IS NOT NULL GROUP BY block_number DIV 1000, address
"""


@dataclass(frozen=True)
class Subject:
    operator: str
    config: Mapping[str, Any]
    tables: tuple[str, ...]
    outputs: int
    plain: Callable[[SparkSession, list[DataFrame], int], DataFrame]
    """The same transformation, given the frames and the last block."""
    order: tuple[str, ...]


SUBJECTS = {
    "spark_sql_transform": Subject(
        "spark_sql", {"query": TRANSFORM, "inputs": {"logs": 0}}, ("logs",), 1, query(TRANSFORM), ("block_number",)
    ),
    "spark_sql_summarise": Subject(
        "spark_sql",
        {"query": SUMMARISE, "inputs": {"logs": 0}, "order_by": ["period", "token"]},
        ("logs",),
        1,
        query(SUMMARISE),
        ("period", "token"),
    ),
    "decode_logs": Subject("decode_logs", {}, ("logs",), 2, decode, ("block_number", "log_index", "batch_index")),
    "integrity_check": Subject(
        "integrity_check",
        {},
        ("chain_blocks", "chain_transactions", "chain_logs"),
        1,
        integrity,
        ("block_number", "check"),
    ),
}


class Ground:
    """A store, a worker's engine, the rows."""

    def __init__(self, root: Path, transfer: S3Transfer, rows: int, file_count: int = 8) -> None:
        self.root, self.transfer, self.file_count = root, transfer, file_count
        self.shared = SharedSession(SparkConfig(root / f"session-{os.getpid()}", log_level="error"))
        self.engine = SparkOperators(self.shared, transfer, root / "worker")
        self.files: dict[str, list[ObjectMeta]] = {}
        self.blocks = {"logs": rows // LOGS_PER_BLOCK, "chain": rows // BLOCK_ROWS}

    def make(self, tables: set[str]) -> None:
        session = self.shared.get()
        frames = {}
        if "logs" in tables:
            frames["logs"] = make_logs(session, self.blocks["logs"])
        if "chain_blocks" in tables:
            frames |= make_chain(session, self.blocks["chain"])
        for name, frame in frames.items():
            last = self.blocks[name.split("_", maxsplit=1)[0]] - 1
            target = Target(f"s3://{BUCKET}/{name}/", name, self.transfer)
            written = write_frame(frame, target, 0, last, order=("block_number",), spread=Spread(self.file_count))
            self.files[name] = [file.meta for file in written.files]
            say(f"{name}: {written.rows:,} rows, {len(written.files)} files, {written.size / 2**20:,.0f} MB")

    def last_block(self, subject: Subject) -> int:
        return self.blocks[subject.tables[0].split("_", maxsplit=1)[0]] - 1

    def task(self, subject: Subject, last: int, first: int = 0) -> int:
        """Rows that came out."""
        inputs: list[Given] = [(name, self.files[name], None) for name in subject.tables]
        prefixes = {f"out{index}": f"s3://{BUCKET}/out{index}/{uuid4()}/" for index in range(subject.outputs)}
        unit = make_unit((first, last))
        context = make_context(subject.operator, subject.config, unit, inputs, prefixes)
        result = self.engine.operators()[subject.operator].run(context)
        return sum(output.row_count or 0 for output in result.outputs)

    def plain(self, subject: Subject, last: int, first: int = 0) -> None:
        session = self.shared.get()
        frames = []
        for name in subject.tables:
            paths = self.engine.cache.link(self.files[name], self.root / "plain" / name)
            frames.append(session.read.parquet(*map(str, paths)).filter(F.col("block_number").between(first, last)))
        frame = subject.plain(session, frames, last).sortWithinPartitions(*subject.order)
        frame.write.mode("overwrite").option("compression", "zstd").parquet(str(self.root / "plain-out"))

    def plain_rows(self) -> int:
        """That the script wrote last."""
        return self.shared.get().read.parquet(str(self.root / "plain-out")).count()


def measure(ground: Ground, name: str, rows: int, pairs: int, small_pairs: int) -> dict[str, Any]:
    subject = SUBJECTS[name]
    last = ground.last_block(subject)
    sides: dict[str, Callable[[int, int], Any]] = {
        "task": lambda first, last: ground.task(subject, last, first),
        "plain": lambda first, last: ground.plain(subject, last, first),
    }
    made = sides["task"](0, last)  # and warms both up
    sides["plain"](0, last)
    if made != ground.plain_rows():
        raise SystemExit(f"{name}: the task gave {made} rows, the plain script {ground.plain_rows()}")
    seconds, cpu = _take_turns(sides, [(0, last)] * pairs)
    for task, plain in zip(seconds["task"], seconds["plain"], strict=True):
        say(f"{name}: task {task:.1f} s, plain {plain:.1f} s")
    ratios = [plain / task for task, plain in zip(seconds["task"], seconds["plain"], strict=True)]
    units = [(first, first + SMALL_BLOCKS - 1) for first in range(0, last - SMALL_BLOCKS, SMALL_BLOCKS)]
    _, small_cpu = _take_turns(sides, (units * small_pairs)[:small_pairs])
    return {
        "rows_per_s": round(rows / statistics.median(seconds["task"])),
        "plain_rows_per_s": round(rows / statistics.median(seconds["plain"])),
        "ratio": round(statistics.median(ratios), 2),
        "spread": [round(value, 2) for value in statistics.quantiles(ratios, n=4, method="inclusive")[::2]]
        if pairs > 1
        else ratios * 2,
        "cpu_ratio": round(
            statistics.median(plain / task for task, plain in zip(cpu["task"], cpu["plain"], strict=True)), 2
        ),
        "small_cpu_ms": round(1000 * statistics.median(small_cpu["task"])),
        "plain_small_cpu_ms": round(1000 * statistics.median(small_cpu["plain"])),
    }


def _take_turns(
    sides: Mapping[str, Callable[[int, int], Any]], units: Sequence[tuple[int, int]]
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Seconds, and seconds of processors, that each side took for each unit."""
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    cpu: dict[str, list[float]] = {side: [] for side in sides}
    for number, unit in enumerate(units):
        for side in sides if number % 2 == 0 else reversed(list(sides)):
            began, spent = time.perf_counter(), cpu_seconds_below(os.getpid())
            sides[side](*unit)
            seconds[side].append(time.perf_counter() - began)
            cpu[side].append(max(0.01, cpu_seconds_below(os.getpid()) - spent))
    return seconds, cpu


def peak(ground: Ground, name: str, last: int) -> int:
    """Of a process that runs this task once, in megabytes."""
    told = {
        "root": str(ground.root),
        "files": {table: [[m.uri, m.size, m.etag] for m in ground.files[table]] for table in SUBJECTS[name].tables},
        "name": name,
        "last": last,
    }
    child = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.operators", "--child"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    assert child.stdin is not None
    child.stdin.write(json.dumps(told).encode())
    child.stdin.close()
    most = 0
    while child.poll() is None:
        most = max(most, sum(_memory(pid) for pid in _tree(child.pid)))
        time.sleep(0.05)
    if child.returncode:
        raise SystemExit(f"{name}: the process whose memory was looked at failed")
    return round(most / 2**20)


def _tree(pid: int) -> Iterator[int]:
    yield pid
    for child in _children(pid):
        # Java's memory is that of its child too until this has become another program.
        if not (_is_java(pid) and _is_java(child)):
            yield from _tree(child)


def _children(pid: int) -> list[int]:
    try:
        texts = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    except OSError:
        return []
    return [int(child) for child in " ".join(texts).split()]


def _is_java(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/exe").readlink().name == "java"
    except OSError:
        return False


def _memory(pid: int) -> int:
    """Resident pages, each divided by the number of processes that share it."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def run_child() -> None:
    told = json.load(sys.stdin)
    root = Path(told["root"])
    ground = Ground(root, S3Transfer(_store(root).access()), 0)
    ground.files = {name: [ObjectMeta(*meta) for meta in metas] for name, metas in told["files"].items()}
    ground.task(SUBJECTS[told["name"]], told["last"])
    ground.shared.close()


def _store(root: Path) -> EmbeddedObjectStore:
    return EmbeddedObjectStore(
        root / "objects", root / "access.json", root / "config", root / "log", StorePorts.choose()
    )


@contextmanager
def object_store(root: Path) -> Iterator[EmbeddedObjectStore]:
    store = _store(root)
    store.prepare()
    with store.log_file.open("ab") as log:
        process = subprocess.Popen(
            store.command(), env=store.environment(), stdout=log, stderr=log, start_new_session=True
        )
    try:
        while not store.ready():
            if process.poll() is not None:
                raise SystemExit("the object store did not start")
            time.sleep(0.05)
        yield store
    finally:
        process.kill()
        process.wait()


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--only", nargs="*", choices=sorted(SUBJECTS), default=list(SUBJECTS))
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    given = parse(parser)
    options, scale = given.more, given.scale
    if options.child:
        run_child()
        return
    rows, pairs, files = scale.pick((options.rows, options.pairs, 8), (500_000, 3, 8), (10_000, 1, 2))
    small_pairs = scale.pick(4 * pairs, 4 * pairs, 1)
    found: dict[str, Any] = {"rows": rows, "pairs": pairs, "cores": os.cpu_count()}
    with tempfile.TemporaryDirectory(prefix="trace-bench-") as directory, object_store(Path(directory)) as store:
        root = Path(directory)
        ground = Ground(root, S3Transfer(store.access()), rows, files)
        ground.make({table for name in options.only for table in SUBJECTS[name].tables})
        for name in options.only:
            found[name] = measure(ground, name, rows, pairs, small_pairs)
        ground.shared.close()
        shutil.rmtree(root / "plain-out", ignore_errors=True)
        for name in options.only:
            if scale is Scale.SMOKE and name != options.only[0]:
                continue  # a process of its own for each task takes most of the time
            last = ground.last_block(SUBJECTS[name])
            quarter = found[name]["peak_mb_quarter"] = peak(ground, name, last // 4)
            found[name]["peak_mb"] = quarter if scale is Scale.SMOKE else peak(ground, name, last)
            found[name]["memory_ratio"] = round(found[name]["peak_mb"] / found[name]["peak_mb_quarter"], 2)
            say(f"{name}: {found[name]['peak_mb_quarter']} MB, then {found[name]['peak_mb']} MB")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
