"""What Java leaves behind when it crashes: a report where logs are, and nothing in the current directory."""

import shlex
import signal
import subprocess
import time
from pathlib import Path

import pyspark

from tracelake.spark.java import find_java
from tracelake.spark.session import SparkConfig, _options


def test_a_crash_of_java_is_reported_beside_the_logs(tmp_path: Path) -> None:
    logs, current = tmp_path / "the logs", tmp_path / "current"
    for directory in (logs, current, tmp_path / "scratch"):
        directory.mkdir()
    java = find_java(tmp_path)
    options = _options(SparkConfig(tmp_path / "scratch", crash_directory=logs), java)["spark.driver.extraJavaOptions"]
    (bridge,) = (Path(pyspark.__file__).parent / "jars").glob("py4j-*.jar")
    command = [str(java.home / "bin" / "java"), *shlex.split(options), "-cp", str(bridge)]
    process = subprocess.Popen(
        [*command, "py4j.GatewayServer", "0"], cwd=current, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline(), "it prints its port once it runs"
        process.send_signal(signal.SIGSEGV)
        process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    deadline = time.monotonic() + 10
    while not list(logs.glob("java-crash-*.log")) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert [path.name for path in logs.iterdir()] == [f"java-crash-{process.pid}.log"]
    assert list(current.iterdir()) == []
