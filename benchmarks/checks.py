"""What checks cost an attempt: in one pass, one by one, and beside writing the rows.

    python -m benchmarks.checks [--quick | --smoke]

One unit of random rows in a file, in a local session that is warm. The last line is one JSON object, in seconds (the
median of the rounds): `write` (the attempt without checks), `one_pass` (six checks of single rows and the number of
rows), `one_by_one` (the same six, a pass each), `unique`, `sql`, and `failing` (one pass with a sample of the rows).
"""

import dataclasses
import json
import logging
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from benchmarks.support.options import parse_scale, say
from tracelake.model.dag import CheckKind, OutputCheck
from tracelake.spark.checks.evaluation import CheckEvaluation
from tracelake.spark.operators.spark_sql import run
from tracelake.spark.testing import Trial, local_session
from tracelake.wire.units import Unit

ONE_PASS = [
    OutputCheck(name="a", kind=CheckKind.NOT_NULL, columns=("block_number",)),
    OutputCheck(name="b", kind=CheckKind.NOT_NULL, columns=("token",)),
    OutputCheck(name="c", kind=CheckKind.RANGE, columns=("amount",), min=0),
    OutputCheck(name="d", kind=CheckKind.RANGE, columns=("block_number",), min=0, max=10_000_000),
    OutputCheck(name="e", kind=CheckKind.ACCEPTED_VALUES, columns=("standard",), values=("erc20", "erc721")),
    OutputCheck(name="f", kind=CheckKind.ROW_COUNT, min=1),
]
UNIQUE = OutputCheck(name="u", kind=CheckKind.UNIQUE, columns=("block_number", "log_index"))
SQL = OutputCheck(name="q", kind=CheckKind.SQL, query="SELECT * FROM output WHERE amount < 0 AND token = 'none'")
FAILING = OutputCheck(name="x", kind=CheckKind.RANGE, columns=("amount",), min=500)


def make_rows(rows: int) -> pa.Table:
    return pa.table(
        {
            "block_number": pa.array((index // 100 for index in range(rows)), pa.int64()),
            "log_index": pa.array((index % 100 for index in range(rows)), pa.int64()),
            "token": pa.array((f"token {index % 997}" for index in range(rows)), pa.string()),
            "standard": pa.array(("erc20" if index % 3 else "erc721" for index in range(rows)), pa.string()),
            "amount": pa.array((index % 1000 for index in range(rows)), pa.int64()),
        }
    )


def time_rounds(rounds: int, work: Callable[[], object]) -> float:
    work()
    times = []
    for _ in range(rounds):
        began = time.monotonic()
        work()
        times.append(time.monotonic() - began)
    return round(statistics.median(times), 3)


def main() -> None:
    rows, rounds = parse_scale(__doc__).pick((1_000_000, 5), (200_000, 3), (1_000, 1))
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory(prefix="trace-bench-") as directory:
        root = Path(directory)
        with local_session(root / "spark") as session:
            trial = Trial(session, root)
            trial.add_input("rows", make_rows(rows))
            trial.add_output("made")
            unit = Unit(partition_key=f"0-{rows}", start=0, end=rows)
            query = {"query": "SELECT * FROM rows"}

            def write() -> None:
                trial.attempts += 1
                trial.last = trial.work("spark_sql", query, unit, trial.attempts, {})
                run(trial.last)

            def check(*checks: OutputCheck) -> Callable[[], None]:
                def evaluate() -> None:
                    assert trial.last is not None
                    trial.last.context = dataclasses.replace(trial.last.context, checks=checks)
                    CheckEvaluation(trial.last).check_files()

                return evaluate

            figures = {"rows": rows, "write": time_rounds(rounds, write)}
            single = [check(item) for item in ONE_PASS]
            cases = {
                "one_pass": check(*ONE_PASS),
                "one_by_one": lambda: [evaluate() for evaluate in single],
                "unique": check(UNIQUE),
                "sql": check(SQL),
                "failing": check(*ONE_PASS, FAILING),
            }
            for name, case in cases.items():
                figures[name] = time_rounds(rounds, case)
                say(f"{name}: {figures[name]} s")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
