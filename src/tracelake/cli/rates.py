"""Rates of tasks and events per second, computed from two measurements some seconds apart.

The server counts created and open tasks, not finished ones. The finished tasks are those created less the growth of
the open ones; the number is unknown if a count was cut off. Here a task that failed without a retry left counts as
open, and one
that was skipped or canceled as done.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from rich.text import Text

from tracelake.client.user import UserClient
from tracelake.wire import routes
from tracelake.wire.overview import CountName, JobLoad, OverviewReply

WINDOW_SECONDS = 10.0
_OPEN: dict[CountName, tuple[str, str]] = {
    "ready": ("ready", "bold"),
    "running": ("running", "cyan"),
    "held": ("waiting", "yellow"),
    "retrying": ("retrying", "yellow"),
    "failed": ("failed", "bold red"),
}
"""The counts of open tasks, with the word and the style of each."""

JobKey = tuple[str, str]


class _Look(NamedTuple):
    at: datetime
    open: dict[JobKey, int | None]


@dataclass(frozen=True, slots=True)
class Rate:
    """A number per second; None is unknown, and `least` means that it is at least this much."""

    value: float | None
    least: bool = False


@dataclass(frozen=True, slots=True)
class JobRates:
    events: Rate
    made: Rate
    done: Rate


@dataclass(frozen=True, slots=True)
class Measured:
    reply: OverviewReply
    seconds: float
    jobs: dict[JobKey, JobRates]
    total: JobRates


class Meter:
    """Requests the overview, and keeps the measurements of the last seconds."""

    def __init__(self, client: UserClient, dag: str | None = None) -> None:
        self._client, self._dag = client, dag
        self._looks: deque[_Look] = deque()
        self._much = False
        """A count was cut off, so the window is as short as it can be."""

    async def look(self) -> Measured:
        reply = await self._client.call(routes.SHOW_OVERVIEW, since=self._since(), dag=self._dag)
        before = next((look for look in self._looks if look.at == reply.since), None)
        measured = measure(reply, None if before is None else before.open)
        self._much = any("made" in job.cut or "events" in job.cut for job in reply.jobs)
        while len(self._looks) > 1 and (reply.now - self._looks[0].at).total_seconds() >= WINDOW_SECONDS:
            self._looks.popleft()
        self._looks.append(_Look(reply.now, open_tasks(reply)))
        return measured

    def _since(self) -> datetime | None:
        if not self._looks:
            return None
        return self._looks[-1 if self._much else 0].at


def open_tasks(reply: OverviewReply) -> dict[JobKey, int | None]:
    return {
        (job.dag, job.job): None if set(_OPEN) & set(job.cut) else sum(getattr(job, name) for name in _OPEN)
        for job in reply.jobs
    }


def task_counts(jobs: Sequence[JobLoad]) -> Text:
    """`3 ready  2 running ...`: the open tasks of the jobs by state; `3+` is at least 3."""
    line = Text()
    for name, (word, style) in _OPEN.items():
        number = f"{sum(getattr(job, name) for job in jobs)}{'+' if any(name in job.cut for job in jobs) else ''}"
        line.append("  " if line else "").append(number, style=style if number != "0" else "").append(f" {word}")
    return line


def missing_text(jobs: Sequence[JobLoad]) -> Text:
    """`2 refused batches  3 gaps`: what is missing from datasets and no task will add by itself; empty if nothing."""
    line = Text()
    batches, gaps = (sum(getattr(job, name) for job in jobs) for name in ("dead_letters", "gaps"))
    if batches:
        more = "+" if any("dead_letters" in job.cut for job in jobs) else ""
        line.append(f"{batches}{more}", style="bold red").append(
            " refused batch" if batches == 1 else " refused batches"
        )
    if gaps:
        line.append("  " if line else "").append(str(gaps), style="yellow").append(" gap" if gaps == 1 else " gaps")
    return line


def measure(reply: OverviewReply, before: dict[JobKey, int | None] | None) -> Measured:
    seconds = max((reply.now - reply.since).total_seconds(), 0.001)
    now = open_tasks(reply)
    jobs = {}
    for job in reply.jobs:
        key = (job.dag, job.job)
        done = _done(job, now[key], None if before is None else before.get(key))
        jobs[key] = JobRates(
            events=Rate(job.events / seconds, "events" in job.cut),
            made=Rate(job.made / seconds, "made" in job.cut),
            done=Rate(None if done is None else done / seconds),
        )
    total = JobRates(*(_sum([getattr(rates, name) for rates in jobs.values()]) for name in ("events", "made", "done")))
    return Measured(reply, seconds, jobs, total)


def _done(job: JobLoad, now: int | None, before: int | None) -> int | None:
    if now is None or before is None or "made" in job.cut:
        return None
    # Ids are given a moment before tasks can be seen, so a window may miss one that another has.
    return max(0, job.made - (now - before))


def _sum(rates: list[Rate]) -> Rate:
    numbers = [rate.value for rate in rates if rate.value is not None]
    if rates and not numbers:
        return Rate(None)
    return Rate(sum(numbers), len(numbers) < len(rates) or any(rate.least for rate in rates))
