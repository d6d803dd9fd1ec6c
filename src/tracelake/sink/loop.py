"""The sink: keeps the table of every buffered dataset, and drains its queue.

Which datasets there are is the Dispatcher's word, asked for again and again. Any number of sinks may run: what one has
received is hidden from the others, and commits of one table follow each other.
"""

import asyncio
import logging
from collections.abc import Callable
from uuid import UUID

import msgspec

from tracelake.errors import TraceError
from tracelake.ports import Queue
from tracelake.sink.drain import Artifacts, Drain, LargeBatches, SinkCalls, SinkConfig, Stores
from tracelake.sink.store import StoreAwayError
from tracelake.wire.buffers import BufferedDataset

logger = logging.getLogger(__name__)

_FORGET_SECONDS = 3600.0
"""How often a sink looks for batches that came too long ago to be remembered."""


class Sink:
    def __init__(
        self,
        config: SinkConfig,
        *,
        queue: Queue,
        objects: Artifacts,
        calls: SinkCalls,
        data_dsn: Callable[[], str],
        large: LargeBatches | None = None,
    ) -> None:
        self._config = config
        self._queue = queue
        self._objects = objects
        self._calls = calls
        self._stores = Stores(data_dsn)
        self._large = large
        self._drains: dict[UUID, tuple[Drain, asyncio.Task[None]]] = {}
        self._forget_at = 0.0

    async def run(self, stop: asyncio.Event) -> None:
        """Until told to stop; what is held then comes back to somebody else."""
        failures = 0
        try:
            while not stop.is_set():
                try:
                    await self._look(stop)
                    await self._forget()
                    failures = 0
                except (TraceError, StoreAwayError) as error:
                    failures += 1
                    logger.warning("the tables are not known yet", extra={"reason": str(error)})
                pause = self._config.backoff.seconds(failures) if failures else self._config.poll_seconds
                try:
                    await asyncio.wait_for(stop.wait(), pause)
                except TimeoutError:
                    continue
        finally:
            stop.set()
            await asyncio.gather(*(task for _, task in self._drains.values()), return_exceptions=True)
            self._drains.clear()
            self._stores.close()

    async def _look(self, stop: asyncio.Event) -> None:
        """Follow what the Dispatcher says there is."""
        for listed in (await self._calls.buffers()).datasets:
            dataset = msgspec.structs.replace(listed, backlog=None)
            running = self._drains.get(dataset.dataset_uuid)
            if running is None or running[1].done():
                self._start(dataset, stop)
            elif running[0].newest != dataset:
                running[0].follow(dataset)
            else:
                continue
            # Also without a batch: who deploys a dataset finds its table.
            await self._stores.run(lambda store, wanted=dataset: store.follow(wanted))  # type: ignore[misc]
            logger.info("a table is kept", extra={"org": dataset.org, "dataset": dataset.name})

    async def _forget(self) -> None:
        """A little at a time: the next look goes on where more is left."""
        now = asyncio.get_running_loop().time()
        if now >= self._forget_at:
            more = await self._stores.run(lambda store: store.forget())
            self._forget_at = now if more else now + _FORGET_SECONDS

    def _start(self, dataset: BufferedDataset, stop: asyncio.Event) -> None:
        drain = Drain(
            dataset,
            config=self._config,
            queue=self._queue,
            objects=self._objects,
            calls=self._calls,
            stores=self._stores,
            stop=stop,
            large=self._large,
        )
        task = asyncio.create_task(drain.run(), name=f"drain {dataset.name}")
        task.add_done_callback(_tell_failure)
        self._drains[dataset.dataset_uuid] = (drain, task)


def _tell_failure(task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("a drain ended and starts anew", exc_info=error, extra={"task": task.get_name()})
