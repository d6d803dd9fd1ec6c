"""Where the time of each operator of the demo's DAG goes, by Spark's own metrics and by spans around files.

The operators run one after another in a warm session of this process, as a worker runs them, on one unit of the chain:
each reads what the one before it uploaded to a real object store. The two queries of the table write files here.
"""

import json
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow.parquet as pq
import yaml
from pyspark.sql import SparkSession
from pyspark.sql.classic.dataframe import DataFrame

from benchmarks.operators import BUCKET, object_store
from benchmarks.support.options import say
from benchmarks.support.pipeline_stack import DAG_FILE, OPERATOR_JOBS
from tracelake.adapters.s3.transfer import S3Transfer
from tracelake.ports import ObjectMeta
from tracelake.spark.session import SharedSession, SparkConfig
from tracelake.spark.testing import Given, make_context, make_unit
from tracelake.worker.spark import SparkOperators

COLUMNS = {
    "wall_ms": "from the call of the operator to its result",
    "jobs": "Spark jobs",
    "stages": "stages that ran",
    "tasks": "Spark tasks",
    "run_ms": "time of these tasks",
    "plan_ms": "analysis, optimization and planning of queries",
    "compile_ms": "compilation of generated code",
    "start_ms": "start of Python processes; none where they run already",
    "python_ms": "time of the Python side of tasks",
    "arrow_kb": "Arrow data between Java and Python, in both directions",
    "fetch_ms": "download of input files",
    "write_ms": "encoding of Parquet files",
    "upload_ms": "hash and upload of files",
}
_SQL_METRICS = {
    "pythonBootTime": ("start_ms", 1.0),
    "pythonTotalTime": ("python_ms", 1.0),
    "pythonDataSent": ("arrow_kb", 1 / 1024),
    "pythonDataReceived": ("arrow_kb", 1 / 1024),
}
Figures = dict[str, float]


@dataclass(frozen=True)
class SpanTransfer:
    """Writes down what each transfer took, in whichever process it happens."""

    transfer: S3Transfer
    log: Path

    def download(self, meta: ObjectMeta, path: Path) -> None:
        with _span(self.log, "fetch_ms"):
            self.transfer.download(meta, path)

    def upload(self, path: Path, uri: str) -> ObjectMeta:
        with _span(self.log, "upload_ms"):
            meta = self.transfer.upload(path, uri)
        _append(self.log, {"file": [meta.uri, meta.size, meta.etag, meta.sha256]})
        return meta

    def __reduce__(self) -> tuple[Callable[..., "SpanTransfer"], tuple[S3Transfer, Path]]:
        return open_spans, (self.transfer, self.log)


def open_spans(transfer: S3Transfer, log: Path) -> SpanTransfer:
    """From here on this process, the driver or one of Spark's Python processes, also measures Parquet writers."""
    writer: Any = pq.ParquetWriter
    for name in ("write_table", "close"):
        method = getattr(writer, name)
        if not hasattr(method, "__wrapped__"):
            setattr(writer, name, _timed(method, log))
    return SpanTransfer(transfer, log)


def _timed(method: Callable[..., Any], log: Path) -> Callable[..., Any]:
    @wraps(method)
    def call(*args: Any, **options: Any) -> Any:
        with _span(log, "write_ms"):
            return method(*args, **options)

    return call


@contextmanager
def _span(log: Path, name: str) -> Iterator[None]:
    began = time.perf_counter()
    try:
        yield
    finally:
        _append(log, {name: (time.perf_counter() - began) * 1000})


def _append(log: Path, entry: dict[str, Any]) -> None:
    with log.open("ab", buffering=0) as file:
        file.write(json.dumps(entry).encode() + b"\n")


class OperatorProfile:
    """Runs the operators of the DAG, and collects the figures of each."""

    def __init__(self, root: Path, transfer: S3Transfer, blocks: int) -> None:
        self._log = root / "spans"
        self._log.touch()
        # Spark's Python processes import this module too.
        paths = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        self._shared = SharedSession(SparkConfig(root / "session", log_level="error"))
        self._engine = SparkOperators(self._shared, open_spans(transfer, self._log), root / "worker")
        document = yaml.safe_load(DAG_FILE.read_text())
        self._jobs = {job["name"]: job for job in document["jobs"] if job["name"] in OPERATOR_JOBS}
        self._unit = make_unit((0, blocks - 1))
        self._files: dict[tuple[str, int], list[ObjectMeta]] = {}
        self._driver: Figures = defaultdict(float)

    def run(self, warm: int, rounds: int) -> dict[str, Figures]:
        """The medians of each job."""
        figures: dict[str, list[Figures]] = {name: [] for name in self._jobs}
        with self._queries_measured():
            for number in range(warm + rounds):
                for name in self._jobs:
                    reading = self._run_job(name)
                    if number >= warm:
                        figures[name].append(reading)
        self._shared.close()
        return {
            name: {column: round(statistics.median(each[column] for each in readings), 1) for column in COLUMNS}
            for name, readings in figures.items()
        }

    def _run_job(self, name: str) -> Figures:
        job = self._jobs[name]
        outputs = {f"{name}_{number}": f"s3://{BUCKET}/{name}/{uuid4()}/" for number in range(job.get("outputs", 1))}
        inputs: list[Given] = []
        for entry in job["inputs"]:
            source = (entry["from"]["job"], entry["from"].get("output_index", 0))
            if source in self._files:
                inputs.append((source[0], self._files[source], None))
        context = make_context(job["operator"], job.get("config", {}), self._unit, inputs, outputs)
        self._driver.clear()
        spans, compiled = self._log.stat().st_size, self._compiled_ms()
        began = time.perf_counter()
        result = self._engine.operators()[job["operator"]].run(context)
        reading: Figures = defaultdict(float, {"wall_ms": (time.perf_counter() - began) * 1000})
        reading["compile_ms"] = self._compiled_ms() - compiled
        if result.spark is not None:
            reading |= {column: getattr(result.spark, column) for column in ("jobs", "stages", "tasks", "run_ms")}
        for column, value in [*self._driver.items(), *self._read_spans(name, outputs, spans)]:
            reading[column] += value
        return reading

    def _read_spans(self, name: str, outputs: dict[str, str], start: int) -> Iterator[tuple[str, float]]:
        """What was written to the log since then; and remembers the files."""
        for number in range(len(outputs)):
            self._files[name, number] = []
        with self._log.open("rb") as log:
            log.seek(start)
            for line in log:
                for column, value in json.loads(line).items():
                    if column != "file":
                        yield column, value
                    elif value[0].endswith(".parquet"):
                        number = next(i for i, prefix in enumerate(outputs.values()) if value[0].startswith(prefix))
                        self._files[name, number].append(ObjectMeta(*value))

    def _compiled_ms(self) -> float:
        codegen = self._jvm.org.apache.spark.sql.catalyst.expressions.codegen.CodeGenerator
        return float(codegen.compileTime()) / 1e6

    @property
    def _jvm(self) -> Any:
        return self._shared.get().sparkContext._jvm

    @contextmanager
    def _queries_measured(self) -> Iterator[None]:
        """While this lasts, figures of every query that is analysed or collected are added up."""
        collect, sql = DataFrame.collect, SparkSession.sql

        def measured_collect(frame: DataFrame) -> Any:
            rows = collect(frame)
            execution = frame._jdf.queryExecution()
            self._add_phases(execution)
            self._add_metrics(execution.executedPlan())
            return rows

        def measured_sql(session: SparkSession, *args: Any, **options: Any) -> Any:
            frame = sql(session, *args, **options)
            self._add_phases(frame._jdf.queryExecution())
            return frame

        owners: list[tuple[Any, str, Any, Any]] = [
            (DataFrame, "collect", collect, measured_collect),
            (SparkSession, "sql", sql, measured_sql),
        ]
        for owner, method, _, replacement in owners:
            setattr(owner, method, replacement)
        try:
            yield
        finally:
            for owner, method, original, _ in owners:
                setattr(owner, method, original)

    def _add_phases(self, execution: Any) -> None:
        phases = execution.tracker().phases().values().iterator()
        while phases.hasNext():
            self._driver["plan_ms"] += phases.next().durationMs()

    def _add_metrics(self, plan: Any) -> None:
        if plan.getClass().getSimpleName() == "AdaptiveSparkPlanExec":
            plan = plan.finalPhysicalPlan()
        metrics = plan.metrics()
        for name, (column, factor) in _SQL_METRICS.items():
            metric = metrics.get(name)
            if metric.isDefined():
                self._driver[column] += max(0, metric.get().value()) * factor
        children = plan.children().iterator()
        while children.hasNext():
            self._add_metrics(children.next())


def profile_operators(root: Path, url: str, blocks: int, *, warm: int, rounds: int) -> dict[str, Figures]:
    """Figures of each job, per task; printed as a table too."""
    os.environ["TRACE_RPC_DEFAULT"] = url
    with object_store(root) as store:
        jobs = OperatorProfile(root, S3Transfer(store.access()), blocks).run(warm, rounds)
    say(f"one unit of {blocks:,} blocks, alone in a warm session; medians of {rounds}:")
    say(f"{'job':10}" + "".join(f"{column:>11}" for column in COLUMNS))
    for job, figures in jobs.items():
        say(f"{job:10}" + "".join(f"{figures[column]:11g}" for column in COLUMNS))
    for column, meaning in COLUMNS.items():
        say(f"  {column}: {meaning}")
    return jobs
