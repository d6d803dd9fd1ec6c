"""Logs of runs: what an attempt of a user's function printed, and how it ended."""

from datetime import datetime
from typing import Literal
from uuid import UUID

import msgspec

from tracelake.wire.base import Reply
from tracelake.wire.units import Unit

MAX_LOG_BYTES = 8 * 1024 * 1024
"""The largest stored log; the most that both streams, spelled as JSON, and an error can take is less."""


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
    """The log of one attempt as the runner stores it: some while it runs, and a final one."""

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


LogState = Literal["running", "ended", "incomplete"]
"""`incomplete`: the attempt is over, and its final log has not arrived, or never will."""


class LogOutput(Reply, frozen=True, kw_only=True):
    """One stream from the position that was asked for."""

    text: str = ""
    next: int = 0
    """Ask for what follows from here on."""
    omitted: int = 0
    """Bytes between the position that was asked for and `text` that are no longer kept."""


class TaskLog(Reply, frozen=True, kw_only=True):
    task_id: UUID
    dag: str
    job: str
    unit: Unit | None = None
    bundle_id: UUID
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
    """How the run ended: `completed`, `error`, `timeout`, `memory` and others."""
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
    expires_at: datetime | None = None
    """When the log is removed; None: never."""


class FunctionRun(Reply, frozen=True, kw_only=True):
    task_id: UUID
    attempt: int
    dag: str
    job: str
    unit: Unit | None = None
    bundle_id: UUID
    started_at: datetime
    outcome: str | None = None
    """None: it runs."""
    error: str | None = None
    """The first line."""


class FunctionRuns(Reply, frozen=True, kw_only=True):
    runs: list[FunctionRun]
