"""The loop of the sink: maintains the table of every buffered dataset, and drains its queue.

It polls the Dispatcher for the list of datasets. Any number of sinks may run: messages that one has received are hidden
from the others, and commits of one table are serialised. Datasets belong to different orgs, so none waits for another:
each has a drain of its own, and tables are created and migrated concurrently.
"""

import asyncio
import logging
from collections.abc import Callable, Set
from contextlib import suppress
from uuid import UUID

import msgspec

from tracelake.errors import TraceError
from tracelake.ports import Queue
from tracelake.sink.batch_commit import LargeBatches
from tracelake.sink.config import SinkConfig
from tracelake.sink.drain import DatasetDrain
from tracelake.sink.fetch import Artifacts
from tracelake.sink.report import SinkCalls, SinkReporter
from tracelake.sink.retrying import Retrying, StoppedError
from tracelake.sink.store import TableStore
from tracelake.sink.store_pool import StorePool
from tracelake.storage.data_connection import StoreAwayError
from tracelake.wire.buffers import BufferedDataset, TablesDroppedRequest, TableSize, TablesMeasuredRequest

logger = logging.getLogger(__name__)

_AGAIN_SECONDS = 10.0
_FORGET_SECONDS = 3600.0
"""How often a sink deletes records of old batches."""
_MEASURE_SECONDS = 30.0
"""How often a sink counts rows of tables."""


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
        self._stores = StorePool(data_dsn)
        self._large = large
        self._drains: dict[UUID, tuple[DatasetDrain, asyncio.Task[None]]] = {}
        self._forget_at = 0.0
        self._forgetting: asyncio.Task[None] | None = None
        self._measure_at = 0.0
        self._measuring: asyncio.Task[None] | None = None
        self._measured: list[TableSize] = []
        self._declared: dict[UUID, BufferedDataset] = {}
        """The Dispatcher's last declarations."""
        self._tables: dict[UUID, BufferedDataset] = {}
        """The declarations that this sink has applied to the tables."""
        self._changes: dict[UUID, asyncio.Task[None]] = {}
        self._drops: dict[UUID, asyncio.Task[None]] = {}
        """Tables of purged DAGs that are being dropped."""

    async def run(self, stop: asyncio.Event) -> None:
        """Runs until `stop`; messages held then become visible to other sinks."""
        failures = 0
        try:
            while not stop.is_set():
                try:
                    await self._look(stop)
                    if self._forgetting is None or self._forgetting.done():
                        # In a task of its own, since it may wait long for a connection.
                        self._forgetting = asyncio.create_task(self._forget())
                    if self._measuring is None or self._measuring.done():
                        self._measuring = asyncio.create_task(self._measure())
                    failures = 0
                except TraceError as error:
                    failures += 1
                    logger.warning("the tables are not known yet", extra={"reason": str(error)})
                pause = self._config.backoff.seconds(failures) if failures else self._config.poll_seconds
                try:
                    await asyncio.wait_for(stop.wait(), pause)
                except TimeoutError:
                    continue
        finally:
            stop.set()
            at_work = [*(task for _, task in self._drains.values()), *self._changes.values(), *self._drops.values()]
            at_work += [task for task in (self._forgetting, self._measuring) if task is not None]
            await asyncio.gather(*at_work, return_exceptions=True)
            self._drains.clear()
            self._stores.close()

    async def _look(self, stop: asyncio.Event) -> None:
        """Start drains and migrations for the datasets that the Dispatcher lists."""
        reply = await self._calls.buffers()
        await self._leave(self._drains.keys() - {listed.dataset_uuid for listed in reply.datasets})
        for dataset_uuid in reply.removed:
            if dataset_uuid not in self._drops:
                self._drops[dataset_uuid] = asyncio.create_task(self._drop(dataset_uuid, stop))
        for listed in reply.datasets:
            dataset = msgspec.structs.replace(listed, backlog=None)
            running = self._drains.get(dataset.dataset_uuid)
            if running is None or running[1].done():
                self._start(dataset, stop)
            elif running[0].newest != dataset:
                running[0].follow(dataset)
            self._declared[dataset.dataset_uuid] = dataset
            if self._tables.get(dataset.dataset_uuid) != dataset and dataset.dataset_uuid not in self._changes:
                # A deployed dataset gets its table before the first batch.
                self._changes[dataset.dataset_uuid] = asyncio.create_task(self._follow(dataset.dataset_uuid, stop))

    async def _leave(self, unlisted: Set[UUID]) -> None:
        """End the drains of datasets that are purged. Batches that they hold become visible, and nobody merges them."""
        ended: list[asyncio.Task[None]] = []
        for dataset_uuid in unlisted:
            ended.append(self._drains.pop(dataset_uuid)[1])
            if (change := self._changes.get(dataset_uuid)) is not None:
                ended.append(change)
            self._declared.pop(dataset_uuid, None)
            self._tables.pop(dataset_uuid, None)
        for task in ended:
            task.cancel()
        await asyncio.gather(*ended, return_exceptions=True)

    async def _drop(self, dataset_uuid: UUID, stop: asyncio.Event) -> None:
        """Drop a table and report it, however long it takes. A thread that still merges into it has its lock."""
        retrying = Retrying(str(dataset_uuid), self._config.backoff, stop, lambda _: None)
        try:
            await retrying.until_done(lambda: self._stores.run(lambda store: store.drop(dataset_uuid)))
            request = TablesDroppedRequest(dataset_uuids=[dataset_uuid])
            await retrying.until_done(lambda: self._calls.tables_dropped(request))
            logger.info("a table of a purged DAG is dropped", extra={"dataset_uuid": str(dataset_uuid)})
        except StoppedError:
            return
        except Exception:
            logger.exception("a table cannot be dropped", extra={"dataset_uuid": str(dataset_uuid)})
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), _AGAIN_SECONDS)
        finally:
            del self._drops[dataset_uuid]

    async def _follow(self, dataset_uuid: UUID, stop: asyncio.Event) -> None:
        """Migrate the table to its last declaration, however long it takes."""
        declared = self._declared[dataset_uuid]
        context = {"org": declared.org, "dataset": declared.name}
        retrying = Retrying(declared.name, self._config.backoff, stop, lambda _: None)

        def follow(store: TableStore) -> BufferedDataset:
            dataset = self._declared[dataset_uuid]
            store.follow(dataset)
            return dataset

        try:
            dataset = await retrying.until_done(lambda: self._stores.run(follow))
            await self._announce(dataset, retrying)
            self._tables[dataset_uuid] = dataset
            logger.info("a table is kept", extra=context)
        except StoppedError:
            return
        except Exception:
            logger.exception("a table cannot be made what it should be", extra=context)
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), _AGAIN_SECONDS)
        finally:
            del self._changes[dataset_uuid]

    async def _announce(self, dataset: BufferedDataset, retrying: Retrying) -> None:
        """Report changes of writers, also those of a sink that died before it could."""
        commits = await retrying.until_done(
            lambda: self._stores.run(lambda store: store.find_unannounced(dataset.dataset_uuid))
        )
        reporter = SinkReporter(dataset, self._calls, retrying, lambda _: None)
        for commit in commits:
            await reporter.announce(commit)
        if commits:
            await retrying.until_done(
                lambda: self._stores.run(lambda store: store.mark_announced(dataset.dataset_uuid, commits))
            )

    async def _forget(self) -> None:
        """Delete a limited number of old records; the next round continues."""
        now = asyncio.get_running_loop().time()
        if now >= self._forget_at:
            self._forget_at = now + _FORGET_SECONDS
            try:
                if await self._stores.run(lambda store: store.forget()):
                    self._forget_at = now
            except StoreAwayError as away:
                logger.warning("nothing is forgotten yet", extra={"reason": str(away)})

    async def _measure(self) -> None:
        """Report how many rows the tables have, if that changed. The next round tells it again, so one may be lost."""
        now = asyncio.get_running_loop().time()
        if now < self._measure_at:
            return
        self._measure_at = now + _MEASURE_SECONDS
        try:
            sizes = await self._stores.run(lambda store: store.measure())
            if sizes and sizes != self._measured:
                await self._calls.tables_measured(TablesMeasuredRequest(tables=sizes))
                self._measured = sizes
        except (StoreAwayError, TraceError) as error:
            logger.warning("rows of tables are not counted", extra={"reason": str(error)})

    def _start(self, dataset: BufferedDataset, stop: asyncio.Event) -> None:
        drain = DatasetDrain(
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
        task.add_done_callback(_log_failure)
        self._drains[dataset.dataset_uuid] = (drain, task)


def _log_failure(task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("a drain ended and starts anew", exc_info=error, extra={"task": task.get_name()})
