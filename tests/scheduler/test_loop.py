"""What a scheduler fires, and when it looks again; by a Dispatcher in memory whose clock the test moves."""

import asyncio
import tracemalloc
from collections.abc import Sequence
from datetime import timedelta

import msgspec
import pytest

from tests.scheduler.support import START, CatchUp, FakeDispatcher, at
from tests.support.configs import scheduler_config
from tracelake.errors import TraceError
from tracelake.model.backoff import Backoff
from tracelake.scheduler import Scheduler

CONFIG = scheduler_config(poll_seconds=2.0, tolerance_seconds=60.0, batch=5, backoff=Backoff(0.5, 8.0))


@pytest.fixture
def dispatcher() -> FakeDispatcher:
    return FakeDispatcher()


def scheduler(dispatcher: FakeDispatcher) -> Scheduler:
    return Scheduler(CONFIG, calls=dispatcher)


def settle(*running: Scheduler) -> float:
    """Rounds until nothing is due; answers how long the last one wants to wait."""
    for _ in range(1000):
        waits = [asyncio.run(one.run_once()) for one in running]
        if min(waits) > 0:
            return min(waits)
    raise AssertionError("it never rests")


@pytest.mark.parametrize("catch_up", ["none", "last", "all"])
def test_a_slot_is_fired_once_when_its_time_has_come(dispatcher: FakeDispatcher, catch_up: CatchUp) -> None:
    dispatcher.add(catch_up)
    running = scheduler(dispatcher)
    assert settle(running) == 2.0
    dispatcher.advance(29)
    assert settle(running) == pytest.approx(1.0)
    assert dispatcher.fired == []
    dispatcher.advance(1)
    assert settle(running) == 2.0
    assert dispatcher.fired == [at("12:01")]
    dispatcher.advance(59)
    assert settle(running) == pytest.approx(1.0), "it wakes for the slot, not for its next look"
    dispatcher.advance(-59)
    for _ in range(3):
        dispatcher.advance(60)
        settle(running)
    assert dispatcher.fired == [at("12:01"), at("12:02"), at("12:03"), at("12:04")]


@pytest.mark.parametrize(
    ("catch_up", "expected"),
    [
        ("none", ["12:10"]),
        ("last", ["12:10"]),
        ("all", [f"12:{minute:02}" for minute in range(1, 11)]),
    ],
)
def test_what_was_missed(dispatcher: FakeDispatcher, catch_up: CatchUp, expected: list[str]) -> None:
    dispatcher.add(catch_up)
    dispatcher.now = at("12:10:20")
    settle(scheduler(dispatcher))
    assert dispatcher.fired == [at(text) for text in expected]


def test_of_hourly_slots_none_is_made_up_for_after_the_tolerance(dispatcher: FakeDispatcher) -> None:
    dispatcher.add("none", "0 * * * *")
    dispatcher.now = at("15:01:00.5")
    settle(scheduler(dispatcher))
    assert dispatcher.fired == []
    dispatcher.now = at("16:00:59")
    settle(scheduler(dispatcher))
    assert dispatcher.fired == [at("16:00")]


def test_the_last_of_a_year_is_found_without_the_others(dispatcher: FakeDispatcher) -> None:
    dispatcher.add("last")
    dispatcher.advance(365 * 86400)
    settle(scheduler(dispatcher))
    assert dispatcher.fired == [(START + timedelta(days=365)).replace(second=0)]


def test_nothing_before_its_first_day_is_missed(dispatcher: FakeDispatcher) -> None:
    dispatcher.now = START.replace(year=2020)
    for catch_up in ("none", "last", "all"):
        job_id = dispatcher.add(catch_up)
        dispatcher.sources[job_id] = msgspec.structs.replace(
            dispatcher.sources[job_id], since=START, last_slot=START.replace(year=2019)
        )
    dispatcher.now = START
    settle(scheduler(dispatcher))
    assert dispatcher.fired == []


def test_one_round_makes_up_for_so_many_and_no_more(dispatcher: FakeDispatcher) -> None:
    dispatcher.add("all")
    dispatcher.advance(3600)
    running = scheduler(dispatcher)
    assert asyncio.run(running.run_once()) == 0.0
    assert len(dispatcher.fired) == CONFIG.batch
    settle(running)
    assert dispatcher.fired == [at("12:01") + timedelta(minutes=number) for number in range(60)]


EVERY_SECOND = "* * * * * *"
YEAR = 365 * 86400


@pytest.mark.parametrize(
    ("catch_up", "expected"),
    [("none", range(30, 90)), ("last", [89]), ("all", range(90))],
)
def test_every_second(dispatcher: FakeDispatcher, catch_up: CatchUp, expected: Sequence[int]) -> None:
    dispatcher.now = START + timedelta(seconds=0.25)
    dispatcher.add(catch_up, EVERY_SECOND)
    dispatcher.advance(90)
    running = scheduler(dispatcher)
    assert settle(running) == pytest.approx(0.75), "it wakes for the slot, not for its next look"
    assert dispatcher.fired == [START + timedelta(seconds=1 + number) for number in expected]
    dispatcher.advance(0.75)
    assert settle(running) == 1.0
    assert dispatcher.fired[-1] == START + timedelta(seconds=91)


def test_a_year_of_seconds_is_made_up_for_in_small_steps(dispatcher: FakeDispatcher) -> None:
    """What a round takes does not depend on how much there is to do."""
    dispatcher.add("all", EVERY_SECOND)
    dispatcher.advance(YEAR)
    running = scheduler(dispatcher)
    asyncio.run(running.run_once())
    tracemalloc.start()
    try:
        for _ in range(100):
            assert asyncio.run(running.run_once()) == 0.0
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2**20
    assert dispatcher.fired == [START + timedelta(seconds=1 + number) for number in range(101 * CONFIG.batch)]
    assert dispatcher.calls == 101 * (1 + CONFIG.batch), "one look a round, one call a slot"


def test_seconds_of_none_that_nobody_hears_are_kept_as_one_stretch(dispatcher: FakeDispatcher) -> None:
    job_id = dispatcher.add("none", EVERY_SECOND)
    running = scheduler(dispatcher)
    dispatcher.refuses[job_id] = TraceError("store_unavailable")
    for _ in range(600):
        dispatcher.advance(10)
        asyncio.run(running.run_once())
    assert len(running._owed[job_id]) == 1
    dispatcher.advance(1000)
    asyncio.run(running.run_once())
    assert len(running._owed[job_id]) == 2, "what was not seen in time lies between them"
    dispatcher.refuses.clear()
    before = len(dispatcher.fired)
    asyncio.run(running.run_once())
    assert len(dispatcher.fired) - before == CONFIG.batch
    while asyncio.run(running.run_once()) == 0.0:
        pass
    seconds = [*range(1, 6001), *range(6941, 7001)]
    assert dispatcher.fired == [START + timedelta(seconds=number) for number in seconds]
    assert running._owed == {}


def test_a_clock_that_is_set_back_forgets_nothing_that_was_seen(dispatcher: FakeDispatcher) -> None:
    job_id = dispatcher.add("none", EVERY_SECOND)
    running = scheduler(dispatcher)
    dispatcher.refuses[job_id] = TraceError("store_unavailable")
    for move in (50, 50, -5, 1):
        dispatcher.advance(move)
        asyncio.run(running.run_once())
    dispatcher.refuses.clear()
    settle(running)
    assert dispatcher.fired == [START + timedelta(seconds=1 + number) for number in range(100)]


@pytest.mark.parametrize("catch_up", ["none", "last", "all"])
def test_a_dispatcher_that_is_away_is_asked_less_and_less_often(dispatcher: FakeDispatcher, catch_up: CatchUp) -> None:
    dispatcher.add(catch_up)
    running = scheduler(dispatcher)
    settle(running)
    dispatcher.away = True
    dispatcher.advance(30)
    waits = [asyncio.run(running.run_once()) for _ in range(6)]
    assert 0.5 <= waits[0] < waits[2] < waits[4] <= 8.0
    dispatcher.away = False
    assert settle(running) == 2.0
    assert dispatcher.fired == [at("12:01")]


def test_a_slot_of_none_that_was_seen_in_time_is_repeated_until_it_is_heard(dispatcher: FakeDispatcher) -> None:
    job_id = dispatcher.add("none", "0 * * * *")
    running = scheduler(dispatcher)
    dispatcher.now = at("13:00:01")
    dispatcher.refuses[job_id] = TraceError("store_unavailable")
    asyncio.run(running.run_once())
    dispatcher.now = at("14:30")
    dispatcher.refuses.clear()
    settle(running)
    assert dispatcher.fired == [at("13:00")], "and 14:00 was never seen"


def test_a_source_that_is_refused_holds_up_no_other(dispatcher: FakeDispatcher) -> None:
    dispatcher.refuses[dispatcher.add("all")] = TraceError("body_invalid")
    good = dispatcher.add("all")
    running = scheduler(dispatcher)
    for _ in range(3):
        dispatcher.advance(60)
        assert settle(running) == 2.0
    assert dispatcher.fired == [at("12:01"), at("12:02"), at("12:03")]
    assert dispatcher.sources[good].last_slot == at("12:03")


def test_a_schedule_that_this_version_cannot_read_holds_up_no_other(dispatcher: FakeDispatcher) -> None:
    dispatcher.add("all", "every full moon")
    dispatcher.add("all", time_zone="Mars/Olympus")
    dispatcher.add("all", time_zone="../secret")
    dispatcher.add("all")
    dispatcher.advance(60)
    assert settle(scheduler(dispatcher)) == 2.0
    assert dispatcher.fired == [at("12:01")]


def test_sources_come_and_go(dispatcher: FakeDispatcher) -> None:
    running = scheduler(dispatcher)
    settle(running)
    job_id = dispatcher.add("all")
    dispatcher.advance(60)
    settle(running)
    gone = dispatcher.sources.pop(job_id)
    dispatcher.advance(300)
    settle(running)
    assert dispatcher.fired == [at("12:01")]
    dispatcher.sources[job_id] = msgspec.structs.replace(gone, since=dispatcher.now)
    dispatcher.advance(60)
    settle(running)
    assert dispatcher.fired == [at("12:01"), at("12:07")]


def test_a_source_that_goes_between_look_and_fire(dispatcher: FakeDispatcher) -> None:
    job_id = dispatcher.add("all")
    dispatcher.refuses[job_id] = TraceError("source_not_found")
    dispatcher.advance(600)
    assert settle(scheduler(dispatcher)) == 2.0
    assert dispatcher.calls == 2, "the slots behind the first are not tried"


@pytest.mark.parametrize("catch_up", ["none", "last", "all"])
def test_two_at_once_fire_what_one_does(dispatcher: FakeDispatcher, catch_up: CatchUp) -> None:
    dispatcher.add(catch_up)
    pair = scheduler(dispatcher), scheduler(dispatcher)
    for _ in range(10):
        dispatcher.advance(20)
        settle(*pair)
    assert dispatcher.fired == [at("12:01"), at("12:02"), at("12:03")]


def test_a_clock_that_is_set_back_fires_nothing_again(dispatcher: FakeDispatcher) -> None:
    dispatcher.add("all")
    running = scheduler(dispatcher)
    dispatcher.advance(120)
    settle(running)
    dispatcher.advance(-120)
    settle(running)
    dispatcher.advance(180)
    settle(running)
    assert dispatcher.fired == [at("12:01"), at("12:02"), at("12:03")]


def test_it_stops_when_it_is_told() -> None:
    async def run() -> None:
        dispatcher = FakeDispatcher()
        stop = asyncio.Event()
        task = asyncio.create_task(scheduler(dispatcher).run(stop))
        while not dispatcher.calls:
            await asyncio.sleep(0)
        stop.set()
        await asyncio.wait_for(task, 10)

    asyncio.run(run())
