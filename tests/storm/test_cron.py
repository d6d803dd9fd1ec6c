"""Thousands of slots while schedulers and Dispatchers are killed: what `catch_up` says is fired, and nothing else.

All are processes of their own and die by SIGKILL, a Dispatcher also between its commit and its answer. The clock is the
store's and jumps from one slot to another, so that every slot which must be fired is known.
"""

import asyncio
import random
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.deploy.support import Text
from tests.faults.crash_driver import ROOT
from tests.storm.support import Storm
from tests.support.dags import deploy
from tracelake.client.stack import ObjectStoreAddress, Stack
from tracelake.processes import listeners
from tracelake.processes.home import Home
from tracelake.processes.settings import Settings

MINUTE = timedelta(minutes=1)
LAND_AT = 5
"""Seconds after a slot: early enough that `none` still takes it."""
POINTS = ("before commit", "after commit", "before reply")

_SCHEDULER = "from tracelake.processes.scheduler import command; command()"


class Schedulers:
    """Processes; each may die at any time."""

    def __init__(self, storm: Storm) -> None:
        self.storm = storm
        self.running: list[Any] = []
        self.killed = 0
        driver = storm.driver
        home = Home(storm.harness.home)
        host = Settings.load({"home": home.root}, environ={}).bind_host
        urls = {name: listeners.url(sock, host) for name, sock in driver.sockets.items()}
        home.write_stack(
            Stack(
                pid=1,
                home=str(home.root),
                public_url=urls["public"],
                task_url=urls["task"],
                internal_url=urls["internal"],
                ca_file=str(storm.harness.tls.ca),
                worker_token_file="",
                service_token_file=str(driver.credentials.service.token_file),
                admin_token_file="",
                queue_dsn_file="",
                data_dsn_file="",
                object_store=ObjectStoreAddress(endpoint=None, region="us-east-1", buckets={}),
            )
        )
        self.environment = driver.environment | {
            "TRACE_SCHEDULER_POLL_SECONDS": "0.1",
            "TRACE_SCHEDULER_BATCH": "25",
        }

    async def start(self) -> None:
        log = (self.storm.harness.home / "scheduler.log").open("ab")
        self.running.append(
            await asyncio.create_subprocess_exec(
                sys.executable, "-c", _SCHEDULER, stderr=log, stdout=log, env=self.environment, cwd=ROOT
            )
        )
        log.close()

    async def kill(self, which: int) -> None:
        process = self.running.pop(which)
        process.kill()
        await process.wait()
        self.killed += 1


@pytest.fixture
def schedulers(storm: Storm) -> Iterator[Schedulers]:
    storm.harness.use_movable_clock()
    running = Schedulers(storm)
    try:
        yield running
    finally:
        while running.running:
            storm.run(running.kill(0))


def every_minute(catch_up: str) -> Text:
    source = {"kind": "cron", "schedule": "* * * * *", "catch_up": catch_up}
    return Text(catch_up).source("tick", source=source).job("work", "tick")


def slots(storm: Storm, dag: str) -> list[datetime]:
    rows = storm.harness.sql(
        """SELECT e.cursor FROM events e JOIN job_outputs o USING (dataset_uuid, dataset_version)
           JOIN jobs j USING (job_id) WHERE j.dag_name = $1 AND j.name = 'tick' ORDER BY e.routed_seq""",
        dag,
    )
    return [datetime.fromtimestamp(row["cursor"], UTC) for row in rows]


def tasks(storm: Storm, dag: str) -> list[datetime]:
    rows = storm.harness.sql(
        "SELECT t.unit_end FROM tasks t JOIN nodes n USING (node_id) WHERE n.dag_name = $1 ORDER BY t.unit_end", dag
    )
    return [datetime.fromtimestamp(row["unit_end"], UTC) for row in rows]


def now(storm: Storm) -> datetime:
    found: datetime = storm.harness.sql("SELECT trace_now() AS now")[0]["now"]
    return found


def slot_at(moment: datetime) -> datetime:
    return moment.replace(second=0, microsecond=0)


def between(first: datetime, last: datetime) -> list[datetime]:
    """Slots from one to the other, both included."""
    return [first + MINUTE * number for number in range(int((last - first) / MINUTE) + 1)]


def check(storm: Storm, schedulers: Schedulers, seed: int, rounds: int, most: int) -> None:
    chance = random.Random(seed)
    jump(storm, 1)
    for catch_up in ("all", "last", "none"):
        deploy(storm.harness, str(every_minute(catch_up)))
    first = slot_at(now(storm)) + MINUTE
    assert now(storm) - slot_at(now(storm)) < timedelta(seconds=50), "the deploys took too long for this test"
    storm.run(schedulers.start())
    landed: list[datetime] = []
    seen: set[datetime] = set()
    in_time = True
    for _ in range(rounds):
        minutes = chance.randint(1, most)
        jump(storm, minutes)
        at = slot_at(now(storm))
        landed.append(at)
        due = len(between(first, at)) + 2 * len(landed)
        # Somewhere in what is due now, somebody dies.
        storm.receive(due - chance.randint(1, minutes + 2))
        trouble(storm, schedulers, chance)
        storm.receive(due)
        end = now(storm)
        in_time &= end - at < MINUTE
        seen.update(between(at, slot_at(end)))
    last = landed[-1]
    fired = slots(storm, "all")
    assert fired[: len(between(first, last))] == between(first, last), "every slot, once, in order"
    assert len(fired) == len(set(fired))
    assert tasks(storm, "all") == fired
    for catch_up in ("last", "none"):
        fired = slots(storm, catch_up)
        assert fired == sorted(set(fired)), "none twice, in order"
        assert set(fired) <= seen, "only what was the newest at some time"
        assert tasks(storm, catch_up) == fired
        if catch_up == "last" or in_time:
            assert set(landed) <= set(fired)
    assert storm.kills + schedulers.killed >= rounds // 3


def jump(storm: Storm, minutes: int) -> None:
    """To shortly after a slot."""
    here = now(storm)
    there = slot_at(here) + MINUTE * minutes + timedelta(seconds=LAND_AT)
    storm.harness.advance((there - here).total_seconds())


def trouble(storm: Storm, schedulers: Schedulers, chance: random.Random) -> None:
    match chance.choice(["dispatcher", "failpoint", "scheduler", "scheduler", "second"]):
        case "dispatcher":
            storm.kill()
        case "failpoint":
            storm.run(storm.driver.arm(chance.choice(POINTS), chance.randint(1, 5)))
            storm.kills += 1
        case "scheduler":
            storm.run(schedulers.kill(chance.randrange(len(schedulers.running))))
            if not schedulers.running:
                storm.run(schedulers.start())
        case "second":
            if len(schedulers.running) < 2:
                storm.run(schedulers.start())


def test_no_slot_is_lost_or_fired_twice(storm: Storm, schedulers: Schedulers) -> None:
    check(storm, schedulers, seed=1, rounds=10, most=450)


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("seed", range(5))
def test_tens_of_thousands_of_slots(storm: Storm, schedulers: Schedulers, seed: int) -> None:
    check(storm, schedulers, seed, rounds=60, most=400)
