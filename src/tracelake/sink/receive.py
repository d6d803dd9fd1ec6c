"""Receives messages of one dataset's queue and hides them from other sinks until they are acknowledged."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace

import msgspec

from tracelake.ports import Queue, QueueUnavailableError
from tracelake.ports.queue import Delivery
from tracelake.sink.retrying import Retrying, StoppedError
from tracelake.wire.buffers import BufferBatch

logger = logging.getLogger(__name__)

_pointer = msgspec.json.Decoder(BufferBatch)


@dataclass(frozen=True, slots=True)
class ReceivedBatch:
    """A pointer to a batch, with its message."""

    delivery: Delivery
    batch: BufferBatch

    @property
    def is_new(self) -> bool:
        """No sink has received it before."""
        return self.delivery.receives <= 1 and not self.batch.again

    def without_rows(self) -> "ReceivedBatch":
        """The same batch after a user dropped it."""
        return replace(self, batch=msgspec.structs.replace(self.batch, dropped=True))


class BatchQueue:
    """The queue of one dataset."""

    def __init__(
        self, name: str, queue: Queue, retrying: Retrying, stop: asyncio.Event, *, batches: int, visibility: float
    ) -> None:
        self._name = name
        self._queue = queue
        self._retrying = retrying
        self._stop = stop
        self._batches = batches
        self._visibility_seconds = visibility

    async def receive(self, wait_seconds: float) -> list[Delivery]:
        receive = asyncio.ensure_future(
            self._retrying.until_done(
                lambda: self._queue.receive(self._name, self._batches, self._visibility_seconds, wait_seconds)
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
    async def hidden(self, deliveries: Sequence[Delivery]) -> AsyncIterator[None]:
        """Keeps the messages hidden during the block, however long it takes; a stop makes them visible at once."""

        async def extend() -> None:
            while True:
                await asyncio.sleep(self._visibility_seconds / 3)
                with suppress(QueueUnavailableError):
                    await self._queue.extend(deliveries, self._visibility_seconds)

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

    async def ack(self, received: Sequence[ReceivedBatch]) -> None:
        await self._retrying.until_done(lambda: self._queue.ack([item.delivery for item in received]))


def decode(delivery: Delivery) -> ReceivedBatch | None:
    """None for a message that is no pointer to a batch."""
    try:
        return ReceivedBatch(delivery, _pointer.decode(delivery.body))
    except (msgspec.DecodeError, UnicodeDecodeError):
        # Its batch is unknown. The message returns, and ends as a dead letter of the queue.
        logger.error("a message that is no pointer to a batch", extra={"message_id": delivery.message_id})
        return None
