"""The Spark session of a process: one, long-lived, for every task it runs.

The master is a setting: `local[*]` runs inside this process' Java, `spark://`, `yarn` and `k8s://` on a cluster,
`sc://` talks to a Spark Connect server. Operators use the DataFrame API alone, so they see no difference.
"""

import os
import shutil
import sys
import threading
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tracelake.spark.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOG4J = """\
status = error
rootLogger.level = {level}
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = {{"time":"%d{{yyyy-MM-dd'T'HH:mm:ss.SSS'Z'}}{{UTC}}","level":"%p","process":"spark",\
"logger":"%c{{1}}","message":"%enc{{%m%notEmpty{{ %ex{{5}}}}}}{{JSON}}"}}%n
# Says at every start that a library of Hadoop is not there, which nobody misses.
logger.native.name = org.apache.hadoop.util.NativeCodeLoader
logger.native.level = error
"""


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

    @property
    def connect(self) -> bool:
        return self.master.startswith("sc://")

    @property
    def local(self) -> bool:
        return self.master.startswith("local")


def open_session(config: SparkConfig) -> "SparkSession":
    """Takes some seconds, the first time."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    if config.connect:
        session = SparkSession.builder.remote(config.master).getOrCreate()
        for name, value in _sql_options().items():
            session.conf.set(name, value)
    else:
        config.scratch.mkdir(parents=True, exist_ok=True)
        os.environ["JAVA_HOME"] = str(find_java(config.scratch).home)
        builder = SparkSession.builder.appName("trace").master(config.master)
        for name, value in {**_options(config), **config.options}.items():
            builder = builder.config(name, value)
        session = builder.getOrCreate()
    if not config.local:
        ship_code(session, config)
    return session


def _options(config: SparkConfig) -> dict[str, str]:
    log4j = config.scratch / "log4j2.properties"
    log4j.write_text(_LOG4J.format(level=config.log_level))
    options = _sql_options() | {
        "spark.driver.memory": config.memory,
        "spark.driver.extraJavaOptions": f'-Dlog4j2.configurationFile="{log4j.as_uri()}"',
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.local.dir": str(config.scratch / "local"),
        "spark.sql.warehouse.dir": str(config.scratch / "warehouse"),
        "spark.sql.catalogImplementation": "in-memory",
        # Several tasks share the session: a large one must not keep the small ones waiting.
        "spark.scheduler.mode": "FAIR",
        "spark.python.worker.reuse": "true",
    }
    if config.local:
        (config.scratch / "parts").mkdir(exist_ok=True)
        options |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.executorEnv.TMPDIR": str(config.scratch / "parts"),
        }
    return options


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
    import tracelake

    package = Path(tracelake.__file__).parent
    archive = config.scratch / "tracelake.zip"
    archive.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as target:
        for path in sorted(package.rglob("*.py")):
            target.write(path, Path("tracelake") / path.relative_to(package))
    if config.connect:
        session.addArtifacts(str(archive), pyfile=True)
    else:
        session.sparkContext.addPyFile(str(archive))


class SharedSession:
    """Opens the session when it is first wanted, once, whoever comes first; the others wait for it."""

    def __init__(self, config: SparkConfig) -> None:
        self._config = config
        self._lock = threading.Lock()
        self._session: SparkSession | None = None

    @property
    def config(self) -> SparkConfig:
        return self._config

    def get(self) -> "SparkSession":
        with self._lock:
            if self._session is None:
                self._session = open_session(self._config)
            return self._session

    def close(self) -> None:
        with self._lock:
            if self._session is not None:
                self._session.stop()
                self._session = None
        shutil.rmtree(self._config.scratch, ignore_errors=True)
