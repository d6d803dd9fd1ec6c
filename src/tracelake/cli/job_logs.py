"""`trace logs DAG/JOB`: the logs of the newest attempts of a job, their lines in the order of time."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

import msgspec
from rich.text import Text

from tracelake.cli.follow import note
from tracelake.cli.listing import Listing, ListingColumn, whole_line
from tracelake.cli.log_lines import line_text
from tracelake.cli.session import Session, away, looks
from tracelake.cli.text import ago, shortened, unit_text
from tracelake.client.user import UserClient
from tracelake.errors import TraceError
from tracelake.wire import routes
from tracelake.wire.run_logs import JobRun, LogLine, LogOutput, TaskLog

_STYLES = {"Completed": "green", "Failed": "bold red", "Timeout": "bold red", "Canceled": "dim"}
_STREAMS = ("stdout", "stderr")
_NO_LOG = frozenset({"log_not_found", "log_expired", "task_has_no_log"})


class JobLogs(msgspec.Struct, frozen=True, kw_only=True):
    runs: list[JobRun]
    """Newest first."""
    logs: list[TaskLog]
    """Of those whose log is kept."""


class JobLogLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line as `--follow --json` prints it. What a function prints has no times: it has the time of its start."""

    task_id: UUID
    attempt: int
    time: datetime
    level: str
    source: str
    text: str


@dataclass(slots=True)
class _LogPosition:
    """How far the log of an attempt was read."""

    lines: int = 0
    stdout: int = 0
    stderr: int = 0
    is_over: bool = False


@dataclass(slots=True)
class JobLogReader:
    """Reads what is new in the logs of the newest attempts of a job."""

    client: UserClient
    dag: str
    job: str
    failed: bool
    limit: int
    readings: dict[tuple[UUID, int], _LogPosition] = field(default_factory=dict)

    async def runs(self) -> list[JobRun]:
        reply = await self.client.call(
            routes.LIST_JOB_RUNS, dag=self.dag, job=self.job, failed=self.failed, limit=self.limit
        )
        return reply.runs

    async def read(self, run: JobRun) -> TaskLog | None:
        reading = self.readings.setdefault((run.task_id, run.attempt), _LogPosition())
        if reading.is_over:
            return None
        places = {"lines_from": reading.lines, "stdout_from": reading.stdout, "stderr_from": reading.stderr}
        try:
            log = await self.client.call(routes.READ_LOG, task_id=run.task_id, attempt=run.attempt, **places)
        except TraceError as error:
            if error.code not in _NO_LOG:
                raise
            return None
        reading.lines = max(reading.lines, log.lines.next)
        reading.stdout, reading.stderr = max(reading.stdout, log.stdout.next), max(reading.stderr, log.stderr.next)
        reading.is_over = log.state == "ended"
        return log

    async def collect(self) -> JobLogs:
        runs = await self.runs()
        logs = [log for run in runs if (log := await self.read(run)) is not None]
        keys = {(run.task_id, run.attempt) for run in runs}
        self.readings = {key: reading for key, reading in self.readings.items() if key in keys}
        return JobLogs(runs=runs, logs=logs)


def show_job(
    session: Session, dag: str, job: str, *, failed: bool, limit: int, lines: int | None, following: bool
) -> None:
    if following:
        try:
            session.run(
                lambda client: _follow(session, JobLogReader(client, dag, job, failed, limit)), dag=dag, job=job
            )
        except KeyboardInterrupt:
            return
        return
    logs = session.ask(lambda client: JobLogReader(client, dag, job, failed, limit).collect(), dag=dag, job=job)
    if not logs.runs:
        which = "No failed attempt" if failed else "No attempt"
        session.say(f"{which} of it has a log that is kept.")
        session.hint("see its tasks", "tasks", "--job", f"{dag}/{job}")
        return
    session.show(_listing(logs.runs))
    session.say("")
    ordered = order_lines(logs.logs)
    for log, line in ordered if lines is None else ordered[-lines:]:
        session.show(whole_line(line_text(line, _short(log.task_id, log.attempt))))
    worst = next((run for run in logs.runs if run.outcome in ("Failed", "Timeout")), logs.runs[0])
    session.hint("see one of them alone", "logs", str(worst.task_id), "--attempt", worst.attempt)


def order_lines(logs: Sequence[TaskLog]) -> list[tuple[TaskLog, LogLine]]:
    """The lines of all logs by time; those of one log stay in their order."""
    rows = [(log, line) for log in logs for line in _all_lines(log)]
    return sorted(rows, key=lambda row: row[1].time)


def _all_lines(log: TaskLog) -> Iterable[LogLine]:
    if log.lines.omitted:
        first = log.lines.lines[0].time if log.lines.lines else log.started_at
        yield LogLine(time=first, level="info", source="worker", text=f"({log.lines.omitted:,} lines are not kept)")
    yield from log.lines.lines
    for stream in _STREAMS:
        output: LogOutput = getattr(log, stream)
        for text in output.text.splitlines():
            yield LogLine(time=log.started_at, level="info", source="operator", text=text[:10_000])


def _short(task_id: UUID, attempt: int) -> str:
    """The end of the task's id: its beginning is a time, which tasks share."""
    return task_id.hex[-8:] + (f"#{attempt}" if attempt > 1 else "")


def _listing(runs: Sequence[JobRun]) -> Listing:
    return Listing(
        runs,
        ListingColumn("task", lambda run: _short(run.task_id, run.attempt), whole=True),
        ListingColumn("attempt", lambda run: run.attempt, right=True),
        ListingColumn("unit", lambda run: unit_text(run.unit, run.window)),
        ListingColumn(
            "outcome",
            lambda run: Text(run.outcome or "Running", style=_STYLES.get(run.outcome or "", "cyan")),
            whole=True,
        ),
        ListingColumn("started", lambda run: ago(run.started_at), whole=True),
        ListingColumn("error", lambda run: Text(shortened(run.error or ""), style="red")),
    )


async def _follow(session: Session, reader: JobLogReader) -> None:
    lost = is_announced = False
    async for item in looks(reader.collect):
        if isinstance(item, TraceError):
            if not lost:
                note(away(item))
            lost = True
            continue
        lost = False
        if not is_announced and not session.as_json:
            note("Following; Ctrl-C ends it.")
        is_announced = True
        for log, line in order_lines(item.logs):
            if session.as_json:
                session.json(
                    JobLogLine(
                        task_id=log.task_id,
                        attempt=log.attempt,
                        time=line.time,
                        level=line.level,
                        source=line.source,
                        text=line.text,
                    )
                )
            else:
                session.show(whole_line(line_text(line, _short(log.task_id, log.attempt))))
