"""A scheduler's own clock means nothing, and whatever happens between its look and its fire does no harm."""

import asyncio
import time
from datetime import datetime
from typing import Any
from uuid import UUID

import pytest

from tests.deploy.support import Text
from tests.scheduler.support import CatchUp, FakeDispatcher, Faulty, at
from tests.scheduler.test_loop import CONFIG as FAKE_CONFIG
from tests.scheduler.test_loop import settle as settle_fake
from tests.scheduler.test_restarts import CONFIG, MINUTE, every_minute, minutes, settle, slots, source, tasks
from tests.support.dags import activate, deploy
from tests.support.dispatcher import DispatcherHarness
from tracelake.scheduler import Scheduler
from tracelake.wire.sources import CronSourcesReply, FireReply


@pytest.mark.parametrize("off", [-86400.0, -300.0, 300.0, 7200.0, 400 * 86400.0])
@pytest.mark.parametrize("catch_up", ["none", "last", "all"])
def test_a_machine_whose_clock_is_wrong_fires_as_any_other(
    monkeypatch: pytest.MonkeyPatch, off: float, catch_up: CatchUp
) -> None:
    """Minutes, hours or a year: slots are due by what the Dispatcher says, and no wait is longer than a look."""
    wrong = time.time() + off
    monkeypatch.setattr(time, "time", lambda: wrong)
    dispatcher = FakeDispatcher()
    dispatcher.add(catch_up)
    running = Scheduler(FAKE_CONFIG, calls=dispatcher)
    for _ in range(6):
        dispatcher.advance(30)
        assert 0 < settle_fake(running) <= FAKE_CONFIG.poll_seconds
    assert dispatcher.fired == [at("12:01"), at("12:02"), at("12:03")]


class Between(Faulty):
    """Something happens once, after the look and before the first fire."""

    def __init__(self, harness: DispatcherHarness, happens: Any) -> None:
        super().__init__(harness)
        self._happens = happens

    async def fire_cron(self, job_id: UUID, slot: datetime) -> FireReply:
        happens, self._happens = self._happens, None
        if happens is not None:
            await happens()
        return await super().fire_cron(job_id, slot)


def test_a_scheduler_that_dies_between_look_and_fire_leaves_it_to_the_next(harness: DispatcherHarness) -> None:
    deploy(harness, str(every_minute()))
    since = source(harness).since
    harness.advance(300)

    async def dies() -> None:
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        harness.run(Scheduler(CONFIG, calls=Between(harness, dies)).run_once())
    assert slots(harness) == []
    settle(harness, Scheduler(CONFIG, calls=Faulty(harness)))
    assert slots(harness) == minutes(since, source(harness).last_slot)
    assert len(slots(harness)) == 5


def test_another_scheduler_that_fires_everything_between_look_and_fire(harness: DispatcherHarness) -> None:
    deploy(harness, str(every_minute()))
    since = source(harness).since
    harness.advance(600)
    other = Scheduler(CONFIG, calls=Faulty(harness))

    async def overtakes() -> None:
        while await other.run_once() == 0.0:
            pass

    settle(harness, Scheduler(CONFIG, calls=Between(harness, overtakes)))
    assert slots(harness) == minutes(since, source(harness).last_slot)
    assert tasks(harness) == slots(harness)


def changed(schedule: str) -> Text:
    return (
        Text("d").source("tick", source={"kind": "cron", "schedule": schedule, "catch_up": "all"}).job("work", "tick")
    )


@pytest.mark.parametrize("back", [False, True])
def test_a_deploy_between_look_and_fire(harness: DispatcherHarness, back: bool) -> None:
    """The slots of the old version are not fired for the new one; after a rollback only those that it missed are."""
    deploy(harness, str(every_minute()))
    harness.advance(300)
    other = DispatcherHarness.start(harness.state_dsn, harness.queue_dsn, harness.home / "other")

    async def deploys() -> None:
        def change() -> None:
            deploy(other, str(changed("0 0 1 1 *")))
            if back:
                activate(other, "d", 1)

        await asyncio.get_running_loop().run_in_executor(None, change)

    try:
        settle(harness, Scheduler(CONFIG, calls=Between(harness, deploys)))
    finally:
        other.stop()
    if not back:
        assert slots(harness) == []
        return
    # The job is the same as when it was looked at, so what was under way is taken; it was due while it counted.
    taken = slots(harness)
    assert taken == sorted(set(taken))
    harness.advance(120)
    settle(harness, Scheduler(CONFIG, calls=Faulty(harness)))
    later = slots(harness)[len(taken) :]
    assert later == [later[0], later[0] + MINUTE]
    assert tasks(harness) == slots(harness)


def test_a_dispatcher_that_is_replaced_between_look_and_fire(harness: DispatcherHarness) -> None:
    deploy(harness, str(every_minute()))
    since = source(harness).since
    harness.advance(240)
    look: list[CronSourcesReply] = [harness.run(Faulty(harness).cron_sources())]
    harness.restart()

    class Remembering(Faulty):
        async def cron_sources(self) -> CronSourcesReply:
            return look.pop() if look else await super().cron_sources()

    settle(harness, Scheduler(CONFIG, calls=Remembering(harness)))
    assert slots(harness) == minutes(since, source(harness).last_slot)
