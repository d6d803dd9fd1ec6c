"""Which org gets a Spark process when: the rules of places, with processes that only pretend."""

import dataclasses
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.support.postgres import wait_until
from tracelake.catalogue.context import AttemptLostError, CanceledError, OperatorContext, OperatorResult
from tracelake.ports import FileTransfer
from tracelake.spark.failures import SparkFailedError
from tracelake.spark.testing import DirectoryTransfer, make_context, make_unit
from tracelake.worker.org_process import pool
from tracelake.worker.org_process.launch import OrgProcessConfig
from tracelake.worker.org_process.pool import OrgProcesses
from tracelake.worker.org_process.process import CRASHED, IDLE, LOST_ALONE, LOST_BESIDE, MEMORY, OrgProcess


class PretendProcess(OrgProcess):
    """Attempts run in it until they are let go, or it ends."""

    def __init__(self, config: OrgProcessConfig, number: int, on_change: Callable[[], None]) -> None:
        self.number = number
        self.org: str | None = None
        self.orgs: set[str] = set()
        self.alone = self.closing = False
        self.bound_at = self.used_at = time.monotonic()
        self.places = self.crowd = 0
        self.ready, self.ended = threading.Event(), threading.Event()
        self.ready.set()
        self.end_reason = None
        self.missing = {}
        self.running: dict[int, threading.Event] = {}
        self.bytes = self.looks = 0

    def end(self, reason: str) -> None:
        if self.end_reason is None:
            self.end_reason, self.crowd = reason, len(self.running)
        self.ended.set()
        for event in list(self.running.values()):
            event.set()

    def memory(self, parents: object) -> int:
        self.looks += 1
        return self.bytes

    def run(
        self, name: str, module: str, context: OperatorContext, transfer: FileTransfer, data_dsn: Callable[[], str]
    ) -> OperatorResult:
        self.orgs.add(context.org)
        event = self.running[id(context)] = threading.Event()
        event.wait(60)
        del self.running[id(context)]
        if self.end_reason is not None:
            raise AttemptLostError(LOST_BESIDE) if self.crowd > 1 else SparkFailedError(LOST_ALONE)
        return OperatorResult()


@dataclasses.dataclass
class Station:
    """A worker's processes, and the attempts that were given to them."""

    limit: int = 2
    spare: bool = False
    idle_seconds: float = 60.0
    started: list[PretendProcess] = dataclasses.field(default_factory=list)
    ends: dict[int, object] = dataclasses.field(default_factory=dict)
    gate: threading.Event = dataclasses.field(default_factory=threading.Event)
    """No process starts before it is set."""
    starts: int = 0
    """Processes that have been asked for."""
    failures: list[Exception] = dataclasses.field(default_factory=list)
    """How the next starts fail."""

    def __post_init__(self) -> None:
        config = OrgProcessConfig(scratch=Path("/nonexistent"))
        self.gate.set()
        self.processes = OrgProcesses(
            config,
            DirectoryTransfer(Path("/nonexistent")),
            lambda: "",
            limit=self.limit,
            spare=self.spare,
            idle_seconds=self.idle_seconds,
            start=self._start,
        )

    def _start(self, config: OrgProcessConfig, number: int, on_change: Callable[[], None]) -> OrgProcess:
        self.starts += 1
        self.gate.wait(60)
        if self.failures:
            raise self.failures.pop(0)
        self.started.append(PretendProcess(config, number, on_change))
        return self.started[-1]

    def submit(self, org: str, like: OperatorContext | None = None) -> OperatorContext:
        context = make_context("noop", {}, make_unit((0, 9)), [], {}, task_id=like.task_id if like else uuid4())
        context = dataclasses.replace(context, org=org)

        def target() -> None:
            try:
                self.ends[id(context)] = self.processes.run("noop", "module", context)
            except Exception as error:
                self.ends[id(context)] = error

        threading.Thread(target=target, daemon=True).start()
        return context

    def place(self, context: OperatorContext) -> PretendProcess | None:
        return next((process for process in self.started if id(context) in process.running), None)

    def begun(self, context: OperatorContext) -> PretendProcess:
        wait_until(lambda: self.place(context) is not None, f"an attempt of {context.org} to begin")
        process = self.place(context)
        assert process is not None
        return process

    def finish(self, context: OperatorContext) -> None:
        self.begun(context).running[id(context)].set()
        wait_until(lambda: id(context) in self.ends, "the attempt to end")


@pytest.fixture
def station() -> Iterator[Station]:
    station = Station()
    yield station
    station.processes.close()


def test_an_org_keeps_its_process_and_shares_it_with_nobody(station: Station) -> None:
    one, two, other = station.submit("a"), station.submit("a"), station.submit("b")
    assert station.begun(one) is station.begun(two)
    assert station.begun(other) is not station.begun(one)
    for context in (one, two, other):
        station.finish(context)
    again = station.submit("a")
    station.begun(again)
    assert [process.orgs for process in station.started] in ([{"a"}, {"b"}], [{"b"}, {"a"}])


def test_attempts_that_wait_for_the_same_process_start_one(station: Station, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(pool, "_WATCH_SECONDS", 0.01)
    station.gate.clear()
    one, two = station.submit("a"), station.submit("a")
    wait_until(lambda: station.starts > 0 and station.processes._start_now, "an attempt to ask while a process starts")
    station.gate.set()
    process = station.begun(one)
    assert station.begun(two) is process
    looks = process.looks
    wait_until(lambda: process.looks > looks + 1, "the supervisor to have looked for work")
    assert station.started == [process]


@pytest.mark.parametrize("failure", [OSError("no memory"), ImportError("half made")])
def test_a_start_that_fails_is_followed_by_another(
    station: Station, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    monkeypatch.setattr(pool, "_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(pool, "_WATCH_SECONDS", 0.01)
    station.failures.append(failure)
    station.finish(station.submit("a"))
    assert station.starts == 2


def test_the_process_that_was_idle_longest_makes_room(station: Station) -> None:
    contexts = [station.submit("a"), station.submit("b")]
    processes = [station.begun(context) for context in contexts]
    station.finish(contexts[1])
    station.finish(contexts[0])
    third = station.submit("c")
    assert station.begun(third) not in processes
    assert processes[1].end_reason == IDLE
    assert processes[0].alive


def test_where_all_are_busy_the_longest_there_takes_no_more_until_the_one_who_waits_had_its_turn(
    station: Station,
) -> None:
    first = station.submit("a")
    station.begun(first)
    second = station.submit("b")
    station.begun(second)
    waiting = station.submit("c")
    wait_until(lambda: station.begun(first).closing, "the oldest process to close")
    late = station.submit("a")
    assert station.place(waiting) is None
    assert station.place(late) is None
    station.finish(first)
    station.begun(waiting)
    assert station.place(late) is None, "it waits behind the other org"
    station.finish(second)
    station.begun(late)


def test_attempts_of_a_process_that_crashed_are_free_and_then_run_alone(station: Station) -> None:
    one, two = station.submit("a"), station.submit("a")
    process = station.begun(one)
    assert station.begun(two) is process
    process.end(CRASHED)
    wait_until(lambda: {id(one), id(two)} <= station.ends.keys(), "both attempts")
    assert {type(station.ends[id(context)]) for context in (one, two)} == {AttemptLostError}
    again, beside = station.submit("a", like=one), station.submit("a")
    assert station.begun(again) is not station.begun(beside)
    assert station.begun(again).alone
    station.begun(again).end(CRASHED)
    wait_until(lambda: id(again) in station.ends, "the attempt that ran alone")
    assert isinstance(station.ends[id(again)], SparkFailedError), "now it counts"
    assert station.place(beside) is not None


def test_a_process_that_takes_too_much_memory_ends_and_its_neighbour_does_not(station: Station) -> None:
    greedy, modest = station.submit("a"), station.submit("b")
    process, neighbour = station.begun(greedy), station.begun(modest)
    process.bytes = 2**40
    wait_until(lambda: id(greedy) in station.ends, "the end of the process")
    assert process.end_reason == MEMORY
    assert neighbour.alive


def test_who_is_cancelled_waits_no_longer(station: Station) -> None:
    oldest = station.begun(station.submit("a"))
    station.begun(station.submit("b"))
    waiting = station.submit("c")
    wait_until(lambda: oldest.closing, "the oldest process to close")
    waiting.cancel.set()
    wait_until(lambda: id(waiting) in station.ends, "the attempt to end")
    assert isinstance(station.ends[id(waiting)], CanceledError)
    assert station.begun(station.submit("a")) is oldest, "nobody waits for its place any more"


def test_a_spare_is_there_before_anybody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(pool, "_WATCH_SECONDS", 0.02)
    station = Station(spare=True)
    try:
        wait_until(lambda: station.processes.spare is not None, "the spare")
        spare = station.processes.spare
        context = station.submit("a")
        assert station.begun(context) is spare
        station.finish(context)
        wait_until(lambda: station.processes.spare is not None, "the next spare")
    finally:
        station.processes.close()
    assert not any(process.alive for process in station.started)


def test_an_idle_worker_has_no_process_and_starts_one_for_the_next_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(pool, "_WATCH_SECONDS", 0.02)
    monkeypatch.setattr(pool, "_SPARE_PAUSE", 0.0)
    station = Station(spare=True, idle_seconds=0.1)
    try:
        wait_until(lambda: len(station.started) > 0, "the spare")
        wait_until(lambda: station.started[0].end_reason == IDLE, "the end of a spare that nobody needs")
        assert station.processes.spare is None
        assert not station.processes._must_start(), "no spare follows one that nobody needed"
        context = station.submit("a")
        process = station.begun(context)
        station.finish(context)
        wait_until(lambda: process.end_reason == IDLE, "the end of the idle process")
        wait_until(lambda: not any(each.alive for each in station.started), "the end of the next spare")
    finally:
        station.processes.close()
