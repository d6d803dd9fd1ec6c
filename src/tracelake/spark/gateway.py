"""The Java process behind a classic Spark session: started so that what it prints becomes lines of our log, and ended
for good, so that another one can be started in its place.

pyspark keeps the connection to Java in variables of its classes and never looks whether it still holds; what has to be
known of that is in this file.
"""

import contextlib
import io
import json
import logging
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from subprocess import TimeoutExpired
from typing import IO, TYPE_CHECKING, Any

from tracelake.model.log_attribution import RECORD_FIELD
from tracelake.spark.failures import SETTING_ADVICE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

_QUERY_CONTEXT = "== SQL"
MDC_ATTEMPT = "mdc.traceAttempt"
"""Names the attempt in the context of Java's log: Spark copies local properties with this prefix to the threads of its
tasks."""
LINE_PATTERN = (
    '{{"level":"%p","logger":"%c{{1}}","attempt":"%enc{{%X{{mdc.traceAttempt}}}}{{JSON}}",'
    '"message":"%enc{{%m%notEmpty{{ %ex{{5}}}}}}{{JSON}}"}}%n'
)
"""How Java writes its log, for `str.format`; read again by `LogRelay`."""
_STAGE = re.compile(r"\bstage (\d+)\.\d+")
_MOST_STAGES = 1000
_LEVELS = {
    "FATAL": logging.CRITICAL,
    "ERROR": logging.ERROR,
    "WARN": logging.WARNING,
    "INFO": logging.INFO,
    "DEBUG": logging.DEBUG,
    "TRACE": logging.DEBUG,
}
_CHATTER = (
    "WARNING: Using incubator modules",
    "Using Spark's default log4j profile",
    "Setting default log level to",
    "To adjust logging level use",
    "WARNING: package sun.security.action not in java.base",
    "NOTE: Picked up JDK_JAVA_OPTIONS",
)
"""What Java and Spark's launcher say before any setting of ours is read."""
_MOST_TEXT = 10_000
_END_SECONDS = 10.0


def start(options: Mapping[str, str]) -> "SparkSession":
    """A session with these settings, in a Java process of its own unless this process has one already."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    quiet_pyspark()
    if SparkContext._gateway is None:
        # Without Java a SparkConf is kept in Python, and is handed over as arguments.
        conf = SparkConf(loadDefaults=False).setAll(list(options.items()))
        reading, writing = os.pipe()
        log = os.fdopen(reading, "rb")
        threading.Thread(target=LogRelay().run, args=(log,), name="spark-log", daemon=True).start()
        try:
            SparkContext._gateway = launch_gateway(  # type: ignore[no-untyped-call]
                conf, {"stdout": writing, "stderr": writing}
            )
        finally:
            os.close(writing)
        SparkContext._jvm = SparkContext._gateway.jvm
    builder = SparkSession.builder
    for name, value in options.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    # It prints when Java goes away, which others notice too.
    session.sparkContext._accumulatorServer.handle_error = lambda *_: None  # type: ignore[method-assign]
    return session


def is_alive(session: "SparkSession") -> bool:
    """Whether Java answers and Spark in it has not stopped."""
    try:
        return not session.sparkContext._jsc.sc().isStopped()
    except Exception:
        return False


def wait_for_end() -> None:
    """Until the Java process of this process has ended, for whatever reason."""
    from pyspark import SparkContext

    process = getattr(SparkContext._gateway, "proc", None)
    if process is not None:
        process.wait()


def end(session: "SparkSession", seconds: float = _END_SECONDS) -> None:
    """The session and its Java process, dead or alive. Nothing of it is left when this returns.

    `seconds`: how long Java may take to end before it is killed."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    context, gateway = session.sparkContext, SparkContext._gateway
    if is_alive(session):
        with contextlib.suppress(Exception):
            session.stop()
    # What pyspark could not ask of Java any more.
    context._jsc = None
    context.stop()
    SparkSession._instantiatedSession = None
    SparkSession._activeSession = None
    SparkContext._gateway = SparkContext._jvm = None
    if gateway is not None:
        with contextlib.suppress(Exception):
            gateway.shutdown()
        _end_process(getattr(gateway, "proc", None), seconds)


def kill(session: "SparkSession") -> None:
    """The session and its Java process, without asking it: it may be too busy to answer."""
    from pyspark import SparkContext

    process = getattr(SparkContext._gateway, "proc", None)
    if process is not None:
        process.kill()
        process.wait()
    end(session)


def _end_process(process: Any, seconds: float) -> None:
    if process is None:
        return
    with contextlib.suppress(OSError):
        process.stdin.close()  # Java ends when nobody can speak to it any more
    try:
        process.wait(seconds)
    except TimeoutExpired:
        process.kill()
        process.wait()


def quiet_pyspark() -> None:
    """pyspark prints the error of a query before it raises it (the worker logs what was raised), and its bridge to Java
    tells of each connection."""
    from pyspark.logger import PySparkLogger

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).handlers[:] = [logging.NullHandler()]
    logging.getLogger("py4j").setLevel(logging.WARNING)


class LogRelay:
    """Logs the lines of a process. A line that names an attempt becomes a record with the key of that attempt.

    Threads of Spark's scheduler work for all attempts, and their lines name none. If such a line names a stage that a
    line of an attempt has named before, it belongs to that attempt: a stage is of one job, and a job of one attempt.
    `is_known` says whether a key is one of an attempt in that process; the others are ignored.
    """

    def __init__(self, is_known: Callable[[str], bool] = lambda _key: True) -> None:
        self._is_known = is_known
        self._stages: OrderedDict[str, str] = OrderedDict()
        """Keys of attempts by stage, those of the newest stages."""

    def run(self, output: IO[bytes]) -> None:
        """Until the process ends, then closes `output`.

        It takes the file and not its descriptor: a second owner of the number would close whatever has it by then.
        """
        with io.TextIOWrapper(output, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                with contextlib.suppress(Exception):
                    self.log(line.rstrip())

    def log(self, line: str) -> None:
        if not line or line.startswith(_CHATTER):
            return
        key = None
        try:
            record = json.loads(line)
            level, name, message = _LEVELS[record["level"]], f"spark.{record['logger']}", record["message"]
            key = self._find_attempt(record.get("attempt"), message)
        except (ValueError, KeyError, TypeError, AttributeError):
            level, name, message = logging.WARNING, "spark", line
        # Spark's errors end with the part of the query that they are about, which is not ours to keep.
        text = SETTING_ADVICE.sub("", message.partition(_QUERY_CONTEXT)[0][:_MOST_TEXT])
        logging.getLogger(name).log(level, "%s", text, extra={RECORD_FIELD: key} if key else None)

    def _find_attempt(self, key: object, message: str) -> str | None:
        stage = _STAGE.search(message)
        if not key:
            return self._stages.get(stage[1]) if stage else None
        if not isinstance(key, str) or not self._is_known(key):
            return None
        if stage:
            self._stages[stage[1]] = key
            if len(self._stages) > _MOST_STAGES:
                self._stages.popitem(last=False)
        return key
