"""However a query ends, and whatever it is doing then, it leaves nothing: no process, file, slot or statement.

The replies to a cancel, and to a query at its time limit, come after everything was given back. Whoever hangs up gets
no reply; then the test waits for it.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from tests.query.support import LocalTransfer, ServiceHarness
from tests.query.test_service import tables
from tests.sandbox.conftest import descendants
from tests.sink.flow import BufferFlow
from tracelake.model.buffered import quoted, table_name
from tracelake.model.ids import new_id
from tracelake.ports import ObjectMeta
from tracelake.query.files import QueryFiles
from tracelake.query.slots import QueryCaller
from tracelake.storage.file_cache import FileCache
from tracelake.wire.contract import Listener

__all__ = ["tables"]

_ENDLESS = "SELECT count(*) FROM range(100000000) a, range(100000) b"
_WAITING = "SELECT count(*) FROM pg_locks WHERE NOT granted"


@dataclass(frozen=True, slots=True)
class HungTransfer(LocalTransfer):
    """A store that takes a request and does not answer until it is released."""

    asked: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)

    def download(self, meta: ObjectMeta, path: Path) -> None:
        self.asked.set()
        self.released.wait(60)
        LocalTransfer.download(self, meta, path)


async def poll(condition: Callable[[], Any]) -> None:
    """Until it is so; a condition is a function, or one that has to be awaited."""
    async with asyncio.timeout(20):
        while True:
            state = condition()
            if await state if asyncio.iscoroutine(state) else state:
                return
            await asyncio.sleep(0.01)


Held = AsyncIterator[tuple[str, Callable[[], Any]]]
"""A query, and whether it is in the state that it is to end in."""


class Scene:
    def __init__(self, service: ServiceHarness, org: str, table: UUID) -> None:
        self.service = service
        self.org = org
        self.headers = service.user_headers(org)
        self._queries = service.application.service
        self._table = table

    @asynccontextmanager
    async def waiting(self) -> Held:
        """Others have all engines."""
        async with AsyncExitStack() as stack:
            for number in range(2):
                other = QueryCaller(org=f"other_{number}", subject="ann", is_task=False)
                await stack.enter_async_context(self._queries.slots.engine(other, 0))
            yield "SELECT 1", lambda: self._queries.slots._engines._queues

    @asynccontextmanager
    async def fetching(self) -> Held:
        """The store hangs, also after the query has ended."""
        transfer, files = HungTransfer(self.service.dispatcher.home / "objects"), self._queries.files
        self._queries.files = QueryFiles(FileCache(self.service.home / f"cache_{new_id()}", transfer))
        try:
            yield "SELECT count(*) FROM blocks", transfer.asked.is_set
        finally:
            transfer.released.set()
            self._queries.files = files

    @asynccontextmanager
    async def brokering(self) -> Held:
        """Somebody changes the table: whoever reads it waits for the lock."""
        connection = await asyncpg.connect(self.service.data_dsn)
        try:
            async with connection.transaction():
                await connection.execute(f"LOCK TABLE {quoted(table_name(self._table))} IN ACCESS EXCLUSIVE MODE")

                async def is_waiting() -> bool:
                    return bool(await connection.fetchval(_WAITING))

                yield "SELECT count(*) FROM large", is_waiting
                assert not await is_waiting(), "its statement has ended"
        finally:
            await connection.close()

    @asynccontextmanager
    async def running(self) -> Held:
        pid = self.service._engine.pid or 0
        yield _ENDLESS, lambda: any(cpu_ticks(child) > 20 for child in descendants(pid))
        await poll(lambda: not any(cpu_ticks(child) > 20 for child in descendants(pid)))

    def remains(self) -> list[Any]:
        """What is left of any query of this org."""
        slots = self._queries.slots
        places = (slots._active, slots._engines, slots._heavy)
        links = [link for path in Path("/proc/self/fd").iterdir() if (link := read_link(path))]
        return [
            *self._queries._running,
            *slots._users,
            *(org for place in places for org in (*place._running, *place._queues) if org == self.org),
            *self.service.running,
            *(link for link in links if str(self.service.home / "running") in link),
        ]

    async def ask(self, body: dict[str, Any]) -> Any:
        return await self.service.ask_async(Listener.QUERY, "POST", "/v1/query", body, self.headers)

    async def play(self, state: str, ending: str) -> str | None:
        """The code that the caller gets; None if nobody is there to get one."""
        query_id = str(new_id())
        async with getattr(self, state)() as (sql, is_reached):
            limit = {"timeout_seconds": 3} if ending == "deadline" else {}
            query = asyncio.create_task(self.ask({"sql": sql, "query_id": query_id} | limit))
            if ending != "deadline":
                await poll(is_reached)
            if ending == "cancel":
                path = f"/v1/query/{query_id}"
                await self.service.ask_async(Listener.QUERY, "DELETE", path, None, self.headers)
            elif ending == "disconnect":
                query.cancel()
                await asyncio.wait({query})
                await poll(lambda: not self.remains())
                return None
            reply = await query
            assert self.remains() == []
        code: str = msgspec.json.decode(reply.body)["error"]["code"]
        return code


def read_link(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:  # closed meanwhile
        return ""


def cpu_ticks(pid: int) -> int:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12])


ENDINGS = {"deadline": "query_timeout", "cancel": "query_canceled", "disconnect": None}


def test_a_query_that_ends_leaves_nothing(service: ServiceHarness, tables: BufferFlow) -> None:
    tables.publish([{"key": 1, "value": "x", "amount": "1"}])
    tables.sink()
    catalog = service.call(Listener.QUERY, "GET", "/v1/query/catalog", None, service.user_headers(tables.org))
    table = next(UUID(item["dataset_uuid"]) for item in catalog.body["relations"] if item["name"] == "large")
    scene = Scene(service, tables.org, table)
    for state in ("waiting", "fetching", "brokering", "running"):
        for ending, code in ENDINGS.items():
            assert service.dispatcher.run(scene.play(state, ending)) == code, (state, ending)
    assert service.rows(tables.org, "SELECT count(*) FROM large, blocks") == [[10]]
