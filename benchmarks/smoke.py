"""Runs every benchmark with `--smoke`: a benchmark that nobody runs breaks without anybody noticing.

Each must end by itself, exit with 0, and close standard output with one JSON object. Says which did not, and fails.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

DIRECTORY = Path(__file__).parent
SECONDS = 300
"""For one benchmark on a busy machine; a good one takes a tenth of it."""
PEERS = DIRECTORY.parent / ".bench-peers"


def benchmarks() -> list[str]:
    """Every module beside this one is a benchmark."""
    return sorted(path.stem for path in DIRECTORY.glob("*.py") if path.stem not in ("__init__", "smoke"))


def run(name: str) -> str | None:
    """What is wrong with it, if anything."""
    environment = dict(os.environ)
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


def main() -> int:
    problems: dict[str, str] = {}
    for name in benchmarks():
        began = time.monotonic()
        problem = run(name)
        print(f"{name:12} {'failed' if problem else 'ok':6} {time.monotonic() - began:6.1f} s", flush=True)
        if problem:
            problems[name] = problem
    for name, problem in problems.items():
        print(f"\n{name}: {problem}", file=sys.stderr)
    print(json.dumps({"benchmark": "smoke", "ran": len(benchmarks()), "failed": sorted(problems)}))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
