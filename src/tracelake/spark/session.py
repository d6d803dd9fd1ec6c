"""The Spark session of a process: one, long-lived, for every task it runs.

The master is a setting: `local[*]` runs inside this process' Java, `spark://`, `yarn` and `k8s://` on a cluster,
`sc://` talks to a Spark Connect server. Operators use the DataFrame API alone, so they see no difference.
"""

import contextlib
import logging
import os
import shutil
import sys
import threading
import weakref
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tracelake.spark import gateway
from tracelake.spark.java import Java, find_java
from tracelake.spark.spark_home import find_spark_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

_LOG4J = f"""\
status = error
rootLogger.level = {{level}}
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = {gateway.LINE_PATTERN}
# Says at every start that a library of Hadoop is not there, which nobody misses.
logger.native.name = org.apache.hadoop.util.NativeCodeLoader
logger.native.level = error
# Says that a cluster may have another place for `spark.local.dir`, which is as it should be.
logger.conf.name = org.apache.spark.SparkConf
logger.conf.level = error
# Says for each pool of jobs that no file describes it.
logger.pools.name = org.apache.spark.scheduler.FairSchedulableBuilder
logger.pools.level = error
"""

_SHORT_WORK = (
    # Most work is short: the optimizing compiler waits until code has run ten times as often as it would by itself.
    "-XX:Tier4InvocationThreshold=50000",
    "-XX:Tier4MinInvocationThreshold=6000",
    "-XX:Tier4CompileThreshold=150000",
    "-XX:Tier4BackEdgeThreshold=400000",
    # A small heap on few cores: collectors that run beside the work take cores from it.
    "-XX:+UseSerialGC",
    # By itself it starts with a 64th of the machine's memory, and touches all of what is for new objects.
    "-Xms64m",
)


@dataclass(frozen=True, slots=True)
class SparkConfig:
    scratch: Path
    """A directory of this process: shuffles, spills, and what else Spark leaves on the way."""
    master: str = "local[*]"
    memory: str = "1g"
    """Of the driver, which in local mode does all the work."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Spark's own settings, as they are."""
    log_level: str = "warn"
    crash_directory: Path | None = None
    """Where Java leaves what it writes when it crashes; None: in the scratch directory, which is removed."""
    java_options: tuple[str, ...] = ()
    """For the driver's Java, beside ours."""

    @property
    def connect(self) -> bool:
        return self.master.startswith("sc://")

    @property
    def local(self) -> bool:
        return self.master.startswith("local")


def open_session(config: SparkConfig) -> "SparkSession":
    """Takes some seconds, the first time."""
    # The package first: while another thread imports it, `pyspark.sql` would be imported half made, and both fail.
    import pyspark  # noqa: F401
    from pyspark.sql import SparkSession

    if config.local or "PYSPARK_PYTHON" not in os.environ:
        # Elsewhere the interpreter of the executors may be at another place, as the environment then says.
        os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    config.scratch.mkdir(parents=True, exist_ok=True)
    if config.connect:
        gateway.quiet_pyspark()
        session = SparkSession.builder.remote(config.master).create()
        for name, value in _sql_options().items():
            session.conf.set(name, value)
    else:
        java = find_java(config.scratch)
        os.environ["JAVA_HOME"] = str(java.home)
        if config.local:
            os.environ.setdefault("SPARK_HOME", str(find_spark_home()))
        if config.local:
            # Nobody else has to find it, and Spark looks for another address with many words.
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        options = {"spark.app.name": "trace", "spark.master": config.master}
        session = gateway.start({**options, **_options(config, java), **config.options})
    if not config.local:
        ship_code(session, config)
    return session


def _options(config: SparkConfig, java: Java) -> dict[str, str]:
    log4j = config.scratch / "log4j2.properties"
    log4j.write_text(_LOG4J.format(level=config.log_level))
    options = _sql_options() | {
        "spark.driver.memory": config.memory,
        "spark.driver.extraJavaOptions": " ".join(
            [
                f'-Dlog4j2.configurationFile="{log4j.as_uri()}"',
                *_crash_options(config.crash_directory or config.scratch),
                *java.archive_options(),
                *(_SHORT_WORK if config.local else ()),
                *config.java_options,
            ]
        ),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.local.dir": str(config.scratch / "local"),
        "spark.sql.warehouse.dir": str(config.scratch / "warehouse"),
        "spark.sql.catalogImplementation": "in-memory",
        # Several tasks share the session: a large one must not keep the small ones waiting.
        "spark.scheduler.mode": "FAIR",
        "spark.python.worker.reuse": "true",
        # Of Spark's Python processes: with a pool of memory for each thread, and another one for Arrow, they hold
        # twice what they ever use at a time.
        "spark.executorEnv.MALLOC_ARENA_MAX": "1",
        "spark.executorEnv.ARROW_DEFAULT_MEMORY_POOL": "system",
        # Asks Java for its setting, and looks for a notebook, at each step of each expression.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
    }
    if config.local:
        (config.scratch / "parts").mkdir(exist_ok=True)
        options |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            # Other users of the machine reach loopback too, and what Spark serves there holds keys. It makes up the
            # secret by itself and tells nobody.
            "spark.authenticate": "true",
            "spark.executorEnv.TMPDIR": str(config.scratch / "parts"),
            "spark.python.daemon.module": "tracelake.spark.python_daemon",
            # Otherwise numpy and Arrow start threads when they are imported, and the daemon copies itself.
            "spark.executorEnv.OPENBLAS_NUM_THREADS": "1",
            "spark.executorEnv.JE_ARROW_MALLOC_CONF": "background_thread:false",
        }
    return options


def _crash_options(directory: Path) -> list[str]:
    """Java would leave its reports, and the memory of the process with keys in it, in the current directory."""
    return [
        f'-XX:ErrorFile="{directory / "java-crash-%p.log"}"',
        f'-XX:HeapDumpPath="{directory}"',
        "-XX:-CreateCoredumpOnCrash",
    ]


def _sql_options() -> dict[str, str]:
    return {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
        "spark.sql.adaptive.enabled": "true",
        "spark.sql.shuffle.partitions": "8",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    }


def ship_code(session: "SparkSession", config: SparkConfig) -> None:
    """Executors elsewhere need our own code; what it depends on comes with their image or an archive."""
    archive = pack_code(config.scratch / "tracelake.zip")
    if config.connect:
        session.addArtifacts(str(archive), pyfile=True)
    else:
        session.sparkContext.addPyFile(str(archive))


def pack_code(archive: Path) -> Path:
    """The package as a wheel has it, wherever it was imported from; Spark wants such archives to be called `.zip`."""
    import tracelake

    package = Path(tracelake.__file__).parent
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as target:
        for path in sorted(package.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                target.write(path, Path("tracelake") / path.relative_to(package))
    return archive


class SharedSession:
    """Opens the session when it is first wanted, once, whoever comes first; the others wait for it.

    A session that was lost (its Java process died, its cluster or server let go of it) is replaced by the next `get`.
    One that nobody has used for `idle_seconds` ends, with its Java process; None: it stays.
    """

    def __init__(self, config: SparkConfig, idle_seconds: float | None = None) -> None:
        self._config = config
        self._idle_seconds = idle_seconds
        self._lock = threading.Lock()
        self._users_lock = threading.Lock()
        self._users = 0
        self._idle_timer: threading.Timer | None = None
        self._session: SparkSession | None = None
        self._replaced: weakref.WeakSet[SparkSession] = weakref.WeakSet()

    @property
    def config(self) -> SparkConfig:
        return self._config

    @contextlib.contextmanager
    def use(self) -> "Iterator[SparkSession]":
        """The session, which does not become idle before the block ends."""
        with self._users_lock:
            self._users += 1
            self._cancel_timer()
        try:
            yield self.get()
        finally:
            with self._users_lock:
                self._users -= 1
                if not self._users and self._idle_seconds is not None:
                    self._idle_timer = threading.Timer(self._idle_seconds, self._end_idle)
                    self._idle_timer.daemon = True
                    self._idle_timer.start()

    def _cancel_timer(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None

    def _end_idle(self) -> None:
        # Whoever comes from now on waits for the first lock in `get`, and opens another session.
        with self._lock, self._users_lock:
            if not self._users and self._session is not None:
                logger.info("the Spark session was idle; it ends")
                self._end()

    def get(self) -> "SparkSession":
        with self._lock:
            if self._session is not None and self.is_lost(self._session):
                logger.warning("the Spark session was lost; opening another one")
                self._end()
            if self._session is None:
                self._session = open_session(self._config)
            return self._session

    def is_lost(self, session: "SparkSession") -> bool:
        """Asks it. For a task that failed: whether that was the reason."""
        return not (_answers(session) if self._config.connect else gateway.is_alive(session))

    def collect_garbage(self) -> None:
        """Of the driver's Java, which then gives back memory that it does not need."""
        session = self._session
        if session is not None and not self._config.connect:
            with contextlib.suppress(Exception):
                session.sparkContext._jvm.System.gc()  # type: ignore[union-attr]

    def has_died(self) -> bool:
        """Whether there was a session, and it is lost."""
        session = self._session
        return session is not None and self.is_lost(session)

    def replace(self, session: "SparkSession") -> None:
        """Ends a session in which something does not stop, and with it everything else that runs there.

        The next `get` opens another one. A session that was ended already, or replaced, is left alone."""
        with self._lock:
            if self._session is not session:
                return
            self._session = None
            self._replaced.add(session)
            if self._config.connect:
                with contextlib.suppress(Exception):
                    session.stop()
            else:
                gateway.kill(session)

    def was_replaced(self, session: "SparkSession") -> bool:
        """For a task that failed: whether it was stopped for the sake of another one."""
        return session in self._replaced

    def close(self) -> None:
        with self._users_lock:
            self._cancel_timer()
        with self._lock:
            self._end()
        shutil.rmtree(self._config.scratch, ignore_errors=True)

    def _end(self) -> None:
        session, self._session = self._session, None
        if session is None:
            return
        if self._config.connect:
            with contextlib.suppress(Exception):
                session.stop()
        else:
            gateway.end(session)


def _answers(session: "SparkSession") -> bool:
    """Whether the Connect server still knows this session. One that was started anew does not."""
    try:
        return session.conf.get("spark.sql.session.timeZone") is not None
    except Exception:
        return False
