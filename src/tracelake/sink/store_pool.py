"""A few connections to Postgres data for any number of datasets."""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TypeVar

from tracelake.sink.outcomes import OutdatedError, RefusedRowsError, StagingLostError
from tracelake.sink.store import TableStore

T = TypeVar("T")

_LOADS_AT_ONCE = 2


class StorePool:
    """Connections, and the threads that block on them or on Spark: whoever only parses a batch waits for neither."""

    def __init__(self, dsn: Callable[[], str], limit: int = 4) -> None:
        self._dsn = dsn
        self._free: list[TableStore] = []
        self._places = asyncio.Semaphore(limit)
        self._threads = ThreadPoolExecutor(limit, thread_name_prefix="tables")
        self._loading = ThreadPoolExecutor(_LOADS_AT_ONCE, thread_name_prefix="loading")

    @asynccontextmanager
    async def one(self) -> AsyncIterator[TableStore]:
        async with self._places:
            store = self._free.pop() if self._free else self._open()
            try:
                yield store
            except (OutdatedError, RefusedRowsError, StagingLostError):
                self._free.append(store)
                raise
            except Exception:
                store.close()  # it may be somewhere else by now: the next one asks again
                raise
            # After a cancel a thread may still be at it: it is nobody's any more.
            self._free.append(store)

    def _open(self) -> TableStore:
        return TableStore(self._dsn())

    async def run(self, work: Callable[[TableStore], T]) -> T:
        async with self.one() as store:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work, store)

    async def load(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._loading, work)

    def close(self) -> None:
        for store in self._free:
            store.close()
        self._free.clear()
        self._threads.shutdown(wait=False)
        self._loading.shutdown(wait=False)
