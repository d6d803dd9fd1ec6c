"""The screen of a demo: a bar for each job on a terminal; elsewhere a line now and then.

What happens is said once, with the seconds since the start, above the bars or between the lines. A terminal
that is gone is not written to, and disturbs nothing.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.text import Text

from tracelake.demo.plan import JOBS
from tracelake.demo.progress import JobProgress, clock, per_second

LINE_SECONDS = 10.0


class DemoScreen:
    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self.console = console
        self._clock = clock
        self._began = clock()
        self._bars: Progress | None = None
        self._ids: dict[str, TaskID] = {}
        self._line_at = float("-inf")
        self._line = ""

    @property
    def seconds(self) -> float:
        return self._clock() - self._began

    def say(self, text: str, style: str = "") -> None:
        line = Text.assemble((f"{self.seconds:6.1f} s  ", "dim"), (text, style))
        self._print(line)

    def show(self, jobs: Sequence[JobProgress], now: datetime) -> None:
        if self.console.is_terminal:
            self._draw(jobs, now)
        elif self._clock() - self._line_at >= LINE_SECONDS or all(job.finished for job in jobs):
            line = ", ".join(f"{job.job} {job.done}/{job.total}" for job in jobs)
            if line != self._line:
                self._line, self._line_at = line, self._clock()
                self.say(line + (_slowest(jobs, now) or ("; starting Spark" if starts_spark(jobs) else "")))

    def close(self) -> None:
        """The bars stay as they are; what comes is printed below them."""
        bars, self._bars = self._bars, None
        if bars is not None:
            with suppress(OSError):
                bars.stop()

    def _draw(self, jobs: Sequence[JobProgress], now: datetime) -> None:
        if self._bars is None:
            self._bars = Progress(
                TextColumn("{task.description:<10}"),
                BarColumn(bar_width=28),
                TextColumn("{task.completed:>3.0f} of {task.total:.0f} tasks"),
                TextColumn("{task.fields[rate]:>16}"),
                TextColumn("{task.fields[left]}", style="dim"),
                console=self.console,
                auto_refresh=False,
            )
            self._bars.start()
        starting = starts_spark(jobs)
        for job in jobs:
            if job.job not in self._ids:
                self._ids[job.job] = self._bars.add_task(job.job, total=job.total, rate="", left="")
            self._bars.update(
                self._ids[job.job],
                completed=job.done,
                total=job.total,
                rate=per_second(job.rate(now)),
                left=_left(job, now, starting=starting),
            )
        self._bars.refresh()

    def _print(self, line: Text) -> None:
        with suppress(OSError):
            (self._bars.console if self._bars is not None else self.console).print(line, soft_wrap=True)


def starts_spark(jobs: Sequence[JobProgress]) -> bool:
    """Whether workers have taken their first tasks and Spark, which starts with them, has finished none yet."""
    on_spark = [job for job in jobs if job.job in JOBS]
    return any(job.running for job in on_spark) and not any(job.done for job in on_spark)


def _left(job: JobProgress, now: datetime, *, starting: bool) -> str:
    if job.finished:
        return "done"
    if job.began is None:
        return "waits"
    if starting and job.job in JOBS:
        return "starting Spark"
    left = job.left(now)
    return "runs" if left is None else f"{clock(left)} left"


def _slowest(jobs: Sequence[JobProgress], now: datetime) -> str:
    """The rate of the job that will end last, as far as it is known."""
    estimates = [(left, job) for job in jobs if not job.finished and (left := job.left(now)) is not None]
    if not estimates:
        return ""
    left, job = max(estimates, key=lambda pair: pair[0])
    return f"; {job.job} at {per_second(job.rate(now))}, {clock(left)} left"
