"""How many messages a worker has room for."""

import asyncio


class WorkerSlots:
    """How many more messages one queue's receiver may take."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._freed = asyncio.Event()

    async def take_all(self) -> int:
        while self._free == 0:
            self._freed.clear()
            await self._freed.wait()
        count, self._free = self._free, 0
        return count

    def release(self, count: int) -> None:
        self._free += count
        self._freed.set()
