"""How the Spark process of an org is started: its directory, its environment, the options of its Java."""

import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import tracelake
from tracelake.spark.child.messages import Start
from tracelake.spark.spark_home import find_spark_home

_ENVIRONMENT = (
    "PATH",
    "PYTHONPATH",
    "PYTHONHOME",
    "LANG",
    "LC_ALL",
    "TZ",
    "JAVA_HOME",
    "JDK_JAVA_OPTIONS",
    "SPARK_CONF_DIR",
)
_OF_CLUSTERS = ("PYSPARK_PYTHON", "HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_LOCAL_IP")
_SHARED_CLUSTER = {
    # An application takes all cores of a standalone cluster and keeps them, whether it works or not: processes of orgs,
    # and the spare one, would wait for each other for ever. So executors come with work, and go when there is none.
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OrgProcessConfig:
    """What all processes of a worker have in common."""

    scratch: Path
    """For directories of processes."""
    master: str = "local[*]"
    memory: str = "1g"
    memory_bytes: int = 2**30
    """The same as a number."""
    overhead_bytes: int = 2 * 2**30
    """Beyond the heap, for everything that the process has started."""
    stop_seconds: float = 20.0
    logs: Path | None = None
    """Where reports of crashes go."""
    log_level: str = "warn"
    scratch_bucket: str = "trace-scratch"
    """For rows of tables that executors of a cluster read."""
    options: Mapping[str, str] = field(default_factory=dict)
    readable: tuple[Path, ...] = ()
    """Further places that processes may read."""

    @property
    def local(self) -> bool:
        return self.master.startswith("local")

    @property
    def standalone(self) -> bool:
        return self.master.startswith("spark://")


def make_directory(directory: Path) -> int:
    """Make the directory of a process; answers the device that its files are on."""
    for name in ("home", "tmp", "crash"):
        (directory / name).mkdir(parents=True, mode=0o700)
    probe = directory / "tmp" / "probe"
    probe.touch()
    device = probe.stat().st_dev
    probe.unlink()
    return device


def launch(config: OrgProcessConfig, directory: Path) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start a process; answers it, and the worker's end of the socket between them."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    environment = _environment(config, directory)
    readable = [str(path) for path in config.readable]
    readable += [environment[name] for name in ("JAVA_HOME", "SPARK_CONF_DIR") if name in environment]
    if config.local:
        readable.append(str(find_spark_home()))
    if not config.local:
        # Our code is sent to executors; in a clone of the repository some of its files are links.
        package = Path(tracelake.__file__).parent
        readable += [str(path.resolve()) for path in package.rglob("*") if path.is_symlink()]
    network = "own" if config.local else "shared"
    command = [sys.executable, "-P", "-m", "tracelake.spark.child", str(theirs.fileno()), str(directory), network]
    with theirs:
        process = subprocess.Popen(
            [*command, *readable],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=directory,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
        )
    return process, ours


def start_message(config: OrgProcessConfig, directory: Path) -> Start:
    return Start(
        scratch=str(directory),
        master=config.master,
        memory=config.memory,
        options={**(_SHARED_CLUSTER if config.standalone else {}), **config.options},
        java_options=_java_options(config, directory),
        log_level=config.log_level,
    )


def _environment(config: OrgProcessConfig, directory: Path) -> dict[str, str]:
    """From nothing: the worker's own may hold anything."""
    names = _ENVIRONMENT if config.local else (*_ENVIRONMENT, *_OF_CLUSTERS)
    environment = {name: os.environ[name] for name in names if name in os.environ}
    home, temporary = str(directory / "home"), str(directory / "tmp")
    # Java and Python have many threads, and an arena for each would keep what it once had.
    ours = {"HOME": home, "TMPDIR": temporary, "MALLOC_ARENA_MAX": "2"}
    return {"PATH": os.defpath, "LANG": "C.UTF-8", **environment, **ours}


def _java_options(config: OrgProcessConfig, directory: Path) -> list[str]:
    """Of the driver."""
    options = [
        f"-XX:MaxDirectMemorySize={max(config.memory_bytes // 2, 128 * 2**20)}",
        # A driver that goes on without memory answers nobody.
        "-XX:+ExitOnOutOfMemoryError",
        "-XX:-UsePerfData",
        # An idle process keeps little more than it needs.
        "-XX:MinHeapFreeRatio=10",
        "-XX:MaxHeapFreeRatio=30",
        f'-Djava.io.tmpdir="{directory / "tmp"}"',
        f'-Duser.home="{directory / "home"}"',
    ]
    if config.local:
        # A network of its own has no card whose address could be asked for.
        options.append("-Dio.netty.machineId=02:00:00:00:00:01")
    return options
