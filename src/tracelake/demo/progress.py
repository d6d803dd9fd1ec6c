"""Computes the progress of each job: finished tasks, blocks a second, time left."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from tracelake.demo.plan import JOBS, SPLIT, SUMMARY, DemoPlan
from tracelake.wire.tasks import TaskRow


@dataclass(frozen=True, slots=True)
class JobProgress:
    job: str
    done: int
    total: int
    """Tasks."""
    done_blocks: int
    total_blocks: int
    running: int = 0
    began: datetime | None = None
    """When its first task was claimed."""
    ended: datetime | None = None
    """When its last task finished; None while others are open."""

    @property
    def finished(self) -> bool:
        return self.done >= self.total

    def rate(self, now: datetime) -> float | None:
        """Blocks a second since the job began; None as long as nothing tells."""
        if self.began is None or not self.done_blocks:
            return None
        seconds = ((self.ended or now) - self.began).total_seconds()
        return self.done_blocks / seconds if seconds > 0 else None

    def left(self, now: datetime) -> float | None:
        """Seconds, if it goes on like this."""
        if self.finished:
            return 0.0
        rate = self.rate(now)
        return None if rate is None else (self.total_blocks - self.done_blocks) / rate


def measure(plan: DemoPlan, tasks: Iterable[TaskRow]) -> list[JobProgress]:
    """The progress of each job, in their order."""
    by_job: dict[str, list[TaskRow]] = {job: [] for job in (SPLIT, *JOBS)}
    for task in tasks:
        if task.job in by_job:
            by_job[task.job].append(task)
    # The first reads no block, it only cuts their range into units. How many days there are, and how often each is
    # computed until all of its blocks are there, shows as they come.
    totals = {SPLIT: (1, 0), SUMMARY: (max(1, len(by_job[SUMMARY])), 0)}
    return [measure_job(job, rows, *totals.get(job, (plan.units, plan.blocks))) for job, rows in by_job.items()]


def measure_job(job: str, rows: Sequence[TaskRow], total: int, blocks: int) -> JobProgress:
    """The progress of a job with `total` tasks, from those that there are."""
    done = [row for row in rows if row.status == "Completed"]
    finished = [row.finished_at for row in done if row.finished_at is not None]
    claimed = [row.claimed_at for row in rows if row.claimed_at is not None]
    return JobProgress(
        job=job,
        done=len(done),
        total=total,
        done_blocks=sum(_blocks(row) for row in done) if blocks else 0,
        total_blocks=blocks,
        running=sum(row.status == "Running" for row in rows),
        began=min(claimed, default=None),
        ended=max(finished, default=None) if len(done) >= total else None,
    )


def _blocks(row: TaskRow) -> int:
    first, last = (None, None) if row.unit is None else row.unit.blocks
    return 0 if first is None or last is None else last - first + 1


def clock(seconds: float | None) -> str:
    """`8 s`, `1:05 min`; `-` for what is not known."""
    if seconds is None:
        return "-"
    whole = round(seconds)
    return f"{whole} s" if whole < 60 else f"{whole // 60}:{whole % 60:02d} min"


def per_second(rate: float | None) -> str:
    if rate is None:
        return "-"
    return f"{rate:,.0f} blocks/s" if rate >= 10 else f"{rate:.1f} blocks/s"
