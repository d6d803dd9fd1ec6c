"""Runs every benchmark with `--smoke`, some at a time: a benchmark that nobody runs breaks without anybody noticing.

Each must end by itself, exit with 0, and close standard output with one JSON object. Says which did not, and fails.
"""

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from tests.support.java import QUICK_JAVA
from tests.support.scratch import in_memory

DIRECTORY = Path(__file__).parent
SECONDS = 900
"""For one benchmark on a busy machine; most take a tenth of it."""
AT_ONCE = 4
"""Each waits most of its time. The figures mean nothing, so they may disturb each other."""
LONGEST = ("operators", "models", "ingest", "start", "isolation", "lifecycle")
"""Begun first, so that none of them is alone at the end."""
PEERS = DIRECTORY.parent / ".bench-peers"


def benchmarks() -> list[str]:
    """Every module beside this one is a benchmark."""
    return sorted(path.stem for path in DIRECTORY.glob("*.py") if path.stem not in ("__init__", "smoke"))


def run(name: str) -> str | None:
    """What is wrong with it, if anything."""
    environment = os.environ | {"JDK_JAVA_OPTIONS": QUICK_JAVA}
    if PEERS.is_dir():
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(PEERS), environment.get("PYTHONPATH")]))
    try:
        ended = subprocess.run(
            [sys.executable, "-m", f"benchmarks.{name}", "--smoke"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            cwd=DIRECTORY.parent,
            env=environment,
        )
    except subprocess.TimeoutExpired:
        return f"did not end within {SECONDS} s"
    if ended.returncode:
        return f"exit status {ended.returncode}\n{ended.stderr.strip()[-4000:]}"
    lines = ended.stdout.strip().splitlines()
    try:
        figures = json.loads(lines[-1]) if lines else None
    except ValueError:
        figures = None
    return None if isinstance(figures, dict) and figures else "the last line of standard output is not a JSON object"


def timed_run(name: str) -> tuple[str | None, float]:
    began = time.monotonic()
    return run(name), time.monotonic() - began


def main() -> int:
    problems: dict[str, str] = {}
    names = sorted(benchmarks(), key=lambda name: LONGEST.index(name) if name in LONGEST else len(LONGEST))
    with in_memory(), ThreadPoolExecutor(AT_ONCE) as pool:
        runs = {pool.submit(timed_run, name): name for name in names}
        for ended in as_completed(runs):
            name = runs[ended]
            problem, seconds = ended.result()
            print(f"{name:12} {'failed' if problem else 'ok':6} {seconds:6.1f} s", flush=True)
            if problem:
                problems[name] = problem
    for name, problem in problems.items():
        print(f"\n{name}: {problem}", file=sys.stderr)
    print(json.dumps({"benchmark": "smoke", "ran": len(benchmarks()), "failed": sorted(problems)}))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
