"""The lifecycle's own statements (lock in order, compare and set) by two drivers, 16 connections each.

Both run the same SQL text with the same arguments on the same rows, in one explicit transaction, prepared once, with
binary results. psycopg is imported by name: it is installed beside Trace for this benchmark and is no part of it.
"""

import asyncio
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import Any, Protocol

import asyncpg
from msgspec import structs

from tracelake.dispatcher.engine.plan import StateChange
from tracelake.dispatcher.engine.tables import task_rows
from tracelake.model.ids import new_id, new_secret_id
from tracelake.model.task import Status, Task

CONNECTIONS = 16
ROWS = 32
"""Tasks that each connection owns, and the larger of the two transaction sizes."""


class Session(Protocol):
    async def transact(self, lock: tuple[Any, ...], update: tuple[Any, ...]) -> int:
        """BEGIN, lock, update, COMMIT; answers how many rows were locked."""
        ...

    async def close(self) -> None: ...


class AsyncpgSession:
    def __init__(self, connection: Any) -> None:
        self._connection = connection

    @classmethod
    async def open(cls, dsn: str) -> "AsyncpgSession":
        return cls(await asyncpg.connect(dsn))

    async def transact(self, lock: tuple[Any, ...], update: tuple[Any, ...]) -> int:
        connection = self._connection
        await connection.execute("BEGIN")
        locked = await connection.fetch(task_rows._LOCK_TASKS, *lock)
        statement, *arguments = update
        tag = await connection.execute(statement, *arguments)
        await connection.execute("COMMIT")
        assert tag == f"UPDATE {len(locked)}"
        return len(locked)

    async def close(self) -> None:
        await self._connection.close()


class PsycopgSession:
    def __init__(self, connection: Any, cursor: Any) -> None:
        self._connection = connection
        self._cursor = cursor

    @classmethod
    async def open(cls, dsn: str) -> "PsycopgSession":
        psycopg = import_module("psycopg")
        # The raw cursor takes $1, $2, ... as Postgres itself does: the same text, and no rewriting to pay for.
        connection = await psycopg.AsyncConnection.connect(
            dsn, autocommit=True, prepare_threshold=0, cursor_factory=psycopg.AsyncRawCursor
        )
        return cls(connection, connection.cursor(binary=True))

    async def transact(self, lock: tuple[Any, ...], update: tuple[Any, ...]) -> int:
        cursor = self._cursor
        await cursor.execute("BEGIN")
        await cursor.execute(task_rows._LOCK_TASKS, lock)
        locked = await cursor.fetchall()
        statement, *arguments = update
        await cursor.execute(statement, arguments)
        assert cursor.rowcount == len(locked)
        await cursor.execute("COMMIT")
        return len(locked)

    async def close(self) -> None:
        await self._connection.close()


class Work:
    """Running tasks, `ROWS` for each connection, whose leases are extended again and again."""

    def __init__(self) -> None:
        self._tasks: list[list[Task]] = []
        self._claimed = datetime.now(UTC)

    async def store(self, dsn: str) -> None:
        connection = await asyncpg.connect(dsn)
        org_id, job_id = new_id(), new_id()
        await connection.execute("INSERT INTO orgs VALUES ($1, 'bench')", org_id)
        await connection.execute(
            """INSERT INTO jobs (job_id, org_id, dag_name, name, runtime, operator, config, config_hash,
                                 definition_hash, lease_seconds)
               VALUES ($1, $2, 'd', 'j', 'r', 'noop', '{}', 'c', 'd', 120)""",
            job_id, org_id,
        )  # fmt: skip
        for _ in range(CONNECTIONS):
            own = [
                Task(
                    task_id=new_id(),
                    org_id=org_id,
                    job_id=job_id,
                    status=Status.RUNNING,
                    attempt=1,
                    max_attempts=3,
                    lease_token=new_secret_id(),
                    lease_expires_at=self._claimed,
                    claimed_at=self._claimed,
                    worker_id="bench",
                )
                for _ in range(ROWS)
            ]
            await connection.executemany(
                """INSERT INTO tasks (task_id, org_id, job_id, status, attempt, max_attempts, lease_token,
                                      lease_expires_at, claimed_at, worker_id, inputs)
                   VALUES ($1, $2, $3, 'Running', 1, 3, $4, $5, $5, 'bench', '[]')""",
                [(task.task_id, org_id, job_id, task.lease_token, self._claimed) for task in own],
            )
            self._tasks.append(own)
        await connection.close()

    def arguments(self, worker: int, count: int, number: int) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        own = [self._tasks[worker][(number * count + i) % ROWS] for i in range(count)]
        lease = datetime.now(UTC) + timedelta(seconds=120)
        changes = [StateChange(task, structs.replace(task, lease_expires_at=lease)) for task in own]
        statement, arguments = task_rows.update_statement(changes)
        return ([task.task_id for task in own], []), (statement, *arguments)


class Driver:
    def __init__(self, sessions: Sequence[Session], work: Work) -> None:
        self._sessions = sessions
        self._work = work
        self.cpu_us: dict[int, list[float]] = {}
        """This process's time per transaction, by rows in it: what the driver costs in Python."""

    async def rate(self, transactions: int, count: int) -> float:
        left = transactions
        cpu_before, started = time.process_time(), time.perf_counter()

        async def worker(number: int) -> None:
            nonlocal left
            turn = 0
            while left > 0:
                left -= 1
                turn += 1
                lock, update = self._work.arguments(number, count, turn)
                assert await self._sessions[number].transact(lock, update) == count

        async with asyncio.TaskGroup() as group:
            for number in range(len(self._sessions)):
                group.create_task(worker(number))
        seconds = time.perf_counter() - started
        self.cpu_us.setdefault(count, []).append((time.process_time() - cpu_before) / transactions * 1e6)
        return transactions / seconds

    async def close(self) -> None:
        for session in self._sessions:
            await session.close()
