"""A scheduler and a real Dispatcher, both started again at any time, on a line that loses requests and answers.

The clock is the store's, and the test moves it: nobody waits for a minute.
"""

import asyncio
import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.deploy.support import Text
from tests.scheduler.support import Faulty
from tests.support.configs import scheduler_config
from tests.support.dags import activate, deploy
from tests.support.dispatcher import DispatcherHarness
from tracelake.scheduler import Scheduler

CONFIG = scheduler_config(batch=7)
MINUTE = timedelta(minutes=1)


def every_minute(catch_up: str = "all") -> Text:
    source = {"kind": "cron", "schedule": "* * * * *", "catch_up": catch_up}
    return Text("d").source("tick", source=source).job("work", "tick")


def settle(harness: DispatcherHarness, *running: Scheduler) -> None:
    """Rounds, side by side, until nothing is due."""

    async def rounds() -> None:
        while min(await asyncio.gather(*(one.run_once() for one in running))) == 0.0:
            pass

    harness.run(rounds())


def source(harness: DispatcherHarness) -> Any:
    return harness.run(Faulty(harness).cron_sources()).sources[0]


def slots(harness: DispatcherHarness) -> list[datetime]:
    """Of all events, in the order in which they were routed."""
    rows = harness.sql("SELECT cursor FROM events ORDER BY routed_seq")
    return [datetime.fromtimestamp(row["cursor"], UTC) for row in rows]


def tasks(harness: DispatcherHarness) -> list[datetime]:
    rows = harness.sql("SELECT unit_end FROM tasks ORDER BY unit_end")
    return [datetime.fromtimestamp(row["unit_end"], UTC) for row in rows]


def minutes(after: datetime, until: datetime) -> list[datetime]:
    first = after.replace(second=0, microsecond=0) + MINUTE
    return [first + MINUTE * number for number in range(int((until - first) / MINUTE) + 1)]


@pytest.mark.parametrize("seed", range(4))
def test_no_slot_is_lost_or_fired_twice(harness: DispatcherHarness, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    chance = random.Random(seed)
    deploy(harness, str(every_minute()))
    since = source(harness).since
    faults = 0.0

    def fault() -> str | None:
        return chance.choice(["request", "answer"]) if chance.random() < faults else None

    def start() -> Scheduler:
        return Scheduler(CONFIG, calls=Faulty(harness, fault))

    running = [start(), start()]
    for _ in range(40):
        match chance.choice(["time", "time", "time", "scheduler", "dispatcher", "bad commit", "bad line", "second"]):
            case "time":
                harness.advance(chance.choice([1, 30, 61, 400]))
            case "scheduler":
                running = [start(), *running[1:]]
            case "second":
                running = running[:1] if len(running) == 2 else [*running, start()]
            case "dispatcher":
                harness.restart()
            case "bad commit":
                _fail_one_commit(harness, monkeypatch, after=chance.random() < 0.5)
            case "bad line":
                faults = chance.choice([0.0, 0.3, 0.9])
        for one in running:
            harness.run(one.run_once())
    faults = 0.0
    harness.advance(60)
    settle(harness, *running)
    settle(harness, *running)
    last = source(harness).last_slot
    told = harness.sql("SELECT trace_now() AS now")[0]["now"]
    assert told - last < timedelta(minutes=2)
    assert slots(harness) == minutes(since, last)
    assert tasks(harness) == slots(harness)


def _fail_one_commit(harness: DispatcherHarness, monkeypatch: pytest.MonkeyPatch, *, after: bool) -> None:
    store = harness.dispatcher.ports.store
    commit = store.commit

    async def once(connection: Any) -> None:
        monkeypatch.setattr(store, "commit", commit)
        if after:
            await commit(connection)
        raise ConnectionResetError

    monkeypatch.setattr(store, "commit", once)


@pytest.mark.parametrize(("catch_up", "made_up_for"), [("none", 1), ("last", 1), ("all", 11)])
def test_what_an_outage_left_out(harness: DispatcherHarness, catch_up: str, made_up_for: int) -> None:
    _to_the_middle_of_a_minute(harness)  # else the first slot may be too old already
    deploy(harness, str(every_minute(catch_up)))
    running = Scheduler(scheduler_config(tolerance_seconds=59), calls=Faulty(harness))
    harness.advance(60)
    settle(harness, running)
    (first,) = slots(harness)
    _to_the_middle_of_a_minute(harness)
    settle(harness, running)
    before = slots(harness)
    harness.advance(660)
    settle(harness, Scheduler(scheduler_config(tolerance_seconds=59), calls=Faulty(harness)))
    found = slots(harness)
    assert len(found) - len(before) == made_up_for
    assert found[: len(before)] == before
    assert found[-1] == before[-1] + MINUTE * 11
    assert first == before[0]


def _to_the_middle_of_a_minute(harness: DispatcherHarness) -> None:
    now: datetime = harness.sql("SELECT trace_now() AS now")[0]["now"]
    harness.advance((90 - now.second) % 60)


def test_two_at_once_fire_each_slot_once_and_in_order(harness: DispatcherHarness) -> None:
    deploy(harness, str(every_minute()))
    since = source(harness).since
    pair = [Scheduler(CONFIG, calls=Faulty(harness)) for _ in range(2)]
    for seconds in (600, 60, 1800):
        harness.advance(seconds)
        settle(harness, *pair)
    assert slots(harness) == minutes(since, source(harness).last_slot)
    assert len(slots(harness)) >= 41
    assert tasks(harness) == slots(harness)


def test_a_source_that_goes_and_comes_back_while_it_runs(harness: DispatcherHarness) -> None:
    deploy(harness, str(every_minute()))
    running = Scheduler(CONFIG, calls=Faulty(harness))
    harness.advance(120)
    settle(harness, running)
    begun = slots(harness)
    assert len(begun) == 2
    deploy(harness, str(Text("d").source("by_hand").job("work", "by_hand")))
    harness.advance(600)
    settle(harness, running)
    assert slots(harness) == begun
    activate(harness, "d", 1)
    back = source(harness).since
    settle(harness, running)
    harness.advance(180)
    settle(harness, running)
    assert slots(harness) == [*begun, *minutes(back, source(harness).last_slot)]
    assert len(slots(harness)) == 5


def test_a_source_that_is_new_while_it_runs(harness: DispatcherHarness) -> None:
    running = Scheduler(CONFIG, calls=Faulty(harness))
    settle(harness, running)
    deploy(harness, str(every_minute("none")))
    settle(harness, running)
    assert slots(harness) == []
    harness.advance(60)
    settle(harness, running)
    assert len(slots(harness)) == 1
