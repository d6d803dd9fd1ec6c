"""A random DAG with everything that may happen to it, one step after another, and the model beside it."""

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from tests.support.dispatcher import DispatcherHarness, fence
from tests.windows.random_dags import Chain, RandomDag
from tests.windows.random_model import Model, digest
from tests.windows.support import WindowFlow
from tracelake.errors import TraceError
from tracelake.model.windows import Window

AT_ONCE = 4
"""Attempts that run at the same time."""
LEASE_SECONDS = 130
DAG = "w"

_READY = """
    SELECT t.task_id, j.name, t.unit_start, t.unit_end FROM tasks t JOIN jobs j USING (job_id)
    WHERE t.status = 'Queued' AND NOT t.held AND t.superseded IS NULL AND j.name = ANY($1)
      AND j.org_id = (SELECT org_id FROM orgs WHERE name = $2)
    ORDER BY j.name, t.unit_start, t.unit_end, t.task_id"""
_OPEN = """
    SELECT t.task_id, t.status FROM tasks t JOIN jobs j USING (job_id)
    WHERE j.name = $1 AND t.unit_start = $2 AND t.unit_end = $3 AND t.status <> 'Completed' AND t.status <> 'Canceled'
      AND t.skipped_at IS NULL AND j.org_id = (SELECT org_id FROM orgs WHERE name = $4)"""
_PENDING = """
    SELECT n.job_name, p.unit_start, p.unit_end, p.reason, p.waits_for FROM pending_units p JOIN nodes n USING (node_id)
    WHERE p.org_id = (SELECT org_id FROM orgs WHERE name = $1) ORDER BY 1, 2"""


@dataclass
class RunningAttempt:
    """A claimed task, with what it read at its claim."""

    job: str
    task_id: UUID
    unit: Window
    lease: Any
    text: str
    times: tuple[int, int] | None
    said: bool = False


@dataclass
class Run:
    """A step is a method that returns whether it could do anything."""

    harness: DispatcherHarness
    seed: int
    features: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.dag = RandomDag(self.chance, self.seed)
        self.flow = WindowFlow(self.harness, f"org{self.seed}")
        self.name = f"r{self.seed}"
        self.jobs = [job.name for job in self.dag.jobs]
        self.flow.deploy(self.dag.yaml(self.name))
        self.running: list[RunningAttempt] = []
        self.stale: list[RunningAttempt] = []
        self.failed: list[UUID] = []
        self.reports: list[tuple[RunningAttempt, dict[str, Any]]] = []
        self.committed: dict[tuple[str, Window], str] = {}
        self.given_up: dict[tuple[str, Window], str | None] = {}
        self.abandoned: dict[tuple[str, int], UUID] = {}
        """Tasks of units of chains that were skipped; canceled ones are begun anew."""
        self.asked: set[tuple[str, int]] = set()
        self.versions = 0
        self.is_building = False
        for chain in self.dag.chains.values():
            # Holes stay where they are: what was computed while a chain seemed to begin behind one would have to go.
            for unit in [chain.announced[0], *chain.announced] if chain.lost else []:
                if (unit[0] == chain.begin) or chain.lost.get(unit[0]):
                    self.ask(chain, unit)
        self._note_shapes()

    # --- units of the chains

    def ask(self, chain: Chain, unit: tuple[int, int]) -> None:
        """Has a unit of a chain computed: the first time by an event of its source, then by hand."""
        span = {"start": unit[0], "end": unit[1]}
        if (chain.name, unit[0]) in self.asked and unit[0] in chain.texts:
            self.flow.trigger(self.name, chain.name, range=span)
            self.features["rewrite"] += 1
        elif (chain.name, unit[0]) not in self.asked:
            self.flow.trigger(self.name, f"{chain.name}_source", range=span)
        self.asked.add((chain.name, unit[0]))

    def announce(self) -> bool:
        """A unit that was not asked for yet."""
        places = [
            (chain, unit)
            for chain in self.dag.chains.values()
            for unit in chain.announced
            if (chain.name, unit[0]) not in self.asked
        ]
        if places:
            self.ask(*self.chance.choice(places))
        return bool(places)

    def rewrite(self) -> bool:
        places = [(chain, unit) for chain in self.dag.chains.values() for unit in chain.units if unit[0] in chain.texts]
        if places:
            self.ask(*self.chance.choice(places))
        return bool(places)

    def find(self) -> bool:
        """A unit of a chain that was given up is computed after all."""
        places = [
            (chain, unit)
            for chain in self.dag.chains.values()
            for unit in chain.units
            if (chain.name, unit[0]) in self.abandoned
        ]
        if not places:
            return False
        chain, unit = self.chance.choice(places)
        task_id = self.abandoned.pop((chain.name, unit[0]))
        if self.harness.row(str(task_id))["status"] == "Canceled":
            self.flow.trigger(self.name, chain.name, range={"start": unit[0], "end": unit[1]})
        else:
            self.flow.person("retry", task_id)
        del chain.lost[unit[0]]
        self.features["unit found after all"] += 1
        return True

    # --- attempts

    def ready(self) -> list[Any]:
        return self.harness.sql(_READY, [*self.dag.chains, *self.jobs], self.flow.org)

    def is_lost(self, row: Any) -> bool:
        """Whether it is the task of a unit that nobody ever completes."""
        return row["name"] in self.dag.chains and row["unit_start"] in self.dag.chains[row["name"]].lost

    def claim(self, row: Any = None) -> bool:
        if len(self.running) >= AT_ONCE:
            return False
        if row is None:
            rows = [row for row in self.ready() if not self.is_lost(row)]
            if not rows:
                return False
            row = self.chance.choice(rows)
        reply = self.harness.claim(str(row["task_id"])).body
        if reply["status"] != "Claimed":
            return False  # a cutover was faster
        unit = Window(row["unit_start"], row["unit_end"])
        times = None
        if row["name"] in self.dag.chains:
            self.versions += 1
            text = f"{row['name'][0]}{unit.start}v{self.versions}"
            times = self.dag.chains[row["name"]].draw_times(self.chance, unit.start)
        else:
            inputs = reply["task"]["inputs"]
            text = digest([",".join(self.flow.read(row["task_id"], reply, item)) for item in inputs])
        self.running.append(RunningAttempt(row["name"], row["task_id"], unit, reply, text, times))
        self.features["several attempts at once"] += len(self.running) > 2
        return True

    def finish(self, attempt: RunningAttempt | None = None) -> bool:
        if attempt is None:
            if not self.running:
                return False
            attempt = self.chance.choice(self.running)
        self.features["completion out of order"] += attempt is not self.running[0]
        self.running.remove(attempt)
        report = self._report(attempt)
        reply = self._send("complete", attempt, **report)
        if reply.status != 200:
            assert self.is_building or self.features["cutover"], reply
            return True
        self._note_commit(attempt)
        self.reports.append((attempt, report))
        return True

    def say(self) -> bool:
        """The event of a unit comes before its files are committed, and again with them."""
        attempts = [attempt for attempt in self.running if not attempt.said]
        if not attempts:
            return False
        attempt = self.chance.choice(attempts)
        attempt.said = True
        events = self._report(attempt)["events"]
        reply = self._send("events", attempt, events=events * 2)
        self.features["event before its commit"] += reply.status == 200
        return True

    def repeat(self) -> bool:
        """The final report of an attempt comes once more, much later."""
        if not self.reports:
            return False
        attempt, report = self.chance.choice(self.reports)
        reply = self._send("complete", attempt, **report)
        if reply.status == 200:
            assert reply.body["duplicate"], reply
            self.features["repeated report"] += 1
        else:
            assert reply.code == "credential_expired", reply
        return True

    def fail(self) -> bool:
        """An attempt fails for good. Somebody tries the task again later."""
        if not self.running:
            return False
        attempt = self.running.pop(self.chance.randrange(len(self.running)))
        self._send("complete", attempt, status="Failed", error_message="no", retryable=False)
        self.failed.append(attempt.task_id)
        return True

    def stumble(self) -> bool:
        """An attempt fails, and the task is tried again by itself."""
        if not self.running:
            return False
        attempt = self.running.pop(self.chance.randrange(len(self.running)))
        reply = self._send("complete", attempt, status="Failed", error_message="again", retryable=True)
        self.features["failure that is tried again"] += reply.status == 200
        self.failed.append(attempt.task_id)
        return True

    def try_again(self) -> bool:
        """Somebody tries a task again that failed some time ago."""
        if not self.failed:
            return False
        task_id = self.failed.pop(self.chance.randrange(len(self.failed)))
        if self.harness.row(str(task_id))["status"] == "Failed":
            try:
                self.flow.person("retry", task_id)
            except TraceError:
                assert self.features["cutover"], "only tasks of another version cannot be tried again"
            self.features["failure that is tried again later"] += 1
        return True

    def wait(self) -> bool:
        """Time goes by: leases expire, and what failed is tried again."""
        self.harness.reap()
        self.harness.advance(LEASE_SECONDS)
        self.harness.reap()
        self.harness.advance(LEASE_SECONDS)
        self.harness.requeue_due()
        self.stale += self.running
        self.features["lease expiry"] += bool(self.running)
        self.running.clear()
        return True

    def report_late(self) -> bool:
        """An attempt whose lease expired reports its end; another attempt may have begun or ended by now."""
        if not self.stale:
            return False
        attempt = self.stale.pop(self.chance.randrange(len(self.stale)))
        reply = self._send("complete", attempt, **self._report(attempt))
        accepted = reply.status == 200 and not reply.body.get("duplicate") and reply.body["status"] == "Completed"
        current = self.harness.row(str(attempt.task_id))["attempt"] == attempt.lease["attempt"]
        assert not accepted or current, (reply, "a later attempt has begun")
        if accepted:
            self._note_commit(attempt)
        self.features["late report"] += 1
        return True

    # --- people

    def give_up(self) -> bool:
        """Somebody cancels or skips the task of a unit: of a chain one that is lost, of a job any."""
        rows = [
            row
            for row in self.ready()
            if self.is_lost(row) or (row["name"] in self.jobs and self.features["settled"] and self._is_only_task(row))
        ]
        if not rows:
            return False
        row = self.chance.choice(rows)
        task_id, unit = row["task_id"], Window(row["unit_start"], row["unit_end"])
        if (self.seed + self.features["cancel"] + self.features["skip"]) % 2:
            self.flow.person("cancel", task_id)
            self.features["cancel"] += 1
        else:
            lease = self.harness.claim(str(task_id)).body
            assert lease["status"] == "Claimed", lease
            body = fence(str(task_id), lease, status="Failed", error_message="no", retryable=False)
            assert self.harness.task("complete", lease["capability_token"], body).status == 200
            self.flow.person("skip", task_id)
            self.features["skip"] += 1
        if row["name"] in self.dag.chains:
            self.abandoned[row["name"], unit.start] = task_id
            self.features["gap"] += 1
        else:
            self.given_up[row["name"], unit] = self.committed.get((row["name"], unit))
        return True

    def deploy(self) -> bool:
        """Another query in one job or two: their outputs, and what is made from them, are built beside the old ones."""
        if self.is_building or self.features["deploy"]:
            return False
        changed = frozenset(self.chance.sample(self.jobs, self.chance.randint(1, 2)))
        self.is_building = self.flow.deploy(self.dag.yaml(self.name, changed)).state == "Building"
        self.features["deploy"] += 1
        self.features["deploy while attempts run"] += bool(self.running)
        return True

    def build(self) -> bool:
        done = self.harness.run(self.harness.dispatcher.builds.run_once())
        if done:
            self.is_building = False
            self.features["cutover"] += 1
        return bool(done)

    # --- the end

    def settle(self) -> None:
        """Everything comes to its end, in any order."""
        while True:
            while self.failed:
                self.try_again()
            while self.stale:
                self.report_late()
            self.flow.drain()
            self.build()
            rows = [row for row in self.ready() if not self.is_lost(row)]
            if rows and self.claim(self.chance.choice(rows)) and self.chance.random() < 0.7:
                continue
            if self.running:
                self.finish()
                continue
            if rows:
                continue
            if (any(self.is_lost(row) for row in self.ready()) and self.give_up()) or self.announce() or self.build():
                continue
            self.harness.advance(3_600)
            if not self.harness.requeue_due() and not self.flow.drain() and not self.build() and not self.ready():
                break
        self.features["settled"] += 1

    def check(self) -> None:
        self.settle()
        assert not self.is_building
        model = Model(self.dag.chains, self.dag.jobs, self.given_up)
        for job in self.dag.jobs:
            rows = self.flow.rows(f"{self.name}_{job.name}")
            expected = {tuple(unit): text for unit, text in model.rows[job.name].items()}
            assert rows == expected, self._explain(job.name, rows, expected)
            self._note_windows(job, list(model.rows[job.name]))

    def count_tasks(self) -> Counter[tuple[str, str]]:
        return Counter((job, task["unit_key"]) for job in self.jobs for task in self.flow.tasks(job))

    def _explain(self, job: str, rows: dict[Any, str], expected: dict[Any, str]) -> str:
        units = sorted(rows.keys() | expected.keys())
        lines = [f"{unit}: {rows.get(unit)} instead of {expected.get(unit)}" for unit in units
                 if rows.get(unit) != expected.get(unit)]  # fmt: skip
        document = self.dag.yaml(self.name)
        pending = self.harness.sql(_PENDING, self.flow.org)
        return "\n".join([f"{job} of {self.flow.org}", *lines, document, *(str(tuple(row)) for row in pending)])

    # --- calls and notes

    def _report(self, attempt: RunningAttempt) -> dict[str, Any]:
        self.flow.times = lambda _start, _end: attempt.times
        return self.flow.write(attempt.lease, attempt.text)

    def _send(self, call: str, attempt: RunningAttempt, **fields: Any) -> Any:
        fields = {"status": "Completed"} | fields if call == "complete" else fields
        body = fence(str(attempt.task_id), attempt.lease, **fields)
        return self.harness.task(call, attempt.lease["capability_token"], body)

    def _note_commit(self, attempt: RunningAttempt) -> None:
        if attempt.job in self.dag.chains:
            chain, start = self.dag.chains[attempt.job], attempt.unit.start
            assert attempt.times is not None
            self.features["rewrite with other times"] += chain.times.get(start, attempt.times) != attempt.times
            chain.texts[start], chain.times[start] = attempt.text, attempt.times
        self.committed[attempt.job, attempt.unit] = attempt.text
        self.given_up.pop((attempt.job, attempt.unit), None)

    def _is_only_task(self, row: Any) -> bool:
        return len(self.harness.sql(_OPEN, row["name"], row["unit_start"], row["unit_end"], self.flow.org)) == 1

    def _note_shapes(self) -> None:
        for job in self.dag.jobs:
            self.features["when: updated"] += not job.complete
            self.features["self: previous"] += job.running
            self.features["join by unit"] += job.joins
            self.features["unit and more"] += len(job.inputs) > 1 and job.grid is None and not job.joins
            for item in job.inputs:
                self.features[f"read: {item.read}"] += 1
                self.features["lookback"] += item.lookback > 0

    def _note_windows(self, job: Any, windows: list[Window]) -> None:
        grid = job.grid
        if grid is None or grid.by == "blocks":
            self.features["windows of blocks"] += bool(windows and grid)
            return
        for window in windows:
            self.features["an hour" if grid.grain == "hour" else f"a {grid.grain}"] += 1
            hours = (window.end + 1 - window.start) // 3_600
            if grid.grain == "day" and hours != 24:
                self.features[f"a day of {hours} hours"] += 1
