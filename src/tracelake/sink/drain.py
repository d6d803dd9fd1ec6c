"""One buffered dataset: from its queue into its table, batch by batch or many at once.

A batch is acknowledged only when it is in the table and the Dispatcher knows, or when it is a dead letter and the
Dispatcher knows. Everything before that may be repeated. While something is away, what was received is kept and tried
again in place: giving it back would count as a failure of the batch.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Protocol
from uuid import UUID

import msgspec

from tracelake.errors import TraceError
from tracelake.model.retry import Backoff
from tracelake.ports import Queue, QueueUnavailableError
from tracelake.ports.queue import Delivery
from tracelake.rows.reader import BadBatchError
from tracelake.sink.patience import Patience, StoppedError
from tracelake.sink.settling import Artifacts, LargeBatches, Refusal, Settled, Settler, Stores
from tracelake.sink.store import Commit, OutdatedError
from tracelake.wire.buffers import (
    BufferBatch,
    BufferCommittedReply,
    BufferCommittedRequest,
    BufferedDataset,
    BufferOpenReply,
    BufferOpenRequest,
    BufferRejectedReply,
    BufferRejectedRequest,
    BuffersReply,
)

logger = logging.getLogger(__name__)

_message = msgspec.json.Decoder(BufferBatch)


class SinkCalls(Protocol):
    async def buffers(self) -> BuffersReply: ...
    async def buffer_open(self, request: BufferOpenRequest) -> BufferOpenReply: ...
    async def buffer_committed(self, request: BufferCommittedRequest) -> BufferCommittedReply: ...
    async def buffer_rejected(self, request: BufferRejectedRequest) -> BufferRejectedReply: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkConfig:
    batches: int
    """So many of one dataset are taken at once."""
    max_receives: int
    visibility_seconds: float
    wait_seconds: float = 20.0
    poll_seconds: float
    """A table that was deployed meanwhile is seen after so long."""
    large_bytes: int
    """From so many bytes on, batches are worth the price of Spark."""
    backoff: Backoff = field(default_factory=lambda: Backoff(0.2, 10.0))


@dataclass(frozen=True, slots=True)
class _Held:
    delivery: Delivery
    batch: BufferBatch

    @property
    def is_new(self) -> bool:
        """Nobody has looked at it before."""
        return self.delivery.receives <= 1 and not self.batch.again


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
        self._calls = calls
        self._stop = stop
        self._signal = on_signal
        self._patience = Patience(dataset.name, config.backoff, stop, on_signal)

        def settler(of: BufferedDataset) -> Settler:
            return Settler(
                of,
                objects=objects,
                stores=stores,
                patience=self._patience,
                large=large,
                large_bytes=config.large_bytes,
                on_signal=on_signal,
            )

        self._make = settler
        self._settler = settler(dataset)
        self._newer: BufferedDataset | None = None

    @property
    def dataset(self) -> BufferedDataset:
        return self._settler.dataset

    @property
    def newest(self) -> BufferedDataset:
        """What it goes by, or will from the next batches on."""
        return self._newer or self.dataset

    def follow(self, dataset: BufferedDataset) -> None:
        """By this schema, from the next batches on: those at work are finished by the one that they began with."""
        if dataset.revision >= self.newest.revision:
            self._newer = dataset

    def _take_newer(self) -> None:
        if self._newer is not None:
            self._settler, self._newer = self._make(self._newer), None

    async def run(self) -> None:
        while not self._stop.is_set():
            try:
                await self.run_once(self._config.wait_seconds)
            except StoppedError:
                return
            except TraceError as refusal:
                self._refused(refusal)

    async def run_once(self, wait_seconds: float = 0.0) -> int:
        """Take what is there and finish with it; how many batches there were."""
        deliveries = await self._receive(wait_seconds)
        if not deliveries:
            return 0
        self._signal("received")
        async with self._hidden(deliveries):
            held = [item for delivery in deliveries if (item := _read(delivery)) is not None]
            new = [item for item in held if item.is_new]
            # What came before and was not finished may be what stopped somebody: it is tried alone.
            again = await self._still_open([item for item in held if not item.is_new])
            for group in [new, *([item] for item in again)]:
                if group:
                    await self._alone(group)
        return len(held)

    async def _alone(self, group: Sequence[_Held]) -> None:
        """What happens to one group is not the others' trouble: it comes back, and in the end it is a dead letter."""
        try:
            if not group[0].is_new and group[0].delivery.receives >= self._config.max_receives:
                await self._give_up(group[0])
            else:
                await self._finish(group)
        except StoppedError:
            raise
        except TraceError as refusal:
            self._refused(refusal)
        except Exception:
            logger.exception("batches could not be finished", extra={"dataset": self.dataset.name})

    async def _still_open(self, held: Sequence[_Held]) -> Sequence[_Held]:
        """Those that wait for a sink. The others are in the table, or dead letters that a person may have dropped:
        their message was left behind by a sink that died, or is one too many."""
        if not held:
            return held
        request = BufferOpenRequest(publish_ids=[item.batch.publish_id for item in held])
        waiting = set((await self._patience.until_done(lambda: self._calls.buffer_open(request))).publish_ids)
        await self._ack([item for item in held if item.batch.publish_id not in waiting])
        return [item for item in held if item.batch.publish_id in waiting]

    async def _give_up(self, item: _Held) -> None:
        """Received too often; unless it is in the table, and only nobody came to tell."""
        commits = await self._settler.find([item.batch])
        for commit in commits:
            await self._announce(commit)
        if not commits:
            reason = f"received {item.delivery.receives} times, and no sink could finish with it"
            await self._reject(Refusal(item.batch, BadBatchError("received_too_often", reason)))
        await self._ack([item])

    async def _finish(self, held: Sequence[_Held]) -> None:
        self._take_newer()
        settled = await self._settle(list({item.batch.publish_id: item.batch for item in held}.values()))
        commits, refusals = settled.commits, settled.refusals
        if refusals and await self._has_changed():
            # A schema that was deployed a moment ago may hold what this one does not.
            self._take_newer()
            settled = await self._settle([refusal.batch for refusal in refusals])
            commits, refusals = commits + settled.commits, settled.refusals
        told: set[UUID] = set()
        for commit in commits:
            if await self._is_heard(self._announce(commit)):
                told.update(commit.publish_ids)
        for refusal in refusals:
            if await self._is_heard(self._reject(refusal)):
                told.add(refusal.batch.publish_id)
        await self._ack([item for item in held if item.batch.publish_id in told])

    async def _settle(self, batches: Sequence[BufferBatch]) -> Settled:
        """By the newest schema that there is."""
        sure = False
        while True:
            try:
                return await self._settler.settle(batches, sure=sure)
            except OutdatedError:
                # Another sink has heard of a newer one. Where the Dispatcher has not, its state was set back.
                sure = not await self._has_changed()
                self._take_newer()

    async def _has_changed(self) -> bool:
        """Whether the Dispatcher knows a newer schema."""
        for listed in (await self._patience.until_done(self._calls.buffers)).datasets:
            now = msgspec.structs.replace(listed, backlog=None)
            if now.dataset_uuid == self.dataset.dataset_uuid and now != self.dataset:
                self.follow(now)
        return self._newer is not None

    # -- what others hear of it

    async def _is_heard(self, telling: Awaitable[None]) -> bool:
        """What the Dispatcher refuses to hear is not acknowledged; the others are."""
        try:
            await telling
        except TraceError as refusal:
            self._refused(refusal)
            return False
        return True

    def _refused(self, refusal: TraceError) -> None:
        # Not acknowledged: it comes back.
        logger.error("the Dispatcher refuses", extra={"dataset": self.dataset.name, "code": refusal.code})

    async def _announce(self, commit: Commit) -> None:
        request = BufferCommittedRequest(
            dataset_uuid=self.dataset.dataset_uuid,
            commit_seq=commit.commit_seq,
            publish_ids=list(commit.publish_ids),
        )
        try:
            await self._patience.until_done(lambda: self._calls.buffer_committed(request))
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
            reason=_storable(error.reason),
            line=error.line,
            excerpt=_storable(error.excerpt),
        )
        await self._patience.until_done(lambda: self._calls.buffer_rejected(request))
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
        if held:
            await self._patience.until_done(lambda: self._queue.ack([item.delivery for item in held]))
            self._signal("acked")

    # -- its queue

    async def _receive(self, wait_seconds: float) -> list[Delivery]:
        receive = asyncio.ensure_future(
            self._patience.until_done(
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

    @asynccontextmanager
    async def _hidden(self, deliveries: Sequence[Delivery]) -> AsyncIterator[None]:
        """What is worked on stays hidden from others, however long it takes; after a stop, no longer."""

        async def extend() -> None:
            while True:
                await asyncio.sleep(self._config.visibility_seconds / 3)
                with suppress(QueueUnavailableError):
                    await self._queue.extend(deliveries, self._config.visibility_seconds)

        keeper = asyncio.create_task(extend())
        stopped = False
        try:
            yield
        except StoppedError:
            stopped = True
            raise
        finally:
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)
            if stopped:
                with suppress(QueueUnavailableError):
                    await self._queue.extend(deliveries, 0.0)


def _read(delivery: Delivery) -> _Held | None:
    try:
        return _Held(delivery, _message.decode(delivery.body))
    except (msgspec.DecodeError, UnicodeDecodeError):
        # Nobody can be told what it was for. It comes back, and ends among the dead letters of the queue.
        logger.error("a message that is no pointer to a batch", extra={"message_id": delivery.message_id})
        return None


def _storable(text: str) -> str:
    """Producers are quoted in it, and zero characters are nothing that is kept."""
    return text.replace("\x00", "\\x00")[:1000]
