"""What can still appear: whoever follows a list must not pass by a row that becomes visible late.

Ids are given before commits, so a row with a smaller id may become visible after one with a larger id. The ids of
transactions do not help: they are given in another order than the ids of rows. What helps is that whoever writes to a
table holds a lock of the mode RowExclusiveLock on it, from before its first row until its transaction is over, and that
everybody can see these locks.

`EventHorizon`: an event id up to which nothing can appear any more. The last id that was given is read first and who
is writing second; once all of these writers are gone, whatever they wrote up to that id is there or never will be.
It is exact. `task_horizon`: task ids start with the time at which they were made, by the clock of the process that made
them; so tasks older than the oldest transaction that writes tasks, by `CLOCKS_DIFFER` and more, are all there. A
transaction of more than `LONGEST` is not waited for.
"""

from asyncio import Lock, sleep
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from tracelake.db.transaction import Connection

Connect: TypeAlias = Callable[[], AbstractAsyncContextManager[Connection]]

CLOCKS_DIFFER = timedelta(seconds=2)
LONGEST = timedelta(seconds=30)

_PAUSES = (0.005, 0.01, 0.02)
"""Seconds that one look waits for writers. Most transactions are shorter; the others are met by a later look."""

_LAST = "SELECT CASE WHEN is_called THEN last_value ELSE last_value - 1 END FROM events_event_id_seq"

_WRITING = """
    FROM pg_locks l WHERE l.locktype = 'relation' AND l.mode = 'RowExclusiveLock' AND l.granted
      AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
      AND l.relation = '{table}'::regclass"""

_EVENT_WRITERS = f"SELECT l.virtualtransaction {_WRITING.format(table='events')}"

# The machine's clock and not trace_now(): that is what ids are made by.
_TASKS_SINCE = f"""
    SELECT clock_timestamp() AS now, (
        SELECT min(a.xact_start) FROM pg_stat_activity a
        WHERE a.pid IN (SELECT l.pid {_WRITING.format(table="tasks")})) AS writing_since"""  # noqa: S608 - as above


class EventHorizon:
    """One for a process: a look that had to leave writers behind is finished by the next one, whoever asks.

    Any number of callers at once cost one round of looks after the other: who waited for a round that began before it
    came takes part in the next one. Nobody holds a connection while it waits.
    """

    def __init__(self) -> None:
        self.since = datetime.now(UTC)
        """When this process began to look."""
        self._reached = 0
        self._open: tuple[int, frozenset[str]] | None = None
        """An id that will be reached when these writers are gone."""
        self._looking = Lock()
        self._started = self._ended = 0
        """The numbers of the last round of looks that began, and of the last one that came to its end."""

    async def reach(self, connect: Connect) -> int:
        """The events up to this id that a statement from now on does not see will never be seen."""
        before = self._started
        async with self._looking:
            if self._ended <= before:  # else a whole round was made while this caller waited
                self._started += 1
                await self._round(connect)
                self._ended = self._started
            return self._reached

    async def _round(self, connect: Connect) -> None:
        async with connect() as connection:
            target = await self._look(connection)
        for pause in _PAUSES:
            if self._reached >= target:
                break
            await sleep(pause)
            async with connect() as connection:
                await self._look(connection)

    async def _look(self, connection: Connection) -> int:
        last = await last_event_id(connection)
        writers = frozenset(row[0] for row in await connection.fetch(_EVENT_WRITERS))
        if self._open is not None and self._open[1].isdisjoint(writers):
            self._reached, self._open = self._open[0], None
        if not writers:
            self._reached, self._open = last, None
        elif self._open is None:
            self._open = (last, writers)
        return last


async def last_event_id(connection: Connection) -> int:
    """The last number that any event was given."""
    last: int = await connection.fetchval(_LAST)
    return last


async def task_horizon(connection: Connection) -> datetime:
    """Tasks that were made before this time and are not seen by the next statement will not appear."""
    row = await connection.fetchrow(_TASKS_SINCE)
    assert row is not None
    now: datetime = row["now"]
    since: datetime = row["writing_since"] or now
    return max(min(now, since), now - LONGEST) - CLOCKS_DIFFER
