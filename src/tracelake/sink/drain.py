"""One buffered dataset: from its queue into its table, batch by batch or many at once.

A batch is acknowledged only when it is in the table and the Dispatcher knows, or when it is a dead letter and the
Dispatcher knows. Everything before that may be repeated. While something is away, what was received is kept and tried
again in place: giving it back would count as a failure of the batch.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import msgspec
import pyarrow as pa

from tracelake.errors import StoreUnavailableError, TraceError
from tracelake.model.retry import Backoff
from tracelake.ports import Queue, QueueUnavailableError
from tracelake.ports.queue import Delivery
from tracelake.sink.batches import BadBatchError, BatchReader
from tracelake.sink.store import Commit, Loaded, RefusedRowsError, StoreAwayError, TableStore
from tracelake.wire.buffers import (
    BufferBatch,
    BufferCommittedReply,
    BufferCommittedRequest,
    BufferedDataset,
    BufferRejectedReply,
    BufferRejectedRequest,
    BuffersReply,
)

logger = logging.getLogger(__name__)

T = TypeVar("T")

_FETCHES_AT_ONCE = 8
_message = msgspec.json.Decoder(BufferBatch)


class SinkCalls(Protocol):
    async def buffers(self) -> BuffersReply: ...
    async def buffer_committed(self, request: BufferCommittedRequest) -> BufferCommittedReply: ...
    async def buffer_rejected(self, request: BufferRejectedRequest) -> BufferRejectedReply: ...


class Artifacts(Protocol):
    """The part of an object store that a sink uses."""

    async def get(self, uri: str, *, if_match: str | None = None) -> bytes | None: ...


class LargeBatches(Protocol):
    """Loads batches into a staging table by many hands; blocks."""

    def load(
        self, dataset: BufferedDataset, staging: str, batches: Sequence[BufferBatch]
    ) -> "list[Loaded | Refusal]": ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkConfig:
    batches: int = 64
    """So many of one dataset are taken at once."""
    max_receives: int = 10
    visibility_seconds: float = 60.0
    wait_seconds: float = 20.0
    poll_seconds: float = 2.0
    """A table that was deployed meanwhile is seen after so long."""
    large_bytes: int = 32 * 2**20
    """From so many bytes on, batches are worth the price of Spark."""
    backoff: Backoff = field(default_factory=lambda: Backoff(0.2, 10.0))


@dataclass(frozen=True, slots=True)
class Refusal:
    """A batch that cannot be taken."""

    batch: BufferBatch
    error: BadBatchError


@dataclass(frozen=True, slots=True)
class _Held:
    delivery: Delivery
    batch: BufferBatch


class StoppedError(Exception):
    """Told to stop before it was done: what is held comes back to somebody else."""


class Stores:
    """A few connections to Postgres data for any number of datasets."""

    def __init__(self, dsn: Callable[[], str], limit: int = 4) -> None:
        self._dsn = dsn
        self._free: list[TableStore] = []
        self._places = asyncio.Semaphore(limit)

    @asynccontextmanager
    async def one(self) -> AsyncIterator[TableStore]:
        async with self._places:
            store = self._free.pop() if self._free else TableStore(self._dsn())
            try:
                yield store
            except StoreAwayError:
                store.close()  # it may be somewhere else by now: the next one asks again
                raise
            except RefusedRowsError:
                self._free.append(store)
                raise
            # After anything else, a cancel say, a thread may still be at it: it is nobody's any more.
            self._free.append(store)

    async def run(self, work: Callable[[TableStore], T]) -> T:
        async with self.one() as store:
            return await asyncio.to_thread(work, store)

    def close(self) -> None:
        for store in self._free:
            store.close()
        self._free.clear()


class Drain:
    def __init__(
        self,
        dataset: BufferedDataset,
        *,
        config: SinkConfig,
        queue: Queue,
        objects: Artifacts,
        calls: SinkCalls,
        stores: Stores,
        stop: asyncio.Event,
        large: LargeBatches | None = None,
        on_signal: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._config = config
        self._queue = queue
        self._objects = objects
        self._calls = calls
        self._stores = stores
        self._stop = stop
        self._large = large
        self._signal = on_signal
        self.dataset = dataset
        self._reader = BatchReader(dataset.schema)
        self._newer: BufferedDataset | None = None

    @property
    def newest(self) -> BufferedDataset:
        """What it goes by, or will from the next batches on."""
        return self._newer or self.dataset

    def follow(self, dataset: BufferedDataset) -> None:
        """By this schema, from the next batches on: those at work are finished by the one that they began with."""
        self._newer = dataset

    def _take_newer(self) -> None:
        if self._newer is not None:
            self.dataset, self._newer = self._newer, None
            self._reader = BatchReader(self.dataset.schema)

    async def run(self) -> None:
        while not self._stop.is_set():
            try:
                await self.run_once(self._config.wait_seconds)
            except StoppedError:
                return
            except TraceError as refusal:
                # Not acknowledged: it comes back, and in the end it is a dead letter.
                logger.error("the Dispatcher refuses", extra={"dataset": self.dataset.name, "code": refusal.code})

    async def run_once(self, wait_seconds: float = 0.0) -> int:
        """Take what is there and finish with it; how many batches there were."""
        deliveries = await self._receive(wait_seconds)
        if not deliveries:
            return 0
        self._signal("received")
        async with self._hidden(deliveries):
            held = [item for delivery in deliveries if (item := _read(delivery)) is not None]
            worn = [item for item in held if item.delivery.receives >= self._config.max_receives]
            # What came before and was not finished may be what stopped somebody: it is tried alone.
            again = [item for item in held if 1 < item.delivery.receives < self._config.max_receives]
            fresh = [item for item in held if item.delivery.receives <= 1]
            for item in worn:
                reason = f"received {item.delivery.receives} times, and no sink could finish with it"
                await self._reject(Refusal(item.batch, BadBatchError("received_too_often", reason)))
                await self._ack([item])
            for group in [fresh, *([item] for item in again)]:
                if group:
                    await self._finish(group)
        return len(held)

    # -- one group of batches

    async def _finish(self, held: Sequence[_Held]) -> None:
        self._take_newer()
        batches = [item.batch for item in held]
        await self._try(lambda: self._stores.run(lambda store: store.follow(self.dataset)))
        commits, refusals = await self._settle(batches)
        if refusals and await self._has_changed():
            # A schema that was deployed a moment ago may hold what this one does not.
            self._take_newer()
            await self._try(lambda: self._stores.run(lambda store: store.follow(self.dataset)))
            more, refusals = await self._settle([refusal.batch for refusal in refusals])
            commits += more
        for commit in commits:
            await self._announce(commit)
        for refusal in refusals:
            await self._reject(refusal)
        await self._ack(held)

    async def _settle(self, batches: Sequence[BufferBatch]) -> tuple[list[Commit], list[Refusal]]:
        """Into the table, or refused; those that were there before are found and not loaded again."""
        known = await self._try(lambda: self._stores.run(lambda store: store.find(self.dataset, batches)))
        done = {publish_id for commit in known for publish_id in commit.publish_ids}
        fresh = [batch for batch in batches if batch.publish_id not in done]
        if not fresh:
            return known, []
        if self._large is not None and sum(batch.size_bytes for batch in fresh) >= self._config.large_bytes:
            commits, refusals = await self._by_many(self._large, fresh)
        else:
            commits, refusals = await self._directly(fresh)
        seen = {commit.commit_seq for commit in commits}
        return commits + [commit for commit in known if commit.commit_seq not in seen], refusals

    async def _directly(self, batches: Sequence[BufferBatch]) -> tuple[list[Commit], list[Refusal]]:
        fetching = asyncio.Semaphore(_FETCHES_AT_ONCE)

        async def read(batch: BufferBatch) -> tuple[Loaded, pa.RecordBatch] | Refusal:
            async with fetching:
                data = await self._try(lambda: self._objects.get(batch.batch_uri, if_match=batch.etag))
            try:
                rows = await asyncio.to_thread(read_batch, self._reader, batch, data)
            except BadBatchError as error:
                return Refusal(batch, error)
            return Loaded(batch, rows.num_rows), rows

        found = await asyncio.gather(*map(read, batches))
        good = [item for item in found if not isinstance(item, Refusal)]
        refusals = [item for item in found if isinstance(item, Refusal)]
        if not good:
            return [], refusals

        def commit(store: TableStore) -> list[Commit]:
            return store.commit_direct(self.dataset, [item[0] for item in good], [item[1] for item in good])

        self._signal("committing")
        try:
            commits = await self._try(lambda: self._stores.run(commit))
        except RefusedRowsError as error:
            if len(good) == 1:
                return [], [*refusals, Refusal(good[0][0].batch, BadBatchError("rows_refused", str(error)))]
            return await self._one_by_one([item[0].batch for item in good], refusals)
        self._signal("committed")
        return commits, refusals

    async def _by_many(self, large: LargeBatches, batches: Sequence[BufferBatch]) -> tuple[list[Commit], list[Refusal]]:
        staging = await self._try(lambda: self._stores.run(lambda store: store.open_staging(self.dataset)))
        try:
            found = await self._try(lambda: asyncio.to_thread(large.load, self.dataset, staging, batches))
            good = [item for item in found if isinstance(item, Loaded)]
            refusals = [item for item in found if isinstance(item, Refusal)]
            if not good:
                return [], refusals
            self._signal("committing")
            try:
                commits = await self._try(
                    lambda: self._stores.run(lambda store: store.commit_staged(self.dataset, staging, good))
                )
            except RefusedRowsError:
                return await self._one_by_one([item.batch for item in good], refusals)
            self._signal("committed")
            return commits, refusals
        finally:
            await self._drop(staging)

    async def _drop(self, staging: str) -> None:
        try:
            await self._stores.run(lambda store: store.drop_staging(staging))
        except StoreAwayError:
            logger.warning("a staging table stays for a day", extra={"table": staging})

    async def _one_by_one(
        self, batches: Sequence[BufferBatch], refusals: list[Refusal]
    ) -> tuple[list[Commit], list[Refusal]]:
        """One of them is refused by the database itself: the others are not to suffer."""
        commits: list[Commit] = []
        for batch in batches:
            taken, refused = await self._directly([batch])
            commits += taken
            refusals += refused
        return commits, refusals

    async def _has_changed(self) -> bool:
        """Whether the Dispatcher knows a newer schema."""
        for listed in (await self._try(self._calls.buffers)).datasets:
            now = msgspec.structs.replace(listed, backlog=None)
            if now.dataset_uuid == self.dataset.dataset_uuid and now != self.dataset:
                self._newer = now
                return True
        return False

    # -- what others hear of it

    async def _announce(self, commit: Commit) -> None:
        request = BufferCommittedRequest(
            dataset_uuid=self.dataset.dataset_uuid,
            commit_seq=commit.commit_seq,
            publish_ids=list(commit.publish_ids),
        )
        try:
            await self._try(lambda: self._calls.buffer_committed(request))
        except TraceError as refusal:
            if refusal.code != "commit_conflict":
                raise
            # One of them came long ago: the table has forgotten by which commit, and the Dispatcher has not. The others
            # are new to it.
            if len(commit.publish_ids) > 1:
                for publish_id in commit.publish_ids:
                    await self._announce(Commit(commit.commit_seq, (publish_id,)))
        self._signal("announced")

    async def _reject(self, refusal: Refusal) -> None:
        error = refusal.error
        request = BufferRejectedRequest(
            publish_id=refusal.batch.publish_id,
            code=error.code,
            reason=error.reason[:1000],
            line=error.line,
            excerpt=error.excerpt[:1000],
        )
        await self._try(lambda: self._calls.buffer_rejected(request))
        logger.warning(
            "a batch cannot be taken",
            extra={
                "dataset": self.dataset.name,
                "publish_id": str(refusal.batch.publish_id),
                "code": error.code,
                "line": error.line,
            },
        )
        self._signal("rejected")

    async def _ack(self, held: Sequence[_Held]) -> None:
        await self._try(lambda: self._queue.ack([item.delivery for item in held]))
        self._signal("acked")

    # -- patience

    async def _receive(self, wait_seconds: float) -> list[Delivery]:
        receive = asyncio.ensure_future(
            self._try(
                lambda: self._queue.receive(
                    self.dataset.queue, self._config.batches, self._config.visibility_seconds, wait_seconds
                )
            )
        )
        stopped = asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait([receive, stopped], return_when=asyncio.FIRST_COMPLETED)
            if not receive.done():
                raise StoppedError
            return receive.result()
        finally:
            stopped.cancel()
            receive.cancel()
            await asyncio.gather(receive, stopped, return_exceptions=True)

    async def _try(self, call: Callable[[], Awaitable[T]]) -> T:
        """Until it is there. Only what can be otherwise in a moment is tried again."""
        tries = 0
        while True:
            try:
                return await call()
            except (StoreAwayError, StoreUnavailableError, QueueUnavailableError) as away:
                reason: Exception = away
            except TraceError as refusal:
                if not refusal.retryable:
                    raise
                reason = refusal
            tries += 1
            logger.warning("waiting", extra={"dataset": self.dataset.name, "reason": str(reason), "tries": tries})
            self._signal("waiting")
            try:
                await asyncio.wait_for(self._stop.wait(), self._config.backoff.seconds(tries))
            except TimeoutError:
                continue
            raise StoppedError

    @asynccontextmanager
    async def _hidden(self, deliveries: Sequence[Delivery]) -> AsyncIterator[None]:
        """What is worked on stays hidden from others, however long it takes."""

        async def extend() -> None:
            while True:
                await asyncio.sleep(self._config.visibility_seconds / 3)
                try:
                    await self._queue.extend(deliveries, self._config.visibility_seconds)
                except QueueUnavailableError:
                    continue

        keeper = asyncio.create_task(extend())
        try:
            yield
        finally:
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)


def read_batch(reader: BatchReader, batch: BufferBatch, data: bytes | None) -> pa.RecordBatch:
    """The rows of a batch whose bytes are these: the same judgement wherever it is done."""
    if data is None:
        raise BadBatchError("artifact_changed", "the artifact is gone, or not what was published")
    if len(data) != batch.size_bytes:
        reason = f"the artifact has {len(data)} bytes, and {batch.size_bytes} were published"
        raise BadBatchError("artifact_changed", reason)
    return reader.read(data, publish_seq=batch.publish_seq, org_id=batch.org_id, record_count=batch.record_count)


def _read(delivery: Delivery) -> _Held | None:
    try:
        return _Held(delivery, _message.decode(delivery.body))
    except (msgspec.DecodeError, UnicodeDecodeError):
        # Nobody can be told what it was for. It comes back, and ends among the dead letters of the queue.
        logger.error("a message that is no pointer to a batch", extra={"message_id": delivery.message_id})
        return None
