"""A process that has read a document with mistakes ends with its own status."""

import subprocess
import sys
from pathlib import Path

DOCUMENT = """
name: x
jobs:
  - name: a
    operator: spark_sql
    activation: reactive
    inputs: [{from: {dataset: transactions}}]
    config: {query: "SELECT from_adress FROM transactions"}
publish:
  y: {from: {job: a}, storage: s3}
"""
AT_ONCE = 4
PROCESSES = 12


def test_no_process_crashes_at_its_end(tmp_path: Path) -> None:
    file = tmp_path / "activity.yaml"
    file.write_text(DOCUMENT)
    command = [sys.executable, "-m", "tracelake", "graph", str(file)]
    statuses = []
    for _ in range(PROCESSES // AT_ONCE):
        processes = [
            subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for _ in range(AT_ONCE)
        ]
        statuses += [process.wait(timeout=120) for process in processes]
    assert statuses == [1] * PROCESSES
