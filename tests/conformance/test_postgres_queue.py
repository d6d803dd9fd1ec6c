"""The Postgres queue keeps the port's promises, gathers calls, and survives its database."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import asyncpg
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.conformance.queue_machine import QueueMachine
from tests.conformance.queue_suite import Q, QueueSuite, message
from tests.support.postgres import TestCluster
from tracelake.adapters.postgres_queue import PostgresQueue
from tracelake.adapters.postgres_queue.receive_buffer import ReceiveBuffer
from tracelake.db.queue import statements as sql
from tracelake.db.queue.lane import Lane
from tracelake.ports.queue import Delivery, Queue, QueueUnavailableError

START = "2026-01-01 00:00:00+00"


@dataclass
class PostgresHarness:
    """Time stands still at `START` plus what was advanced."""

    dsn: str
    owner_dsn: str
    admin_dsn: str
    elapsed: float = 0.0

    def open(self, max_receives: int = 10) -> PostgresQueue:
        return PostgresQueue(self.dsn, max_receives=max_receives)

    async def advance(self, seconds: float) -> None:
        self.elapsed += seconds
        await self.owner(
            "CREATE OR REPLACE FUNCTION trace_now() RETURNS timestamptz LANGUAGE sql STABLE PARALLEL SAFE AS "
            f"$$ SELECT timestamptz '{START}' + interval '{self.elapsed} seconds' $$"
        )

    async def owner(self, statement: str) -> None:
        await self._execute(self.owner_dsn, statement)

    async def admin(self, statement: str) -> None:
        await self._execute(self.admin_dsn, statement)

    async def terminate(self, name: str = "trace-queue-%") -> None:
        """Ends the adapters' connections and waits until those backends are gone."""
        condition = f"FROM pg_stat_activity WHERE datname = '{self.database}' AND application_name LIKE '{name}'"
        await self.admin(f"SELECT pg_terminate_backend(pid, 10000) {condition}")

    async def allow_connections(self, allow: bool) -> None:
        await self.admin(f'ALTER DATABASE "{self.database}" ALLOW_CONNECTIONS {allow}')

    @property
    def database(self) -> str:
        return self.dsn.split("@/", 1)[1].split("?", 1)[0]

    @staticmethod
    async def _execute(dsn: str, statement: str) -> None:
        connection = await asyncpg.connect(dsn)
        try:
            await connection.execute(statement)
        finally:
            await connection.close()


@pytest.fixture
def harness(cluster: TestCluster, queue_dsn: str) -> PostgresHarness:
    made = PostgresHarness(queue_dsn, cluster.user_dsn(queue_dsn, "trace_state"), cluster.cluster.superuser_dsn())
    asyncio.run(made.advance(0))
    return made


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every statement that any lane runs, by its first word."""
    ran: list[str] = []
    fetch = Lane.fetch

    async def counting(self: Lane, statement: str, *arguments: object) -> object:
        ran.append(statement.split()[0])
        return await fetch(self, statement, *arguments)

    monkeypatch.setattr(Lane, "fetch", counting)
    return ran


def run(harness: PostgresHarness, test: Callable[[PostgresQueue], Awaitable[None]], max_receives: int = 10) -> None:
    async def main() -> None:
        queue = harness.open(max_receives)
        try:
            await test(queue)
        finally:
            await queue.close()

    asyncio.run(main())


async def until_available(call: Callable[[], Awaitable[object]]) -> None:
    async with asyncio.timeout(30):
        while True:
            try:
                await call()
            except QueueUnavailableError:
                await asyncio.sleep(0.01)
            else:
                return


class TestPostgresQueue(QueueSuite):
    pass


def test_it_is_a_queue() -> None:
    queue: Queue = PostgresQueue("postgresql:///nowhere")
    assert queue


def test_against_the_model(harness: PostgresHarness) -> None:
    class Machine(QueueMachine):
        def __init__(self) -> None:
            asyncio.run(harness.owner("TRUNCATE messages, dead_letters"))
            harness.elapsed = 0
            asyncio.run(harness.advance(0))
            super().__init__()

    Machine.harness = harness
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=25, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


def test_concurrent_calls_become_few_statements(harness: PostgresHarness, statements: list[str]) -> None:
    async def test(queue: PostgresQueue) -> None:
        await asyncio.gather(*(queue.publish([message(str(n))]) for n in range(64)))
        assert len(statements) <= 2
        statements.clear()
        shares = await asyncio.gather(*(queue.receive(Q, 1, 60) for _ in range(64)))
        assert len({d.key for share in shares for d in share}) == 64
        assert len(statements) <= 2
        statements.clear()
        assert await asyncio.gather(*(queue.extend(share, 90) for share in shares)) == [1] * 64
        assert len(statements) <= 2
        statements.clear()
        assert await asyncio.gather(*(queue.ack(share) for share in shares)) == [1] * 64
        assert len(statements) <= 2

    run(harness, test)


def test_one_notification_per_published_batch(harness: PostgresHarness) -> None:
    async def test(queue: PostgresQueue) -> None:
        heard: list[str] = []
        listener = await asyncpg.connect(harness.dsn)
        await listener.add_listener("trace_queue", lambda *event: heard.append(str(event[3])))
        await queue.publish([message(str(n), f"tasks.{n % 3}") for n in range(30)])
        await queue.publish([message(str(n), f"queue-{n:04}-" + "x" * 100) for n in range(100)])
        async with asyncio.timeout(30):
            while len(heard) < 2:
                await asyncio.sleep(0.01)
        await listener.close()
        assert heard == ["tasks.0,tasks.1,tasks.2", "*"]

    run(harness, test)


def test_a_hidden_message_wakes_the_waiter_when_its_time_comes(cluster: TestCluster, queue_dsn: str) -> None:
    """On the real clock: the wait is for the message, not for the next poll."""

    async def main() -> None:
        queue = PostgresQueue(queue_dsn, poll_seconds=3600)
        await queue.publish([message("a")])
        assert len(await queue.receive(Q, 1, 0.2)) == 1
        assert [d.receives for d in await queue.receive(Q, 1, 60, wait_seconds=120)] == [2]
        await queue.close()

    asyncio.run(main())


def test_polling_finds_what_no_notification_told(harness: PostgresHarness) -> None:
    async def test(queue: PostgresQueue) -> None:
        waiting = asyncio.create_task(queue.receive(Q, 1, 60, wait_seconds=120))
        await asyncio.sleep(0)
        await harness.owner(
            "INSERT INTO messages (queue, key, body, published_at, visible_at) "
            f"VALUES ('{Q}', 'silent', '', trace_now(), trace_now())"
        )
        assert [d.key for d in await waiting] == ["silent"]

    run(harness, test)


def test_what_was_published_while_nobody_listened_is_found(harness: PostgresHarness) -> None:
    """The listening connection is away during the publish, and polling is switched off."""

    async def main() -> None:
        queue = PostgresQueue(harness.dsn, poll_seconds=3600)
        await queue.publish([message("first")])
        await queue.ack(await queue.receive(Q, 1, 60, wait_seconds=60))
        assert await queue.depths() == []  # every other connection is open by now, and stays
        waiting = asyncio.create_task(queue.receive(Q, 1, 60, wait_seconds=3600))
        await harness.allow_connections(False)
        await harness.terminate("trace-queue-bell")
        await queue.publish([message("unheard")])
        await harness.allow_connections(True)
        async with asyncio.timeout(30):
            assert [d.key for d in await waiting] == ["unheard"]
        await queue.close()

    asyncio.run(main())


def test_a_message_that_another_session_locks_is_passed_over(harness: PostgresHarness) -> None:
    async def test(queue: PostgresQueue) -> None:
        await queue.publish([message("locked")])
        await queue.publish([message("free")])
        blocker = await asyncpg.connect(harness.owner_dsn)
        async with blocker.transaction():
            await blocker.execute("SELECT 1 FROM messages WHERE key = 'locked' FOR UPDATE")
            assert [d.key for d in await queue.receive(Q, 2, 60)] == ["free"]
        await blocker.close()
        assert [d.key for d in await queue.receive(Q, 2, 60)] == ["locked"]

    run(harness, test)


def test_a_receiver_cancelled_during_its_statement_gives_back(
    harness: PostgresHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(queue: PostgresQueue) -> None:
        await queue.publish([message("a")])
        taken, cancelled = asyncio.Event(), asyncio.Event()
        take = PostgresQueue._take

        async def held_up(self: PostgresQueue, *arguments: Any) -> list[Delivery]:
            deliveries = await take(self, *arguments)
            taken.set()
            await cancelled.wait()
            return deliveries

        monkeypatch.setattr(PostgresQueue, "_take", held_up)
        receiver = asyncio.create_task(queue.receive(Q, 1, 6000, wait_seconds=60))
        await taken.wait()
        receiver.cancel()
        await asyncio.wait([receiver])
        cancelled.set()
        await given_back(queue)

    run(harness, test)


def test_a_receiver_cancelled_after_its_share_gives_back(
    harness: PostgresHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(queue: PostgresQueue) -> None:
        receiver: asyncio.Task[list[Delivery]]
        await queue.publish([message("a")])
        # Runs when the messages were shared out and the receiver has not yet been woken.
        monkeypatch.setattr(ReceiveBuffer, "_answer_those_who_are_done", lambda *_: receiver.cancel())
        receiver = asyncio.create_task(queue.receive(Q, 1, 6000, wait_seconds=60))
        await asyncio.wait([receiver])
        assert receiver.cancelled()
        monkeypatch.undo()
        await given_back(queue)

    run(harness, test)


async def given_back(queue: PostgresQueue) -> None:
    async with asyncio.timeout(30):
        while (await queue.depths())[0].ready == 0:
            await asyncio.sleep(0.01)
    assert [d.receives for d in await queue.receive(Q, 1, 60)] == [1]


def test_dead_letters_are_listed_and_redriven(harness: PostgresHarness) -> None:
    async def test(queue: PostgresQueue) -> None:
        await queue.publish([message("a", body=b"A"), message("b", body=b"B")])
        for _ in range(2):
            await queue.receive(Q, 2, 60)
            await harness.advance(61)
        assert await queue.receive(Q, 2, 60) == []
        dead = await queue.dead_letters(Q, 10)
        assert {(d.key, d.body, d.receives) for d in dead} == {("a", b"A", 2), ("b", b"B", 2)}
        assert "2 times" in dead[0].reason
        assert len(await queue.dead_letters(Q, 1)) == 1
        assert await queue.dead_letters("tasks.other", 10) == []
        waiting = asyncio.create_task(queue.receive(Q, 2, 60, wait_seconds=60))
        ids = [d.message_id for d in dead if d.key == "a"]
        assert await queue.redrive([*ids, "999999", "nonsense"]) == 1
        assert await queue.redrive(ids) == 0
        (delivery,) = await waiting
        assert (delivery.key, delivery.receives) == ("a", 1)
        assert delivery.message_id not in ids
        assert [d.key for d in await queue.dead_letters(Q, 10)] == ["b"]

    run(harness, test, max_receives=2)


def test_dead_letters_are_dropped(harness: PostgresHarness) -> None:
    async def test(queue: PostgresQueue) -> None:
        names = {"a": Q, "b": Q, "c": "tasks.other"}
        await queue.publish([message(key, name) for key, name in names.items()])
        for _ in range(2):
            for name in (Q, "tasks.other"):
                await queue.receive(name, 2, 60)
            await harness.advance(61)
        for name in (Q, "tasks.other"):
            assert await queue.receive(name, 2, 60) == []
        dead = await queue.dead_letters(None, 10)
        assert sorted(letter.key for letter in dead) == ["a", "b", "c"]
        first = next(letter.message_id for letter in dead if letter.key == "a")
        assert await queue.drop_dead([first, "999999", "nonsense"]) == 1
        assert await queue.drop_dead([first]) == 0
        assert sorted(letter.key for letter in await queue.dead_letters(None, 10)) == ["b", "c"]
        assert await queue.drop_dead(None) == 2
        assert await queue.dead_letters(None, 10) == []

    run(harness, test, max_receives=2)


def test_terminated_connections_are_replaced(harness: PostgresHarness) -> None:
    async def test(queue: PostgresQueue) -> None:
        for round_number in range(5):
            await until_available(lambda n=round_number: queue.publish([message(str(n))]))  # type: ignore[misc]
            held = await queue.receive(Q, 10, 60, wait_seconds=60)
            await harness.terminate()
            # An idle connection that was lost is nobody's error; at worst the first call says so.
            await until_available(lambda held=held: queue.extend(held, 60))  # type: ignore[misc]
            await until_available(lambda held=held: queue.ack(held))  # type: ignore[misc]
        assert await queue.depths() == []

    run(harness, test)


def test_a_waiting_receiver_outlives_the_listening_connection(harness: PostgresHarness) -> None:
    async def test(queue: PostgresQueue) -> None:
        waiting = asyncio.create_task(queue.receive(Q, 1, 60, wait_seconds=120))
        await asyncio.sleep(0)
        await harness.terminate("trace-queue-bell")
        await queue.publish([message("a")])
        assert [d.key for d in await waiting] == ["a"]

    run(harness, test)


def test_a_database_that_is_away_is_unavailable_until_it_is_back(harness: PostgresHarness) -> None:
    async def test(queue: PostgresQueue) -> None:
        await queue.publish([message("kept")])
        (held,) = await queue.receive(Q, 1, 6000)
        await harness.allow_connections(False)
        await harness.terminate()
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: queue.publish([message("lost")]),
            lambda: queue.receive(Q, 1, 60, wait_seconds=5),
            lambda: queue.ack([held]),
            lambda: queue.extend([held], 60),
            lambda: queue.absent(Q, ["kept"]),
            lambda: queue.depths(),
            lambda: queue.dead_letters(Q, 1),
            lambda: queue.redrive(["1"]),
            lambda: queue.drop_dead(["1"]),
        ]
        for call in calls:
            with pytest.raises(QueueUnavailableError, match="queue database"):
                await call()
        # Everybody who waits together hears of it.
        outcomes = await asyncio.gather(*(call() for call in calls * 3), return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {QueueUnavailableError}
        await harness.allow_connections(True)
        await until_available(lambda: queue.publish([message("after")]))
        assert [d.key for d in await queue.receive(Q, 10, 60, wait_seconds=60)] == ["after"]
        assert await queue.ack([held]) == 1

    run(harness, test)


def test_nobody_is_left_waiting_by_a_lost_statement(harness: PostgresHarness) -> None:
    """The row lock of another session holds the statement; its backend is ended meanwhile."""

    async def test(queue: PostgresQueue) -> None:
        await queue.publish([message("a")])
        held = await queue.receive(Q, 1, 600)
        blocker = await asyncpg.connect(harness.owner_dsn)
        watcher = await asyncpg.connect(harness.admin_dsn)
        async with blocker.transaction():
            await blocker.execute("SELECT 1 FROM messages FOR UPDATE")
            acks = [asyncio.create_task(queue.ack(held)) for _ in range(5)]
            async with asyncio.timeout(30):
                while not await watcher.fetchval(
                    "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = $1",
                    harness.database,
                ):
                    await asyncio.sleep(0.01)
            await harness.terminate("trace-queue-settle")
            outcomes = await asyncio.gather(*acks, return_exceptions=True)
            assert {type(outcome) for outcome in outcomes} == {QueueUnavailableError}
        await blocker.close()
        await watcher.close()
        assert await queue.ack(held) == 1

    run(harness, test)


def test_closing_ends_the_waiting(harness: PostgresHarness) -> None:
    async def main() -> None:
        queue = harness.open()
        waiting = asyncio.create_task(queue.receive(Q, 1, 60, wait_seconds=600))
        publishing = asyncio.create_task(queue.publish([message("a", "tasks.other")]))
        while not await queue.absent(Q, ["a"]):
            await asyncio.sleep(0)
        await queue.close()
        await publishing
        with pytest.raises(QueueUnavailableError, match="closed"):
            await waiting
        for call in (queue.receive(Q, 1, 60), queue.publish([message("b")]), queue.depths()):
            with pytest.raises(QueueUnavailableError, match="closed"):
                await call

    asyncio.run(main())


def test_every_statement_walks_an_index(harness: PostgresHarness) -> None:
    """With plans made on empty tables, and a million rows to come."""

    async def main() -> None:
        lane = Lane(harness.dsn, "explain", durable=False)
        queries: list[tuple[str, tuple[object, ...]]] = [
            (sql.BACKLOGS, (Q,)),
            (sql.IDLE_BACKLOGS, (Q,)),
            (sql.TAKE_ALLOTTED, (Q, 60.0, 1, ["a"], [1])),
            (sql.TAKE_IF_ALONE, (Q, 60.0, 1, 1)),
            (sql.NEXT_DUE, (Q,)),
            (sql.DELETE_IF_HELD, (["a"], [1], [1])),
            (sql.HIDE_IF_HELD, (["a"], [1], [1], [1.0])),
            (sql.GIVE_BACK_IF_HELD, (["a"], [1], [1])),
            (sql.BURY_IF_HELD, (["a"], [1], [1], "why")),
            (sql.ABSENT, (Q, ["a"])),
            (sql.LIST_DEAD, (Q, 1)),
            (sql.LIST_ALL_DEAD, (1,)),
            (sql.DROP_DEAD, ([1],)),
        ]
        for statement, arguments in queries:
            plan = "\n".join(row[0] for row in await lane.fetch(f"EXPLAIN {statement}", *arguments))
            assert "Seq Scan" not in plan, plan
            assert "Sort" not in plan, plan
            assert "Index" in plan, plan
        await lane.close()

    asyncio.run(main())
