"""What a Spark process per org costs: the latency of a small task, and the memory of an org that does nothing.

    python -m benchmarks.isolation [--quick | --smoke]

The same `spark_sql` task over a file of 1,000 rows runs in the worker's own session and in the process of an org, warm
both, in pairs that change their order; objects are files in a directory. The last line is one JSON object:

- `warm_overhead_ms`: the median of the differences within pairs, with their quartiles in `spread_ms`; `shared_ms` and
  `org_ms` are the medians of both sides.
- `idle_org_mb`: memory that belongs to the processes of an org alone (Python, Java, Spark's workers), after its
  tasks have ended and Java was asked to give back what it does not need.
- `start_s`: from nothing to the end of the first task; `spare_start_s`: the same with a spare that was ready.
"""

import json
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pyarrow as pa

from benchmarks.support.options import Scale, parse_scale
from benchmarks.support.stats import Series
from tracelake.catalogue.context import OperatorContext
from tracelake.spark.session import SharedSession, SparkConfig
from tracelake.spark.testing import BUCKET, Trial, make_context, make_unit
from tracelake.worker.org_process.launch import OrgProcessConfig
from tracelake.worker.org_process.pool import OrgProcesses
from tracelake.worker.org_process.process import OrgProcess
from tracelake.worker.org_process.process_tree import read_parents
from tracelake.worker.spark import SparkOperators

QUERY = "SELECT block_number, count(*) AS n, sum(amount) AS total FROM transfers GROUP BY block_number"
MEMORY, MEMORY_BYTES = "1g", 2**30
ROWS = 1000
READY_SECONDS = 300.0


class Tasks:
    """The same task again and again, each time as a new one."""

    def __init__(self, root: Path) -> None:
        self.trial = Trial(None, root)  # type: ignore[arg-type]
        rows = pa.table({"block_number": list(range(ROWS)), "amount": [row % 7 for row in range(ROWS)]})
        self.trial.add_input("transfers", rows)

    def context(self, org: str) -> OperatorContext:
        prefixes = {"totals": f"{BUCKET}totals/{uuid4()}/1/"}
        unit = make_unit((0, ROWS - 1))
        return replace(make_context("spark_sql", {"query": QUERY}, unit, self.trial.inputs, prefixes), org=org)


def run(engine: SparkOperators, context: OperatorContext) -> float:
    """Milliseconds."""
    began = time.perf_counter()
    result = engine.operators()["spark_sql"].run(context)
    if result.outputs[0].row_count != ROWS:
        raise SystemExit("the task did not give its rows")
    return (time.perf_counter() - began) * 1000


def wait_ready(processes: OrgProcesses) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while processes.spare is None or not processes.spare.ready.is_set():
        if time.monotonic() > deadline:
            raise SystemExit("no spare process was ready")
        time.sleep(0.05)


def idle_megabytes(process: OrgProcess, seconds: float) -> float:
    """The least of what is seen for so long: garbage is collected some seconds after the last task."""
    least = float("inf")
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        least = min(least, process.memory(read_parents()))
        time.sleep(0.5)
    return least / 2**20


def measure(root: Path, scale: Scale) -> dict[str, object]:
    pairs, warm_up, idle = scale.pick((31, 20, 25.0), (9, 10, 25.0), (1, 0, 0.1))
    tasks = Tasks(root)
    transfer = tasks.trial.transfer
    config = OrgProcessConfig(
        scratch=root / "orgs", memory=MEMORY, memory_bytes=MEMORY_BYTES, log_level="error", stop_seconds=60.0
    )
    shared = SharedSession(SparkConfig(root / "session", memory=MEMORY, log_level="error"))
    plain = SparkOperators(shared, transfer, root / "plain")
    processes = OrgProcesses(config, transfer, lambda: "", spare=False)
    isolated = SparkOperators(shared, transfer, root / "isolated", isolation=processes)
    try:
        start = run(isolated, tasks.context("first")) / 1000
        say(f"first task without a spare: {start:.1f} s")
        for _ in range(warm_up):
            run(plain, tasks.context("first"))
            run(isolated, tasks.context("first"))
        sides = {"shared": (plain, Series()), "org": (isolated, Series())}
        for number in range(pairs):
            for name in list(sides)[:: 1 if number % 2 == 0 else -1]:
                engine, series = sides[name]
                series.values.append(run(engine, tasks.context("first")))
            say(f"pair {number + 1}/{pairs}: " + ", ".join(f"{k} {s.values[-1]:.0f} ms" for k, (_, s) in sides.items()))
        shared_ms, org_ms = sides["shared"][1], sides["org"][1]
        overhead = Series([b - a for a, b in zip(shared_ms.values, org_ms.values, strict=True)])
        idle_mb = idle_megabytes(processes.processes[0], idle)
    finally:
        processes.close()
    spared = OrgProcesses(replace(config, scratch=root / "spared"), transfer, lambda: "")
    try:
        wait_ready(spared)
        spare_start = (
            run(SparkOperators(shared, transfer, root / "spared", isolation=spared), tasks.context("second")) / 1000
        )
    finally:
        spared.close()
        shared.close()
    return {
        "benchmark": "isolation",
        "pairs": pairs,
        "warm_overhead_ms": round(overhead.median, 1),
        "spread_ms": overhead.spread,
        "shared_ms": round(shared_ms.median, 1),
        "org_ms": round(org_ms.median, 1),
        "idle_org_mb": round(idle_mb),
        "start_s": round(start, 1),
        "spare_start_s": round(spare_start, 1),
    }


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    scale = parse_scale(__doc__)
    with tempfile.TemporaryDirectory(prefix="trace-bench-") as directory:
        print(json.dumps(measure(Path(directory), scale)))


if __name__ == "__main__":
    main()
