"""Drains the queue of one buffered dataset into its table: receive, fetch, parse, stage, merge, report.

A batch is acknowledged only after the Dispatcher has recorded it as committed or as a dead letter. Every earlier step
may be repeated. While a service is away, received batches are kept and retried in place: returning them to the queue
would count as a failure of the batch.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial

from tracelake.errors import TraceError
from tracelake.ports import Queue
from tracelake.rows.reader import BadBatchError
from tracelake.sink.batch_commit import BufferCommitter, LargeBatches
from tracelake.sink.config import SinkConfig
from tracelake.sink.fetch import Artifacts
from tracelake.sink.outcomes import CommitResult, OutdatedError, Refusal
from tracelake.sink.receive import BatchQueue, ReceivedBatch, decode
from tracelake.sink.report import SinkCalls, SinkReporter
from tracelake.sink.retrying import Retrying, StoppedError
from tracelake.sink.store_pool import StorePool
from tracelake.wire.buffers import BufferBatch, BufferedDataset

logger = logging.getLogger(__name__)


class DatasetDrain:
    """Drains the queue of one dataset until it is told to stop."""

    def __init__(
        self,
        dataset: BufferedDataset,
        *,
        config: SinkConfig,
        queue: Queue,
        objects: Artifacts,
        calls: SinkCalls,
        stores: StorePool,
        stop: asyncio.Event,
        large: LargeBatches | None = None,
        on_signal: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._config = config
        self._stop = stop
        self._signal = on_signal
        retrying = Retrying(dataset.name, config.backoff, stop, on_signal)
        self._queue = BatchQueue(
            dataset.queue, queue, retrying, stop, batches=config.batches, visibility=config.visibility_seconds
        )
        self._reporter = SinkReporter(dataset, calls, retrying, on_signal)
        self._make_committer = partial(
            BufferCommitter,
            objects=objects,
            stores=stores,
            retrying=retrying,
            large=large,
            large_bytes=config.large_bytes,
            on_signal=on_signal,
        )
        self._committer = self._make_committer(dataset)
        self._newer: BufferedDataset | None = None

    @property
    def dataset(self) -> BufferedDataset:
        return self._committer.dataset

    @property
    def newest(self) -> BufferedDataset:
        """The declaration in use, or the one that the next batches will use."""
        return self._newer or self.dataset

    def follow(self, dataset: BufferedDataset) -> None:
        """Use this declaration for the next batches; those in progress keep theirs."""
        if dataset.revision >= self.newest.revision:
            self._newer = dataset

    def _take_newer(self) -> None:
        if self._newer is not None:
            self._committer, self._newer = self._make_committer(self._newer), None

    async def run(self) -> None:
        while not self._stop.is_set():
            try:
                await self.run_once(self._config.wait_seconds)
            except StoppedError:
                return
            except TraceError as refusal:
                self._reporter.log_refusal(refusal)

    async def run_once(self, wait_seconds: float = 0.0) -> int:
        """Receive what is in the queue and finish it; returns the number of batches."""
        deliveries = await self._queue.receive(wait_seconds)
        if not deliveries:
            return 0
        self._signal("received")
        async with self._queue.hidden(deliveries):
            received = [item for delivery in deliveries if (item := decode(delivery)) is not None]
            new = [item for item in received if item.is_new]
            # A batch that was received before may have crashed a sink: each is tried alone.
            repeated = await self._still_open([item for item in received if not item.is_new])
            for group in [new, *([item] for item in repeated)]:
                if group:
                    await self._finish_group(group)
        return len(received)

    async def _finish_group(self, group: Sequence[ReceivedBatch]) -> None:
        """A failure of one group does not affect the others: its batches return, and finally become dead letters."""
        try:
            if not group[0].is_new and group[0].delivery.receives >= self._config.max_receives:
                await self._give_up(group[0])
            else:
                await self._finish(group)
        except StoppedError:
            raise
        except TraceError as refusal:
            self._reporter.log_refusal(refusal)
        except Exception:
            logger.exception("batches could not be finished", extra={"dataset": self.dataset.name})

    async def _still_open(self, received: Sequence[ReceivedBatch]) -> Sequence[ReceivedBatch]:
        """The batches that still wait for a sink. Other messages are duplicates, or were left by a sink that died."""
        if not received:
            return received
        reply = await self._reporter.find_open([item.batch.publish_id for item in received])
        await self._ack([item for item in received if item.batch.publish_id not in reply.publish_ids])
        return [
            # A message from before a user dropped the batch has not heard of it.
            item.without_rows() if item.batch.publish_id in reply.dropped else item
            for item in received
            if item.batch.publish_id in reply.publish_ids
        ]

    async def _give_up(self, item: ReceivedBatch) -> None:
        """Reject a batch that was received too often, unless it is in the table and was only not reported."""
        commits = await self._committer.find([item.batch])
        for commit in commits:
            await self._reporter.announce(commit)
        if not commits:
            reason = f"received {item.delivery.receives} times, and no sink could finish with it"
            await self._reporter.reject(Refusal(item.batch, BadBatchError("received_too_often", reason)))
        await self._ack([item])

    async def _finish(self, received: Sequence[ReceivedBatch]) -> None:
        self._take_newer()
        batches = list({item.batch.publish_id: item.batch for item in received}.values())
        if self._has_new_writers(batches) and await self._has_changed():
            self._take_newer()
        result = await self._commit(batches)
        if result.refusals and await self._has_changed():
            # A schema that was deployed just now may accept the rows.
            self._take_newer()
            second = await self._commit([refusal.batch for refusal in result.refusals])
            result = CommitResult(result.commits, []) + second
        reported = await self._reporter.report(result)
        await self._ack([item for item in received if item.batch.publish_id in reported])

    async def _commit(self, batches: Sequence[BufferBatch]) -> CommitResult:
        """Commit under the newest schema."""
        sure = False
        while True:
            try:
                return await self._committer.commit(batches, sure=sure)
            except OutdatedError:
                # Another sink knows a newer schema. If the Dispatcher does not, its state was restored from a backup.
                sure = not await self._has_changed()
                self._take_newer()

    def _has_new_writers(self, batches: Sequence[BufferBatch]) -> bool:
        """Whether a batch is of a writer that was not active yet: by now it may be, and its rows visible."""
        nodes = {batch.unit.node_id for batch in batches if batch.unit is not None}
        return not nodes.issubset(self.dataset.writers)

    async def _has_changed(self) -> bool:
        """Whether the Dispatcher declares a newer schema, or other writers."""
        newer = await self._reporter.find_newer(self.dataset)
        if newer is not None:
            self.follow(newer)
        return self._newer is not None

    async def _ack(self, received: Sequence[ReceivedBatch]) -> None:
        if received:
            await self._queue.ack(received)
            self._signal("acked")
