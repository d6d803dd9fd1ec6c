"""Thousands of slots, one a second, while schedulers and Dispatchers are killed: what `catch_up` says is fired, and
nothing else.

All are processes of their own and die by SIGKILL, a Dispatcher also between its commit and its answer. The clock is the
store's. It stands still and jumps when the test says so, so that the slots which must be fired are known to the second.
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
from tracelake.client.stack import LocalStack, ObjectStoreAddress
from tracelake.settings import Settings
from tracelake.settings.home import Home
from tracelake.stack import listeners

SECOND = timedelta(seconds=1)
TOLERANCE = 20
"""Of `none`: how many of the newest slots it takes."""
POINTS = ("before commit", "after commit", "before reply")

# Between two slots.
_STANDING_CLOCK = """
    CREATE TABLE test_clock (now timestamptz NOT NULL);
    INSERT INTO test_clock VALUES (date_trunc('second', statement_timestamp()) + interval '500 ms');
    CREATE OR REPLACE FUNCTION trace_now() RETURNS timestamptz LANGUAGE sql STABLE
        AS $$ SELECT now FROM test_clock $$;"""

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
            LocalStack(
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
            "TRACE_SCHEDULER_TOLERANCE_SECONDS": str(TOLERANCE),
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
    async def stop_the_clock() -> None:
        async with storm.harness.dispatcher.ports.store.connection() as connection:
            await connection.execute(_STANDING_CLOCK)

    storm.run(stop_the_clock())
    running = Schedulers(storm)
    try:
        yield running
    finally:
        while running.running:
            storm.run(running.kill(0))


def every_second(catch_up: str) -> Text:
    source = {"kind": "cron", "schedule": "* * * * * *", "catch_up": catch_up}
    return Text(catch_up).source("tick", source=source).job("work", "tick")


def fired(storm: Storm, dag: str) -> list[datetime]:
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


def newest_slot(storm: Storm) -> datetime:
    now: datetime = storm.harness.sql("SELECT trace_now() AS now")[0]["now"]
    return now.replace(microsecond=0)


def jump(storm: Storm, seconds: int) -> None:
    storm.harness.sql("UPDATE test_clock SET now = now + make_interval(secs => $1)", seconds)


def check(storm: Storm, schedulers: Schedulers, seed: int, rounds: int, most: int) -> None:
    chance = random.Random(seed)
    expected: dict[str, list[datetime]] = {"all": [], "last": [], "none": []}
    for catch_up in expected:
        deploy(storm.harness, str(every_second(catch_up)))
    storm.run(schedulers.start())
    due = 0
    for _ in range(rounds):
        seconds = chance.randint(1, most)
        missed = [newest_slot(storm) + SECOND * number for number in range(1, seconds + 1)]
        jump(storm, seconds)
        made_up_for = {"all": missed, "last": missed[-1:], "none": missed[-TOLERANCE:]}
        for catch_up, slots in made_up_for.items():
            expected[catch_up] += slots
        here = sum(map(len, made_up_for.values()))
        due += here
        # Somewhere in what is due now, somebody dies.
        storm.receive(due - chance.randint(1, here))
        trouble(storm, schedulers, chance)
        storm.receive(due)
    for catch_up, slots in expected.items():
        assert fired(storm, catch_up) == slots, f"{catch_up}: each of them, once, in order"
        assert tasks(storm, catch_up) == slots, catch_up
    assert storm.kills + schedulers.killed >= rounds // 3


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
    check(storm, schedulers, seed=1, rounds=10, most=250)


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("seed", range(5))
def test_tens_of_thousands_of_slots(storm: Storm, schedulers: Schedulers, seed: int) -> None:
    check(storm, schedulers, seed, rounds=60, most=400)
