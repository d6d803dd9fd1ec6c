"""Following events and tasks: oldest first, page by page, and nothing is passed by because it was committed late."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from tests.api.support import World
from tests.support.dispatcher import DispatcherHarness
from tracelake.dispatcher.views import settled
from tracelake.model.ids import new_id
from tracelake.wire.base import MAX_CURSOR

_EVENT = """
    INSERT INTO events (org_id, producer, dataset_uuid, dataset_version, unit, cursor, state, routed_seq)
    VALUES ($1, 'late:' || $4::bigint, $2, $3, 'c:' || $4, $4, 'Routed', nextval('events_routed_seq'))
    RETURNING event_id"""
_TASK = (
    "INSERT INTO tasks (task_id, org_id, job_id, inputs, status, ready_at) VALUES ($1, $2, $3, '[]', 'Queued', now())"
)


class Writer:
    """A transaction that a test keeps open as long as it likes."""

    def __init__(self, dsn: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._connection = self._run(asyncpg.connect(dsn))
        self._run(self._connection.execute("BEGIN"))

    def _run(self, work: Any) -> Any:
        return self._loop.run_until_complete(work)

    def sql(self, query: str, *arguments: Any) -> Any:
        return self._run(self._connection.fetchval(query, *arguments))

    def event(self, world: World, cursor: int) -> int:
        return world.ids.events.seal(self.sql(_EVENT, world.org_id, *world.ticks, cursor))

    def end(self, word: str = "COMMIT") -> None:
        self._run(self._connection.execute(word))

    def close(self) -> None:
        self._run(self._connection.close())
        self._loop.close()


@pytest.fixture
def world(harness: DispatcherHarness) -> World:
    return World(harness)


@pytest.fixture
def writers(harness: DispatcherHarness) -> Iterator[list[Writer]]:
    made = [Writer(harness.state_dsn), Writer(harness.state_dsn)]
    try:
        yield made
    finally:
        for writer in made:
            writer.close()


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settled, "_PAUSES", (0.0, 0.0))


def pages_after(world: World, path: str, rows: str, position: object) -> list[Any]:
    """All that comes behind a position, page by page."""
    found: list[Any] = []
    for _ in range(100):
        page = world.user().get(f"{path}&after={position}")
        found += page[rows]
        if "next" not in page:
            return found
        position = page["next"]
    raise AssertionError("the pages never end")


def start(world: World) -> int:
    """Where somebody who wants to see only what is new goes on from."""
    page = world.user().get(f"/v1/events?after={MAX_CURSOR}")
    assert page["events"] == []
    found: int = page["settled"]
    return found


def after(world: World, event_id: int, more: str = "") -> list[int]:
    return [row["event_id"] for row in pages_after(world, f"/v1/events?limit=2{more}", "events", event_id)]


def look(world: World, event_id: int) -> tuple[list[int], int]:
    page = world.user().get(f"/v1/events?after={event_id}")
    return [row["event_id"] for row in page["events"]], page["settled"]


def test_events_come_oldest_first_over_datasets_and_pages(world: World) -> None:
    begin = start(world)
    made = [world.event(world.ticks if number % 2 else world.blocks, cursor=number) for number in range(7)]
    assert after(world, begin) == made
    assert after(world, made[3]) == made[4:]
    assert after(world, begin, "&dataset=blocks") == made[0::2]
    assert start(world) == made[-1]


def test_a_filter_by_state_passes_by_what_is_in_another(world: World) -> None:
    begin = start(world)
    made = [
        world.event(world.ticks, cursor=number, state="Routed" if number % 3 else "AwaitsCommit") for number in range(9)
    ]
    assert after(world, begin, "&state=AwaitsCommit") == made[0::3]


def test_an_event_of_a_transaction_that_is_still_open_is_waited_for(world: World, writers: list[Writer]) -> None:
    begin = start(world)
    first, second = writers
    small = first.event(world, 1)
    large = second.event(world, 2)
    second.end()
    assert look(world, begin) == ([], begin)
    first.end()
    assert look(world, begin) == ([small, large], large)


def test_the_order_of_transactions_is_not_the_order_of_ids(world: World, writers: list[Writer]) -> None:
    """The one with the larger id has the older transaction: by ids of transactions it would be settled."""
    begin = start(world)
    first, second = writers
    assert second.sql("SELECT pg_current_xact_id()::text::bigint") < first.sql(
        "SELECT pg_current_xact_id()::text::bigint"
    )
    small = first.event(world, 1)
    large = second.event(world, 2)
    second.end()
    assert look(world, begin)[0] == []
    first.end()
    assert look(world, begin)[0] == [small, large]


def test_what_is_rolled_back_is_not_waited_for(world: World, writers: list[Writer]) -> None:
    begin = start(world)
    first, second = writers
    first.event(world, 1)
    large = second.event(world, 2)
    second.end()
    assert look(world, begin)[0] == []
    first.end("ROLLBACK")
    assert look(world, begin)[0] == [large]


def test_writers_that_follow_each_other_hold_nobody_up_for_ever(world: World, writers: list[Writer]) -> None:
    begin = start(world)
    first, second = writers
    early = first.event(world, 1)
    assert look(world, begin)[0] == []
    late = second.event(world, 2)
    first.end()
    assert look(world, begin)[0] == [early], "somebody writes at every look, but not the one that was waited for"
    second.end()
    assert look(world, early)[0] == [late]


class Gate:
    """Holds up whoever waits for a writer, until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self.opened = asyncio.Event(), asyncio.Event()
        monkeypatch.setattr(settled, "sleep", self._sleep)

    async def _sleep(self, _seconds: float) -> None:
        self.reached.set()
        await self.opened.wait()


def test_followers_that_wait_for_a_writer_keep_no_place_of_a_reader(
    world: World, harness: DispatcherHarness, writers: list[Writer], monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = start(world)
    writers[0].event(world, 1)
    headers = world.user().headers

    async def get(path: str) -> int:
        return (await harness.call_async("public", "GET", path, headers=headers)).status

    async def scenario() -> list[int]:
        gate = Gate(monkeypatch)
        followers = [asyncio.create_task(get(f"/v1/events?after={begin}")) for _ in range(8)]
        try:
            await gate.reached.wait()
            async with asyncio.timeout(20):
                assert [await get(path) for path in ("/v1/dags", "/v1/tasks", "/v1/datasets")] == [200] * 3
        finally:
            gate.opened.set()
            answers = await asyncio.gather(*followers)
        return answers

    assert harness.run(scenario()) == [200] * 8


def test_who_comes_during_a_round_of_looks_shares_the_next_one(
    world: World, harness: DispatcherHarness, writers: list[Writer], monkeypatch: pytest.MonkeyPatch
) -> None:
    event_id = world.event(world.ticks, cursor=1)
    writers[0].event(world, 2)
    connect = harness.dispatcher.ports.store.connection

    async def scenario(given_up: int) -> tuple[set[int], int]:
        gate, horizon = Gate(monkeypatch), settled.EventHorizon()
        followers = [asyncio.create_task(horizon.reach(connect)) for _ in range(20)]
        await gate.reached.wait()
        for follower in followers[:given_up]:
            follower.cancel()
        gate.opened.set()
        await asyncio.wait(followers)
        return {follower.result() for follower in followers[given_up:]}, horizon._started

    assert harness.run(scenario(given_up=0)) == ({0}, 2), "one writer has been there all the time"
    assert harness.run(scenario(given_up=1)) == ({0}, 2), "a round that was given up counts for nobody"
    writers[0].end()
    assert harness.run(settled.EventHorizon().reach(connect)) > world.ids.events.open(event_id)


def test_a_restarted_dispatcher_goes_on(world: World, harness: DispatcherHarness) -> None:
    begin = start(world)
    made = [world.event(world.ticks, cursor=number) for number in range(2)]
    assert look(world, begin)[0] == made
    harness.restart()
    made.append(world.event(world.ticks, cursor=2))
    assert look(world, made[1])[0] == made[2:]


def test_events_are_looked_up_in_ones_own_org(world: World, harness: DispatcherHarness) -> None:
    other = World(harness)
    mine, theirs = world.event(world.ticks, cursor=1), other.event(other.ticks, cursor=1)
    body = {"events": [{"dataset": "chain__clock_0", "event_id": number} for number in (mine, theirs)]}
    reply = world.user().call("POST", "/v1/event-lookup", body)
    assert [row["event_id"] for row in reply.body["events"]] == [mine]
    body = {"events": [{"dataset": "blocks", "event_id": mine}]}
    assert world.user().call("POST", "/v1/event-lookup", body).body == {"events": []}
    assert look(other, 0)[0] == [theirs]


# --- tasks


def test_tasks_come_oldest_first(world: World) -> None:
    made = [world.task(world.fetch if number % 2 else world.alert) for number in range(7)]
    made.sort()
    rows = pages_after(world, "/v1/tasks?limit=2", "tasks", UUID(int=0))
    assert [row["task_id"] for row in rows] == [str(task_id) for task_id in made]
    rows = pages_after(world, "/v1/tasks?limit=2&dag=alarm", "tasks", made[0])
    assert {row["job"] for row in rows} == {"alert"}


def settled_at(world: World) -> datetime:
    page = world.user().get(f"/v1/tasks?after={UUID(int=2**128 - 1)}")
    assert page["tasks"] == []
    return datetime.fromtimestamp((UUID(page["settled"]).int >> 80) / 1000, UTC)


def test_tasks_are_settled_up_to_the_oldest_transaction_that_writes_some(world: World, writers: list[Writer]) -> None:
    writer = writers[0]
    began: datetime = writer.sql("SELECT now()")
    late = new_id()
    writer.sql(_TASK, late, world.org_id, world.fetch)
    reached = settled_at(world)
    assert reached <= began - settled.CLOCKS_DIFFER
    page = world.user().get(f"/v1/tasks?after={UUID(int=0)}")
    assert page["tasks"] == []
    writer.end()
    rows = pages_after(world, "/v1/tasks?limit=9", "tasks", UUID(page["settled"]))
    assert [row["task_id"] for row in rows] == [str(late)], "whoever goes on from what was settled sees it"


def test_a_transaction_that_does_not_end_is_not_waited_for(
    world: World, writers: list[Writer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settled, "LONGEST", timedelta(0))
    began: datetime = writers[0].sql("SELECT now()")
    writers[0].sql(_TASK, new_id(), world.org_id, world.fetch)
    now: datetime = world.sql("SELECT clock_timestamp()")[0][0]
    assert began < now
    assert settled_at(world) >= now - settled.CLOCKS_DIFFER - timedelta(milliseconds=1)


def test_tasks_are_looked_up_in_ones_own_org(world: World, harness: DispatcherHarness) -> None:
    other = World(harness)
    mine, theirs = world.task(world.fetch, "Running"), other.task(other.fetch)
    body = {"task_ids": [str(mine), str(theirs), str(new_id())]}
    reply = world.user().call("POST", "/v1/task-lookup", body)
    assert [(row["task_id"], row["status"]) for row in reply.body["tasks"]] == [(str(mine), "Running")]


@pytest.mark.parametrize(
    "path",
    [
        f"/v1/tasks?after={UUID(int=0)}&status=Failed",
        f"/v1/tasks?after={UUID(int=0)}&cursor={UUID(int=0)}",
        "/v1/events?after=1&cursor=1",
        "/v1/events?after=x",
    ],
)
def test_what_does_not_go_together_is_refused(world: World, path: str) -> None:
    reply = world.user().call("GET", path)
    assert (reply.status, reply.code) == (422, "body_invalid")


def test_names_that_nothing_has_are_said(world: World) -> None:
    assert world.user().call("GET", "/v1/events?after=1&dataset=none").code == "dataset_not_found"
    assert world.user().call("GET", f"/v1/tasks?after={UUID(int=0)}&dag=none").code == "dag_not_found"
