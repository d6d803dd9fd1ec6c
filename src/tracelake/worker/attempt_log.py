"""The log of one attempt in the memory of its worker: the last lines, redacted and bounded.

Lines come from any thread. Each is redacted whole, before it is cut, so that no half of a credential stays. Paths of
this installation are shortened: whoever reads the log may be on another machine.
"""

import logging
import re
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import tracelake
from tracelake.catalogue.context import NonRetryableError
from tracelake.model.log_attribution import RECORD_FIELD, attempt_key
from tracelake.model.redaction import scrub
from tracelake.wire.run_logs import (
    MAX_LINE_CHARACTERS,
    MAX_LINES,
    AttemptLogReport,
    LogLevel,
    LogLine,
    LogSource,
)

KEPT_BYTES = 256 * 1024
_LINE_BYTES = 100
"""What a line takes beside its text, as JSON."""
_MOST_CHARACTERS = 2 * MAX_LINE_CHARACTERS
"""Of a line that are looked at."""
_LONGEST_CREDENTIAL = 4_000
_CUT = " ... (cut)"
_OWN_FIELDS = frozenset(logging.makeLogRecord({}).__dict__) | {
    *("message", "asctime", "taskName"),
    *("task_id", "attempt", "operator", RECORD_FIELD),
}
_ROOTS = sorted({str(Path(tracelake.__file__).parent.parent), sys.prefix, sys.base_prefix}, key=len, reverse=True)
_PATHS = re.compile("(?:" + "|".join(map(re.escape, _ROOTS)) + r")/(?:lib/python[0-9.]+/)?(?:site-packages/)?")
_formatter = logging.Formatter()
_PROGRESS = "progress"
_ORG_PROCESS = "tracelake.worker.org_process.process"


@dataclass(frozen=True, slots=True)
class KeptLines:
    """The lines that are kept, and the number of the first of them."""

    lines: Sequence[LogLine]
    start: int

    @property
    def end(self) -> int:
        return self.start + len(self.lines)


class AttemptLog:
    """`hide` blanks the secrets of the attempt, which are known later than its first line."""

    def __init__(self, task_id: UUID, attempt: int, hide: Callable[[str], str] = lambda text: text) -> None:
        self.task_id = task_id
        self.attempt = attempt
        self.key = attempt_key(task_id, attempt)
        self.began = time.monotonic()
        self.ending: str | None = None
        self.seconds: float | None = None
        self.reported_end = 0
        """Up to which line a report has arrived."""
        self._hide = hide
        self._lock = threading.Lock()
        self._lines: deque[LogLine] = deque()
        self._start = 0
        self._bytes = 0

    def add(self, level: LogLevel, source: LogSource, text: str) -> None:
        text = _shorten(self._redact(text))
        with self._lock:
            line = LogLine(time=datetime.now(UTC), level=level, source=source, text=text)
            self._lines.append(line)
            self._bytes += _size(line)
            while self._bytes > KEPT_BYTES or len(self._lines) > MAX_LINES:
                self._bytes -= _size(self._lines.popleft())
                self._start += 1

    def _redact(self, text: str) -> str:
        text = self._hide(text)
        is_long = len(text) > _MOST_CHARACTERS
        text = _PATHS.sub("", scrub(text[:_MOST_CHARACTERS]))
        # What stands at the cut may be half of a credential.
        return text[:-_LONGEST_CREDENTIAL] + _CUT if is_long else text

    def add_record(self, record: logging.LogRecord) -> None:
        self.add(_level_of(record), _source_of(record), _text_of(record))

    def end(self, ending: str) -> None:
        self.ending, self.seconds = ending, time.monotonic() - self.began

    @property
    def tail(self) -> KeptLines:
        with self._lock:
            return KeptLines(list(self._lines), self._start)

    @property
    def last(self) -> int:
        """The number of the line that comes next."""
        with self._lock:
            return self._start + len(self._lines)

    @property
    def size(self) -> int:
        return self._bytes

    def report(self) -> AttemptLogReport:
        tail = self.tail
        return AttemptLogReport(
            task_id=self.task_id,
            attempt=self.attempt,
            ending=self.ending,
            seconds=time.monotonic() - self.began if self.seconds is None else self.seconds,
            start=tail.start,
            lines=list(tail.lines),
        )


def _size(line: LogLine) -> int:
    return len(line.text.encode()) + _LINE_BYTES


def _shorten(text: str) -> str:
    if len(text) > MAX_LINE_CHARACTERS:
        text = text[: MAX_LINE_CHARACTERS - len(_CUT)] + _CUT
    # No body may hold a NUL, and JSON no half of a surrogate pair.
    return text.rstrip().replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def _level_of(record: logging.LogRecord) -> LogLevel:
    if record.levelno >= logging.ERROR:
        return "error"
    if record.levelno >= logging.WARNING:
        return "warning"
    return "info" if record.levelno >= logging.INFO else "debug"


def _source_of(record: logging.LogRecord) -> LogSource:
    """By the name of the logger. The lines of an org's process begin with `spark.`, also those of our own code."""
    if record.msg == _PROGRESS:
        return "operator"
    if record.name.startswith("tracelake.worker"):
        return "worker"
    if record.name == "spark" or (record.name.startswith("spark.") and not record.name.startswith("spark.tracelake")):
        return "spark"
    return "operator"


def _text_of(record: logging.LogRecord) -> str:
    fields: dict[str, Any] = {name: value for name, value in record.__dict__.items() if name not in _OWN_FIELDS}
    message = record.getMessage()
    if message == _PROGRESS and set(fields) == {_PROGRESS}:
        return str(fields[_PROGRESS])
    if record.name.startswith("spark."):
        message = f"{record.name.rpartition('.')[2]}: {message}"
    parts = [message, *(f"{name}={value}" for name, value in fields.items())]
    text = " ".join(parts)
    if record.exc_info and not _is_of_org_process(record.exc_info):
        error = record.exc_info[1]
        # What an operator tells its user says everything: our frames are for what nobody expected.
        is_told = isinstance(error, NonRetryableError) and str(error)
        text += f": {error}" if is_told else "\n" + _formatter.formatException(record.exc_info)
    return text


def _is_of_org_process(error: Any) -> bool:
    """Whether the error came from the process of an org, which has logged where it was raised."""
    traceback = error[2]
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return traceback is not None and traceback.tb_frame.f_globals.get("__name__") == _ORG_PROCESS
