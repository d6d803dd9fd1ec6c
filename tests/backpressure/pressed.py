"""Random DAGs under pressure, and after every step what must hold about depths, levels and who is stopped.

How full a queue with a depth may get, as tightly as it is true. While its level is ALL, no call and no drain makes a
task for it. Below that, one accepted call adds what it carries (so at most that many above the threshold), and a round
of the drain fills it to its threshold and no further. Retries, a person's retry, places that become free and versions
that come back make tasks ready that were there before; they alone may add to a full queue.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from tests.backpressure.promises import Promises
from tests.backpressure.shapes import LIMITS, Limits, Version, wanted
from tests.backpressure.world import Look
from tracelake.dispatcher.engine.pressure.levels import Level

LEASE = 121
LONGEST_WAIT = 601
AT_MOST = 1000
"""Rounds to the end; far more than any example needs."""

# How often each comes, of all.
_WORDS = {
    "arrive": 5, "flood": 3, "work": 6, "start": 2, "end": 3, "drain": 4, "watch": 3, "time": 3, "timers": 2,
    "edit": 4, "cancel": 1, "retry": 1, "pause": 1, "resume": 2, "other": 3, "restart": 1,
}  # fmt: skip


@dataclass(frozen=True)
class Step:
    word: str
    pick: int
    number: int
    limits: Limits
    how: str

    def __repr__(self) -> str:
        """On one line of a report."""
        return f"{self.word}({self.pick}, {self.number}, {self.limits}, {self.how!r})"


STEP = st.builds(
    Step,
    word=st.sampled_from([word for word, often in _WORDS.items() for _ in range(often)]),
    pick=st.integers(0, 999),
    number=st.integers(1, 5),
    limits=LIMITS,
    how=st.sampled_from(["pass", "pass", "pass", "fail", "fail for good"]),
)


class PressedRun(Promises):
    """One example, from its deploy to the last of its tasks."""

    def step(self, step: Step) -> None:
        match step.word:
            case "arrive":
                self.arrive(step.pick, step.number)
            case "flood":
                self.flood(step.pick, step.number)
            case "work":
                self.work(step.pick, 2 * step.number)
            case "start":
                self.start(step.pick)
            case "end":
                self.end(step.pick, step.how)
            case "drain":
                self.drain(step.number % 3 + 1)
            case "watch":
                self.watch()
            case "time":
                self.world.advance((10, 31, 49, 61, LEASE, LONGEST_WAIT)[step.pick % 6])
            case "timers":
                self.world.harness.reap()
                self.world.harness.requeue_due()
            case "edit":
                self.edit(step.pick, step.limits, ("limits", "limits", "leaves", "back")[step.number % 4])
            case "other":
                self.world.turn(1 - self.world.both.index(self.world.harness))
            case "restart":
                self.world.harness.restart()
            case word:
                self.decide(step.pick, word)
        self.look()

    # Events

    def arrive(self, pick: int, number: int) -> None:
        source = self.shape.sources[pick % len(self.shape.sources)]
        one_by_one = source.kind != "always_on"
        for _ in range(number if one_by_one else 1):
            before = self.look()
            first = len(self.said[source.name])
            (keys,) = self.world.announce(source, first, 1 if one_by_one else number)
            self.said[source.name] += keys
            self.heard(source.name, keys, before)

    def flood(self, pick: int, number: int) -> None:
        """Every source says something, and every job but one works it off."""
        for index in range(len(self.shape.sources)):
            self.arrive(index, number)
        slow = self.shape.jobs[pick % len(self.shape.jobs)].name
        for name in self.jobs_with_work():
            if name != slow:
                self.work_off(name, 2 * number)

    def heard(self, producer: str, keys: list[str], before: Look) -> None:
        """One transaction said these units: who reads them has its tasks at once, unless it is stopped."""
        self.announced[producer].update(keys)
        after = self.look()
        oracle = self.oracle(before)
        for job, index in self.shape.readers(producer, self.version):
            edge = before.edges[job.name, index]
            routed = edge["position"] is None and not oracle.blocked(job, index)
            for key in keys:
                task = (job.name, job.edge(index), key)
                if not routed:
                    assert task in before.tasks or task not in after.tasks, f"{task} should wait"
                elif not job.joins or all(key in self.announced[read] for read in job.inputs):
                    assert task in after.tasks, f"{task} should be there at once"
        for name, row in before.queues.items():
            made = sum(key[0] == name and key not in before.tasks for key in after.tasks)
            if row["level"] == Level.ALL and name not in self.version.without and self.limited(name):
                assert made == 0, f"{name} is full"
            assert made <= len(keys) * len(self.shape.job(name).inputs)

    # Workers

    def jobs_with_work(self) -> list[str]:
        return [job.name for job in self.shape.jobs if self.before.ready(job.name)]

    def work(self, pick: int, most: int) -> None:
        """Some of one job's, in two batches; the others wait meanwhile."""
        jobs = self.jobs_with_work()
        if jobs:
            self.work_off(jobs[pick % len(jobs)], most)

    def work_off(self, name: str, most: int) -> None:
        chosen = self.before.ready(name)[:most]
        if chosen:
            self.world.work([row["task_id"] for row in chosen])
            self.announced[name].update(row["unit_key"] for row in chosen)
            self.look()

    def start(self, pick: int) -> None:
        jobs = self.jobs_with_work()
        if not jobs:
            return
        name = jobs[pick % len(jobs)]
        task_id = self.before.ready(name)[0]["task_id"]
        self.world.claim(task_id)
        self.running.append((name, task_id))

    def end(self, pick: int, word: str) -> None:
        if not self.running:
            return
        name, task_id = self.running.pop(pick % len(self.running))
        row = next(row for row in self.before.tasks.values() if row["task_id"] == task_id)
        if row["status"] != "Running":
            return  # its lease ran out
        if row["superseded"] is not None:
            self.world.finish(task_id, "stop")
            return
        before = self.look()
        self.world.finish(task_id, word)
        if word == "pass":
            self.heard(name, [row["unit_key"]], before)

    def time_passes(self, seconds: int) -> None:
        self.world.advance(seconds)

    # People

    def decide(self, pick: int, word: str) -> None:
        if word == "cancel":
            found = [row for name in self.jobs_with_work() for row in self.before.ready(name)]
        elif word == "retry":
            found = self.given_up(self.before)
        else:
            name = self.shape.sources[pick % len(self.shape.sources)].name
            self.world.pause(name, paused=word == "pause")
            self.paused = self.paused | {name} if word == "pause" else self.paused - {name}
            return
        if found:
            task_id = found[pick % len(found)]["task_id"]
            self.world.person(word, task_id)
            if word == "retry":
                self.wanted_again.add(task_id)

    def given_up(self, look: Look) -> list[Any]:
        """What waits for a person."""
        return [
            row
            for (name, _, _), row in look.tasks.items()
            if name not in self.version.without
            and row["superseded"] is None
            and (row["status"] == "Canceled" or (row["status"] == "Failed" and row["next_retry_at"] is None))
        ]

    # Versions

    def edit(self, pick: int, limits: Limits, word: str) -> None:
        if word == "back":
            self.deploy(self.known[pick % len(self.known)])
        elif word == "limits":
            name = self.shape.names[pick % len(self.shape.names)]
            self.deploy(self.version.changed(name, Limits(bulk=limits.bulk) if name in self.said else limits))
        else:
            name = self.shape.leaves[pick % len(self.shape.leaves)]
            others = [job for job in self.shape.jobs if job.dag == self.shape.job(name).dag and job.name != name]
            if any(job.name not in self.version.without for job in others):
                self.deploy(Version(self.version.limits, self.version.without ^ {name}))

    def deploy(self, version: Version) -> None:
        self.world.deploy_version(version)
        self.version = version
        self.known.append(version)

    # Dispatchers and their loops

    def dispatchers(self, word: str) -> None:
        if word == "other":
            self.world.turn(1 - self.world.both.index(self.world.harness))
        elif word == "restart":
            self.world.harness.restart()
        else:
            self.world.harness.reap()
            self.world.harness.requeue_due()

    def drain(self, rounds: int) -> None:
        for _ in range(rounds):
            before = self.look()
            self.world.drain_once()
            self.drained(before, self.look())

    def drained(self, before: Look, after: Look) -> None:
        for name, row in after.queues.items():
            if name in self.version.without or row["max_depth"] is None:
                continue
            was = before.queues[name]
            assert row["depth"] <= max(was["depth"], row["max_depth"]), f"{name} is flooded"
            if was["level"] == Level.ALL:
                assert row["depth"] == was["depth"], f"{name} was full"

    def watch(self) -> None:
        self.world.watch()
        look = self.look()
        for name, row in look.queues.items():
            if row["max_age_seconds"] is not None:
                oldest = min((task["ready_at"] for task in look.queued(name)), default=None)
                assert row["oldest_ready_at"] == oldest, name
        always_on = [source for source in self.shape.sources if source.kind == "always_on"]
        for source in always_on:
            self.world.hold_run(source)
        self.world.watch()
        oracle = self.oracle(self.look())
        for source in always_on:
            assert self.world.says_pause(source) == oracle.quiet(source.name), source
        is_stopped = self.world.harness.dispatcher.pressure.is_stopped
        assert {name for name in self.shape.names if is_stopped(self.world.ids[name])} == self.quiet_and_read(oracle)

    # The end

    def everything_drains(self) -> None:
        world = self.world
        for name in sorted(self.paused):
            world.pause(name, paused=False)
        self.paused.clear()
        self.deploy(Version(self.version.limits))
        for number in range(AT_MOST):
            world.turn(number % 2)
            if number % 5 == 0:
                self.loops_of_a_while()
            before = world.look()
            world.drain_once()
            look = world.look()
            self.drained(before, look)
            ready = [row["task_id"] for job in self.shape.jobs for row in look.ready(job.name)]
            if ready:
                world.work(ready[:100])
            elif self.is_done(look):
                break
        self.world.watch()
        self.is_as_wanted(self.look())

    def loops_of_a_while(self) -> None:
        self.world.advance(LONGEST_WAIT)
        self.world.harness.reap()
        self.world.harness.requeue_due()
        self.world.builds()
        self.world.watch()
        for row in self.given_up(self.look()):
            self.world.person("retry", row["task_id"])
            self.wanted_again.add(row["task_id"])

    def is_done(self, look: Look) -> bool:
        jobs = {job.name for job in self.shape.jobs}
        return all(row["status"] == "Completed" for key, row in look.tasks.items() if key[0] in jobs) and all(
            row["position"] is None for row in look.edges.values()
        )

    def is_as_wanted(self, look: Look) -> None:
        found: dict[str, Counter[tuple[int, str]]] = {job.name: Counter() for job in self.shape.jobs}
        for (name, edge, key), row in look.tasks.items():
            if name in found:
                assert row["status"] == "Completed", (name, key, row["status"])
                found[name][edge, key] += 1
        assert found == wanted(self.shape, self.said)
        assert [key for key, row in look.edges.items() if row["position"] is not None] == []
        assert {name: row["depth"] for name, row in look.queues.items() if row["depth"] or row["level"]} == {}
        assert self.world.reconcile() == 0
