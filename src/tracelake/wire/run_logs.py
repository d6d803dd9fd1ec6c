"""Logs of attempts: what a user's function printed, or the lines of a worker, and how the attempt ended."""

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

import msgspec
from msgspec import Meta

from tracelake.wire.base import Cursor, Reply, Request, ShortText
from tracelake.wire.units import Unit

MAX_LOG_BYTES = 8 * 1024 * 1024
"""The largest stored log; the most that both streams, spelled as JSON, and an error can take is less."""


MAX_LINE_CHARACTERS = 10_000
MAX_LINES = 20_000
"""Of one log."""
MAX_LOGS = 256
"""In one call."""

LogLevel = Literal["debug", "info", "warning", "error"]
LogSource = Literal["worker", "operator", "spark"]
"""Who wrote a line: the worker about the attempt, the code of the operator, or Java and Spark."""


class LogLine(Request, frozen=True, kw_only=True):
    time: datetime
    level: LogLevel
    source: LogSource
    text: Annotated[str, Meta(max_length=MAX_LINE_CHARACTERS)]
    """A traceback is one line with line ends in it."""


class StoredLines(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The last lines of a worker's log, and the number of the first of them."""

    lines: list[LogLine] = []
    start: int = 0


class AttemptLogReport(Request, frozen=True, kw_only=True, omit_defaults=True):
    """The log of an attempt so far, as its worker reports it."""

    task_id: UUID
    attempt: Annotated[int, Meta(ge=1, le=2**31 - 1)]
    ending: ShortText | None = None
    """How the attempt ended; None: it runs. A log that has ended changes no more."""
    seconds: Annotated[float, Meta(ge=0)] = 0.0
    start: Cursor = 0
    """The number of the first line; older lines are no longer kept."""
    lines: Annotated[list[LogLine], Meta(max_length=MAX_LINES)] = []


class StoreLogsRequest(Request, frozen=True, kw_only=True):
    worker_id: ShortText
    """As in the claims: a worker stores logs of attempts that it has claimed."""
    logs: Annotated[list[AttemptLogReport], Meta(min_length=1, max_length=MAX_LOGS)]


class StoreLogsReply(Reply, frozen=True, kw_only=True):
    stored: int
    """The others are of attempts that this worker has not claimed, or older than what is stored."""


class StoredOutput(msgspec.Struct, frozen=True, kw_only=True):
    """The end of one stream. Positions count bytes of UTF-8, after redaction, from the start of the run."""

    text: str = ""
    start: int = 0
    end: int = 0


class RunError(msgspec.Struct, frozen=True, kw_only=True):
    """What the handler raised."""

    type: str
    message: str
    frames: list[str] = []
    """Of the function's own code."""


class RunLog(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The log of one attempt as it is stored: some while it runs, and a final one."""

    ending: str | None = None
    """How the run ended, as `RunEnding` names it; None while it runs."""
    message: str = ""
    error: RunError | None = None
    seconds: float = 0.0
    peak_bytes: int = 0
    refused: dict[str, int] = {}
    """Requests that the function may not send, by reason."""
    stdout: StoredOutput = StoredOutput()
    stderr: StoredOutput = StoredOutput()
    lines: StoredLines = StoredLines()
    """Of a worker; a runner has the two streams."""


LogState = Literal["running", "ended", "incomplete"]
"""`incomplete`: the attempt is over, and its final log has not arrived, or never will."""


class LogOutput(Reply, frozen=True, kw_only=True):
    """One stream from the position that was asked for."""

    text: str = ""
    next: int = 0
    """Ask for what follows from here on."""
    omitted: int = 0
    """Bytes between the position that was asked for and `text` that are no longer kept."""


class LogLines(Reply, frozen=True, kw_only=True):
    """The lines of a worker from the number that was asked for."""

    lines: list[LogLine] = []
    next: int = 0
    """Ask for what follows from here on."""
    omitted: int = 0
    """Lines between the number that was asked for and the first of `lines` that are no longer kept."""


class TaskLog(Reply, frozen=True, kw_only=True):
    task_id: UUID
    dag: str
    job: str
    unit: Unit | None = None
    window: str | None = None
    """The unit as a date, if it is a window of time."""
    operator: str = ""
    bundle_id: UUID | None = None
    """Of a user's function."""
    worker_id: str | None = None
    """Who ran the attempt, if no function did."""
    attempt: int
    attempts: list[int]
    """Those that may have a log, oldest first."""
    state: LogState
    open: bool = False
    """The task has not ended: it runs, or waits for an attempt."""
    next_retry_at: datetime | None = None
    outcome: str | None = None
    """Of the attempt, as the Dispatcher recorded it."""
    ending: str | None = None
    """How the run ended: `completed`, `failed`, `canceled`; of functions also `error`, `timeout` and others."""
    message: str = ""
    error: RunError | None = None
    attempt_error: str | None = None
    """The error that the Dispatcher recorded for the attempt."""
    started_at: datetime
    seconds: float | None = None
    peak_bytes: int | None = None
    refused: dict[str, int] = {}
    stdout: LogOutput
    stderr: LogOutput
    lines: LogLines = LogLines()
    """Of an attempt that a worker ran; a function has `stdout` and `stderr`."""
    expires_at: datetime | None = None
    """When the log is removed; None: never."""


class JobRun(Reply, frozen=True, kw_only=True):
    """An attempt of a job's task that has a log."""

    task_id: UUID
    attempt: int
    unit: Unit | None = None
    window: str | None = None
    """The unit as a date, if it is a window of time."""
    operator: str
    started_at: datetime
    outcome: str | None = None
    """None: it runs."""
    error: str | None = None
    """The first line."""


class JobRuns(Reply, frozen=True, kw_only=True):
    runs: list[JobRun]
    """Newest first."""


class FunctionRun(Reply, frozen=True, kw_only=True):
    task_id: UUID
    attempt: int
    dag: str
    job: str
    unit: Unit | None = None
    window: str | None = None
    """The unit as a date, if it is a window of time."""
    bundle_id: UUID
    started_at: datetime
    outcome: str | None = None
    """None: it runs."""
    error: str | None = None
    """The first line."""


class FunctionRuns(Reply, frozen=True, kw_only=True):
    runs: list[FunctionRun]
