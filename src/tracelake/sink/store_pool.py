"""A pool of connections to Postgres data that all datasets share."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from tracelake.sink.outcomes import OutdatedError, StagingLostError
from tracelake.sink.store import TableStore
from tracelake.storage.data_connection import RefusedRowsError

T = TypeVar("T")

_LOADS_AT_ONCE = 2


class StorePool:
    """Runs blocking work on connections, and Spark jobs, in threads of its own, so that parsing waits for neither."""

    def __init__(self, dsn: Callable[[], str], limit: int = 4) -> None:
        self._dsn = dsn
        self._free: list[TableStore] = []
        self._places = asyncio.Semaphore(limit)
        self._threads = ThreadPoolExecutor(limit, thread_name_prefix="tables")
        self._loading = ThreadPoolExecutor(_LOADS_AT_ONCE, thread_name_prefix="loading")

    async def run(self, work: Callable[[TableStore], T]) -> T:
        async with self._places:
            store = self._free.pop() if self._free else self._open()
            try:
                result = await asyncio.get_running_loop().run_in_executor(self._threads, work, store)
            except (OutdatedError, RefusedRowsError, StagingLostError):
                self._free.append(store)
                raise
            except Exception:
                store.close()  # the database may have moved: the next store reads the DSN again
                raise
            # After a cancellation a thread may still use the store, which is then given up.
            self._free.append(store)
            return result

    def _open(self) -> TableStore:
        return TableStore(self._dsn())

    async def load(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._loading, work)

    def close(self) -> None:
        for store in self._free:
            store.close()
        self._free.clear()
        self._threads.shutdown(wait=False)
        self._loading.shutdown(wait=False)
