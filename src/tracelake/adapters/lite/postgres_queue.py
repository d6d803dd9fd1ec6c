"""The Queue port on Postgres: two tables, `FOR UPDATE SKIP LOCKED`, and one NOTIFY per published batch.

What it promises beyond the port:
- `publish` is durable when it returns. Receives, acks and extends commit asynchronously (`durable_acks` makes
  them durable too): a crash of Postgres may forget the last fraction of a second of them, so messages are
  delivered again, which every receiver must bear anyway. It never loses one: only an ack removes a message.
- Calls that arrive while the last statement of their kind is in flight become one statement.
- It holds no connection until it is used, and finds its way back after the database was away.
- A message received `max_receives` times without an ack goes to the dead letters at the next receive.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tracelake.adapters.lite.gathering import Gatherer
from tracelake.adapters.lite.queue_bell import Bell, payload_for
from tracelake.adapters.lite.queue_station import Station
from tracelake.db.queue import statements
from tracelake.db.queue.lane import Lane
from tracelake.ports.queue import (
    MAX_BODY_BYTES,
    DeadLetter,
    Delivery,
    Message,
    QueueDepth,
    QueueRejectedError,
    QueueUnavailableError,
)

MAX_NAME, MAX_KEY = 128, 512
_MAX_GATHERED_MESSAGES = 5000
_MAX_VISIBILITY = 366 * 24 * 3600.0
_INT64 = range(-(2**63), 2**63)


@dataclass(frozen=True, slots=True)
class _Settling:
    """An ack (`seconds` is None) or an extend."""

    deliveries: Sequence[Delivery]
    seconds: float | None


class PostgresQueue:
    """Implements `tracelake.ports.queue.Queue`. One instance serves one event loop."""

    def __init__(
        self, dsn: str, *, max_receives: int = 10, poll_seconds: float = 1.0, durable_acks: bool = False
    ) -> None:
        if max_receives < 1:
            raise ValueError("max_receives is at least 1")
        self._max_receives = max_receives
        self._poll_seconds = poll_seconds
        self._publishing = Lane(dsn, "publish", durable=True)
        self._taking = Lane(dsn, "receive", durable=durable_acks)
        self._settling = Lane(dsn, "settle", durable=durable_acks)
        self._looking = Lane(dsn, "look", durable=True)
        self._bell = Bell(dsn)
        self._stations: dict[tuple[str, float], Station] = {}
        self._closed = False
        self._publishes: Gatherer[Sequence[Message], None] = Gatherer(
            self._store, weigh=len, max_weight=_MAX_GATHERED_MESSAGES
        )
        self._settles: Gatherer[_Settling, int] = Gatherer(
            self._settle, weigh=lambda call: len(call.deliveries), max_weight=_MAX_GATHERED_MESSAGES
        )

    async def publish(self, messages: Sequence[Message]) -> None:
        for message in messages:
            _check(message)
        self._check_open()
        if messages:
            await self._publishes.submit(messages)

    async def receive(
        self, queue: str, limit: int, visibility_seconds: float, wait_seconds: float = 0.0
    ) -> list[Delivery]:
        if limit < 1:
            raise ValueError("limit is at least 1")
        if not 0 < visibility_seconds <= _MAX_VISIBILITY:
            raise ValueError("visibility_seconds is more than 0 and at most a year")
        self._check_open()
        return await self._station(queue, visibility_seconds).receive(limit, wait_seconds)

    async def ack(self, deliveries: Sequence[Delivery]) -> int:
        self._check_open()
        return await self._settles.submit(_Settling(deliveries, None)) if deliveries else 0

    async def extend(self, deliveries: Sequence[Delivery], visibility_seconds: float) -> int:
        if not 0 <= visibility_seconds <= _MAX_VISIBILITY:
            raise ValueError("visibility_seconds is at least 0 and at most a year")
        self._check_open()
        return await self._settles.submit(_Settling(deliveries, visibility_seconds)) if deliveries else 0

    async def absent(self, queue: str, keys: Sequence[str]) -> set[str]:
        self._check_open()
        rows = await self._looking.fetch(statements.ABSENT, queue, list(keys))
        return {row["key"] for row in rows}

    async def depths(self) -> list[QueueDepth]:
        self._check_open()
        rows = await self._looking.fetch(statements.DEPTHS)
        return [
            QueueDepth(row["queue"], row["ready"], row["in_flight"], row["dead"], float(row["oldest"])) for row in rows
        ]

    async def dead_letters(self, queue: str | None, limit: int) -> list[DeadLetter]:
        self._check_open()
        if queue is None:
            rows = await self._looking.fetch(statements.LIST_ALL_DEAD, limit)
        else:
            rows = await self._looking.fetch(statements.LIST_DEAD, queue, limit)
        return [
            DeadLetter(
                str(row["message_id"]),
                row["queue"],
                row["key"],
                row["body"],
                row["receives"],
                row["reason"],
                row["published_at"],
                row["died_at"],
            )
            for row in rows
        ]

    async def drop_dead(self, message_ids: Sequence[str] | None) -> int:
        self._check_open()
        if message_ids is None:
            rows = await self._publishing.fetch(statements.DROP_ALL_DEAD)
        else:
            numbers = [number for number in map(_number, message_ids) if number is not None]
            rows = await self._publishing.fetch(statements.DROP_DEAD, numbers)
        dropped: int = rows[0]["dropped"]
        return dropped

    async def redrive(self, message_ids: Sequence[str]) -> int:
        """Puts dead letters back as new messages; answers how many there were."""
        self._check_open()
        numbers = [number for number in map(_number, message_ids) if number is not None]
        rows = await self._publishing.fetch(statements.REDRIVE, numbers)
        if rows:
            await self._publishing.fetch(statements.RING, payload_for({row["queue"] for row in rows}))
        return sum(row["messages"] for row in rows)

    async def close(self) -> None:
        """What was asked for before is finished; receivers that still wait get QueueUnavailableError."""
        self._closed = True
        for station in list(self._stations.values()):
            await station.close()
        await self._bell.close()
        await self._publishes.close()
        await self._settles.close()
        for lane in (self._publishing, self._taking, self._settling, self._looking):
            await lane.close()

    def _check_open(self) -> None:
        if self._closed:
            raise QueueUnavailableError("the queue is closed")

    # --- publish

    async def _store(self, calls: list[Sequence[Message]]) -> list[Exception | None]:
        try:
            await self._insert([message for messages in calls for message in messages])
        except QueueRejectedError as error:
            if len(calls) == 1:
                return [error]
            # Somebody's message was refused: one by one, so that it is nobody else's trouble.
            return [(await self._store([messages]))[0] for messages in calls]
        return [None] * len(calls)

    async def _insert(self, messages: list[Message]) -> None:
        await self._publishing.fetch(
            statements.PUBLISH,
            [message.queue for message in messages],
            [message.key for message in messages],
            [message.body for message in messages],
            payload_for({message.queue for message in messages}),
        )

    # --- receive

    def _station(self, queue: str, visibility_seconds: float) -> Station:
        name = (queue, visibility_seconds)
        station = self._stations.get(name)
        if station is None:
            for other in [key for key, value in self._stations.items() if value.idle]:
                del self._stations[other]  # callers may use ever new visibilities
            station = self._stations[name] = Station(
                queue,
                bell=self._bell,
                take=lambda limit: self._take(queue, limit, visibility_seconds),
                next_due=lambda: self._next_due(queue),
                give_back=self._give_back,
                poll_seconds=self._poll_seconds,
            )
        return station

    async def _take(self, queue: str, limit: int, visibility_seconds: float) -> list[Delivery]:
        taken: list[Delivery] = []
        while len(taken) < limit:
            # One receipt per statement: the fence is the pair of message and receipt.
            receipt = secrets.randbits(63)
            rows = await self._taking.fetch(statements.TAKE_DUE, queue, limit - len(taken), visibility_seconds, receipt)
            text = str(receipt)
            fresh = [Delivery(str(row[0]), text, row[1], row[2], row[3]) for row in rows]
            exhausted = [delivery for delivery in fresh if delivery.receives > self._max_receives]
            if not exhausted:
                return taken + fresh if taken else fresh
            taken += [delivery for delivery in fresh if delivery.receives <= self._max_receives]
            reason = f"received {self._max_receives} times without an ack"
            await self._taking.fetch(statements.BURY_IF_HELD, *_columns(exhausted), reason)
        return taken

    async def _next_due(self, queue: str) -> float | None:
        rows = await self._looking.fetch(statements.NEXT_DUE, queue)
        return float(rows[0][0]) if rows else None

    async def _give_back(self, deliveries: list[Delivery]) -> None:
        try:
            await self._taking.fetch(statements.GIVE_BACK_IF_HELD, *_columns(deliveries))
        except QueueUnavailableError:
            return  # they come back by themselves when their visibility runs out
        queues = {queue for queue, _ in self._stations}
        if queues:
            await self._ring(queues)

    async def _ring(self, queues: set[str]) -> None:
        try:
            await self._looking.fetch(statements.RING, payload_for(queues))
        except QueueUnavailableError:
            return  # a hint only: others find it by polling

    # --- ack and extend

    async def _settle(self, calls: list[_Settling]) -> list[int | Exception]:
        acks: set[Delivery] = set()
        hides: dict[Delivery, float] = {}
        for call in calls:
            if call.seconds is None:
                acks.update(call.deliveries)
            else:
                hides.update(dict.fromkeys(call.deliveries, call.seconds))
        hidden: set[str] = set()
        gone: set[str] = set()
        if hides:
            # The order keeps two adapters from waiting for each other.
            ordered = sorted(hides, key=_order)
            seconds = [hides[delivery] for delivery in ordered if _is_ours(delivery)]
            hidden = _ids(await self._settling.fetch(statements.HIDE_IF_HELD, *_columns(ordered), seconds))
        if acks:
            ordered = sorted(acks, key=_order)
            gone = _ids(await self._settling.fetch(statements.DELETE_IF_HELD, *_columns(ordered)))
        return [self._count(call, hidden, gone) for call in calls]

    @staticmethod
    def _count(call: _Settling, hidden: set[str], gone: set[str]) -> int:
        if call.seconds is not None:
            return len({delivery.message_id for delivery in call.deliveries} & hidden)
        mine = {delivery.message_id for delivery in call.deliveries} & gone
        gone -= mine  # a message leaves once: a second ack of it in the same batch removed nothing
        return len(mine)


def _check(message: Message) -> None:
    if len(message.body) > MAX_BODY_BYTES:
        raise QueueRejectedError(f"a message of {len(message.body)} bytes is over the limit of {MAX_BODY_BYTES}")
    for what, text, longest in (("queue", message.queue, MAX_NAME), ("key", message.key, MAX_KEY)):
        if not 1 <= len(text) <= longest or not text.isprintable():
            raise QueueRejectedError(f"a {what} has 1 to {longest} printable characters")
    if "," in message.queue or message.queue == "*":
        raise QueueRejectedError("a queue's name has no comma and is not `*`")


def _number(text: str) -> int | None:
    try:
        number = int(text)
    except ValueError:
        return None
    return number if number in _INT64 else None


def _is_ours(delivery: Delivery) -> bool:
    return _number(delivery.message_id) is not None and _number(delivery.receipt) is not None


def _columns(deliveries: Sequence[Delivery]) -> tuple[list[str], list[int], list[int]]:
    """Of deliveries that this adapter can have made; another's are held by nobody here."""
    ours = [delivery for delivery in deliveries if _is_ours(delivery)]
    return (
        [delivery.key for delivery in ours],
        [int(delivery.message_id) for delivery in ours],
        [int(delivery.receipt) for delivery in ours],
    )


def _order(delivery: Delivery) -> tuple[str, str]:
    return (delivery.key, delivery.message_id)


def _ids(rows: list[Any]) -> set[str]:
    return {str(row[0]) for row in rows}
