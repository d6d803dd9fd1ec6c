"""The Dispatcher that kills itself says why it did not start, where the log of the test is."""

import os
import subprocess
import sys
from pathlib import Path

from tests.faults.crash_driver import ROOT


def test_an_error_at_the_start_is_printed(tmp_path: Path) -> None:
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "TRACE_HOME": str(tmp_path),
        "TRACE_RETRY_SECONDS": "often",
    }
    ended = subprocess.run(
        [sys.executable, "-m", "tests.faults.crashing_dispatcher"],
        input="never 0\n",
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert [line.split()[0] for line in ended.stdout.splitlines()] == ["started", "ended"]
    assert "Traceback" in ended.stderr
    assert "SettingsError" in ended.stderr
    assert "retry_seconds" in ended.stderr
