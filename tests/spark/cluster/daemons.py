"""Spark outside of this process: a standalone master with two workers, and a Spark Connect server.

All of it on loopback, from the installed package, with an interpreter for executors that has what we depend on, but not
our own code: that comes with the session or not at all.
"""

import os
import signal
import socket
import subprocess
import sys
import sysconfig
import time
import venv
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyspark

from tests.support.java import QUICK_JAVA
from tracelake.spark.java import find_java
from tracelake.stack import launch

SPARK = Path(pyspark.__file__).parent
DEFAULTS = """\
spark.ui.enabled false
spark.executor.memory 512m
spark.driver.host 127.0.0.1
spark.driver.bindAddress 127.0.0.1
"""


_OF_DRIVERS = ("SPARK_CONF_DIR", "SPARK_LOCAL_IP", "PYSPARK_PYTHON", "JDK_JAVA_OPTIONS")


@dataclass(frozen=True, slots=True)
class Place:
    """Where sessions run, and what the process that opens one needs in its environment."""

    master: str
    environment: Mapping[str, str]


@contextmanager
def standalone(root: Path) -> Iterator[Place]:
    environment = _environment(root)
    port = _free_port()
    address = f"spark://127.0.0.1:{port}"
    with ExitStack() as stack:
        master = ["org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", str(port)]
        started = [_start(stack, root / "master", environment, [*master, "--webui-port", str(_free_port())])]
        for name in ("worker-1", "worker-2"):
            worker = ["org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1", "--cores", "1", "--memory", "1g"]
            worker += ["--work-dir", str(root / name / "work"), "--webui-port", str(_free_port()), address]
            started.append(_start(stack, root / name, environment, worker))
        _until_listening(port, started)
        yield Place(address, _driver_environment(environment))


class ConnectServer:
    """Always at the same address, however often it is killed and started."""

    def __init__(self, root: Path) -> None:
        self._root = root
        # It takes its memory from here alone.
        self._environment = _environment(root) | {"SPARK_DAEMON_MEMORY": "1g"}
        self._port = _free_port()
        self._daemon: Daemon | None = None
        self.place = Place(f"sc://127.0.0.1:{self._port}", _driver_environment(self._environment))

    @contextmanager
    def serving(self) -> Iterator["ConnectServer"]:
        self.start()
        try:
            yield self
        finally:
            self.kill()

    def start(self) -> None:
        settings = {
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(self._port),
            "spark.sql.warehouse.dir": str(self._root / "warehouse"),
        }
        program = ["org.apache.spark.deploy.SparkSubmit", "--master", "local[2]"]
        for name, value in settings.items():
            program += ["--conf", f"{name}={value}"]
        program += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
        self._daemon = Daemon(self._root / "server", self._environment, program)
        _until_listening(self._port, [self._daemon])

    def kill(self) -> None:
        if self._daemon is not None:
            self._daemon.end()


def _environment(root: Path) -> dict[str, str]:
    conf = root / "conf"
    conf.mkdir(parents=True, exist_ok=True)
    (conf / "spark-defaults.conf").write_text(DEFAULTS + f"spark.local.dir {root / 'local'}\n")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYSPARK", "SPARK"))}
    return kept | {
        "JAVA_HOME": str(find_java(root).home),
        "SPARK_CONF_DIR": str(conf),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(root / "local"),
        "SPARK_DAEMON_MEMORY": "256m",
        "JDK_JAVA_OPTIONS": QUICK_JAVA,
        "PYSPARK_PYTHON": str(_interpreter(root / "python")),
    }


def _driver_environment(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: environment[name] for name in _OF_DRIVERS}


def _interpreter(directory: Path) -> Path:
    """This one's packages by a line in a .pth file: the .pth files beside them, ours among these, are not followed."""
    if not directory.exists():
        venv.create(directory, with_pip=False, symlinks=True)
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        packages = directory / "lib" / version / "site-packages"
        (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return directory / "bin" / "python"


def _start(stack: ExitStack, root: Path, environment: Mapping[str, str], program: list[str]) -> "Daemon":
    daemon = Daemon(root, environment, program)
    stack.callback(daemon.end)
    return daemon


class Daemon:
    """A program of Spark, in a session of its own, with everything that it starts. It dies with this process."""

    def __init__(self, root: Path, environment: Mapping[str, str], program: list[str]) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self.log = root / "log"
        command = [sys.executable, "-I", "-S", launch.__file__, str(os.getpid()), str(int(signal.SIGKILL)), "0"]
        command += [str(SPARK / "bin" / "spark-class"), *program]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                cwd=root,
                env=environment,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def end(self) -> None:
        """It, its executors and their Python: they stay in its session even where they make a group of their own."""
        for pid in _session_members(self.process.pid):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait()


def _session_members(session: int) -> list[int]:
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            if os.getsid(int(directory.name)) == session:
                found.append(int(directory.name))
        except (ProcessLookupError, PermissionError):
            continue
    return found


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _until_listening(port: int, daemons: list[Daemon]) -> None:
    deadline = time.monotonic() + 120
    while True:
        for daemon in daemons:
            assert daemon.process.poll() is None, daemon.log.read_text()
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        assert time.monotonic() < deadline, daemons[0].log.read_text()
        time.sleep(0.1)
