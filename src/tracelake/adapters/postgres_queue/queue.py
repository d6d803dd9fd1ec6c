"""The Queue port on Postgres: two tables, `FOR UPDATE SKIP LOCKED`, and one NOTIFY per published batch.

What it promises beyond the port:
- `publish` is durable when it returns. Receives, acks and extends commit asynchronously (`durable_acks` makes
  them durable too): a crash of Postgres may forget the last fraction of a second of them, so messages are
  delivered again, which every receiver must bear anyway. It never loses one: only an ack removes a message.
- Calls that arrive while the last statement of their kind is in flight become one statement.
- It holds no connection until it is used, and finds its way back after the database was away.
- A message received `max_receives` times without an ack goes to the dead letters at the next receive.
- Turns of groups are counted in this instance's memory, what they have in flight in the database: each receiver is
  fair by itself, and so are all of them together.
"""

import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tracelake.adapters.postgres_queue.gathering import Gatherer
from tracelake.adapters.postgres_queue.notify_listener import NotifyListener, payload_for
from tracelake.adapters.postgres_queue.receive_buffer import ReceiveBuffer
from tracelake.db.queue import statements
from tracelake.db.queue.lane import Lane
from tracelake.model.fair_share import FairShares, OrgBacklog
from tracelake.ports.queue import (
    MAX_BODY_BYTES,
    DeadLetter,
    Delivery,
    Message,
    QueueDepth,
    QueueRejectedError,
    QueueUnavailableError,
)

MAX_NAME, MAX_KEY, MAX_GROUP = 128, 512, 128
_MAX_GATHERED_MESSAGES = 5000
_MAX_ROUNDS = 4
"""Of one receive: a group that has fewer messages than its share leaves the rest to the others in the next round."""
_MAX_QUEUES = 10_000
"""Whose turns are remembered."""
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
        self._listener = NotifyListener(dsn)
        self._buffers: dict[tuple[str, float, float | None], ReceiveBuffer] = {}
        self._shares: dict[str, FairShares] = {}
        self._alone: set[str] = set()
        """Queues that had messages of one group when they were last looked at."""
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
        self,
        queue: str,
        limit: int,
        visibility_seconds: float,
        wait_seconds: float = 0.0,
        *,
        idle_after: float | None = None,
    ) -> list[Delivery]:
        if limit < 1:
            raise ValueError("limit is at least 1")
        if not 0 < visibility_seconds <= _MAX_VISIBILITY:
            raise ValueError("visibility_seconds is more than 0 and at most a year")
        self._check_open()
        return await self._buffer(queue, visibility_seconds, idle_after).receive(limit, wait_seconds)

    async def set_weights(self, weights: Mapping[str, float]) -> None:
        self._check_open()
        await self._publishing.fetch(statements.SET_WEIGHTS, list(weights), [float(item) for item in weights.values()])

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

    async def discard(self, keys: Sequence[str]) -> int:
        self._check_open()
        rows = await self._publishing.fetch(statements.DISCARD, list(keys))
        discarded: int = rows[0]["discarded"]
        return discarded

    async def discard_queue(self, queue: str, limit: int) -> int:
        self._check_open()
        rows = await self._publishing.fetch(statements.DISCARD_QUEUE, queue, limit)
        discarded: int = rows[0]["discarded"]
        return discarded

    async def close(self) -> None:
        """What was asked for before is finished; receivers that still wait get QueueUnavailableError."""
        self._closed = True
        for buffer in list(self._buffers.values()):
            await buffer.close()
        await self._listener.close()
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
            [message.group for message in messages],
            [message.key for message in messages],
            [message.body for message in messages],
            payload_for({message.queue for message in messages}),
        )

    # --- receive

    def _buffer(self, queue: str, visibility_seconds: float, idle_after: float | None) -> ReceiveBuffer:
        name = (queue, visibility_seconds, idle_after)
        buffer = self._buffers.get(name)
        if buffer is None:
            for other in [key for key, value in self._buffers.items() if value.idle]:
                del self._buffers[other]  # callers may use ever new visibilities
            buffer = self._buffers[name] = ReceiveBuffer(
                queue,
                listener=self._listener,
                take=lambda limit: self._take(queue, limit, visibility_seconds, idle_after),
                next_due=lambda: self._next_due(queue) if idle_after is None else self._next_idle(queue, idle_after),
                give_back=self._give_back,
                poll_seconds=self._poll_seconds,
            )
        return buffer

    async def _take(
        self, queue: str, limit: int, visibility_seconds: float, idle_after: float | None
    ) -> list[Delivery]:
        deliveries: list[Delivery] = []
        while len(deliveries) < limit:
            if idle_after is not None:
                fresh = await self._take_of_idle(queue, limit - len(deliveries), visibility_seconds, idle_after)
            else:
                fresh = await self._take_shares(queue, limit - len(deliveries), visibility_seconds)
            exhausted = [delivery for delivery in fresh if delivery.receives > self._max_receives]
            if not exhausted:
                return deliveries + fresh if deliveries else fresh
            deliveries += [delivery for delivery in fresh if delivery.receives <= self._max_receives]
            reason = f"received {self._max_receives} times without an ack"
            await self._taking.fetch(statements.BURY_IF_HELD, *_columns(exhausted), reason)
        return deliveries

    async def _take_shares(self, queue: str, limit: int, visibility_seconds: float) -> list[Delivery]:
        if queue in self._alone:
            receipt = secrets.randbits(63)
            rows = await self._taking.fetch(statements.TAKE_IF_ALONE, queue, visibility_seconds, receipt, limit)
            if rows:
                self._share_of(queue).charge({rows[0]["group_key"]: len(rows)}, {})
                return _deliveries(rows, receipt)
        backlogs = await self._backlogs(queue)
        deliveries: list[Delivery] = []
        for _ in range(_MAX_ROUNDS):
            allotted = self._share_of(queue).allot(backlogs, limit - len(deliveries))
            if not allotted:
                break
            fresh, received = await self._take_allotted(queue, allotted, visibility_seconds, backlogs)
            deliveries += fresh
            backlogs = [
                OrgBacklog(item.group, item.in_flight + received[item.group], item.weight)
                for item in backlogs
                if received[item.group] == allotted.get(item.group, 0)
            ]
        return deliveries

    async def _take_of_idle(
        self, queue: str, limit: int, visibility_seconds: float, idle_after: float
    ) -> list[Delivery]:
        rows = await self._taking.fetch(statements.IDLE_BACKLOGS, queue)
        idle = [OrgBacklog(row["group_key"], 0, row["weight"]) for row in rows if row["waited"] >= idle_after]
        allotted = self._share_of(queue).allot(idle, min(limit, len(idle)))  # one each before anybody has two
        return (await self._take_allotted(queue, allotted, visibility_seconds, idle))[0] if allotted else []

    async def _next_idle(self, queue: str, idle_after: float) -> float | None:
        """When a group that waits will have waited long enough."""
        rows = await self._looking.fetch(statements.IDLE_BACKLOGS, queue)
        return min((max(idle_after - row["waited"], 0.0) for row in rows), default=None)

    async def _take_allotted(
        self, queue: str, allotted: Mapping[str, int], visibility_seconds: float, backlogs: Sequence[OrgBacklog]
    ) -> tuple[list[Delivery], Counter[str]]:
        # One receipt per statement: the fence is the pair of message and receipt.
        receipt = secrets.randbits(63)
        rows = await self._taking.fetch(
            statements.TAKE_ALLOTTED, queue, visibility_seconds, receipt, list(allotted), list(allotted.values())
        )
        received = Counter(row["group_key"] for row in rows)
        self._share_of(queue).charge(received, {item.group: item.weight for item in backlogs})
        return _deliveries(rows, receipt), received

    async def _backlogs(self, queue: str) -> list[OrgBacklog]:
        rows = await self._taking.fetch(statements.BACKLOGS, queue)
        (self._alone.add if len(rows) == 1 else self._alone.discard)(queue)
        return [OrgBacklog(row["group_key"], row["in_flight"], row["weight"]) for row in rows]

    def _share_of(self, queue: str) -> FairShares:
        shares = self._shares.get(queue)
        if shares is None:
            if len(self._shares) >= _MAX_QUEUES:
                self._shares.clear()
            shares = self._shares[queue] = FairShares()
        return shares

    async def _next_due(self, queue: str) -> float | None:
        rows = await self._looking.fetch(statements.NEXT_DUE, queue)
        return float(rows[0][0]) if rows else None

    async def _give_back(self, deliveries: list[Delivery]) -> None:
        try:
            await self._taking.fetch(statements.GIVE_BACK_IF_HELD, *_columns(deliveries))
        except QueueUnavailableError:
            return  # they come back by themselves when their visibility runs out
        queues = {queue for queue, _, _ in self._buffers}
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
        missing: set[str] = set()
        if hides:
            # The order keeps two adapters from waiting for each other.
            ordered = sorted(hides, key=_order)
            seconds = [hides[delivery] for delivery in ordered if _is_ours(delivery)]
            hidden = _ids(await self._settling.fetch(statements.HIDE_IF_HELD, *_columns(ordered), seconds))
        if acks:
            ordered = sorted(acks, key=_order)
            missing = _ids(await self._settling.fetch(statements.DELETE_IF_HELD, *_columns(ordered)))
        return [self._count(call, hidden, missing) for call in calls]

    @staticmethod
    def _count(call: _Settling, hidden: set[str], missing: set[str]) -> int:
        if call.seconds is not None:
            return len({delivery.message_id for delivery in call.deliveries} & hidden)
        mine = {delivery.message_id for delivery in call.deliveries} & missing
        missing -= mine  # a message leaves once: a second ack of it in the same batch removed nothing
        return len(mine)


def _check(message: Message) -> None:
    if len(message.body) > MAX_BODY_BYTES:
        raise QueueRejectedError(f"a message of {len(message.body)} bytes is over the limit of {MAX_BODY_BYTES}")
    if len(message.group) > MAX_GROUP or not message.group.isprintable():
        raise QueueRejectedError(f"a group has at most {MAX_GROUP} printable characters")
    for what, text, longest in (("queue", message.queue, MAX_NAME), ("key", message.key, MAX_KEY)):
        if not 1 <= len(text) <= longest or not text.isprintable():
            raise QueueRejectedError(f"a {what} has 1 to {longest} printable characters")
    if "," in message.queue or message.queue == "*":
        raise QueueRejectedError("a queue's name has no comma and is not `*`")


def _deliveries(rows: list[Any], receipt: int) -> list[Delivery]:
    text = str(receipt)
    return [Delivery(str(row[0]), text, row[1], row[2], row[3]) for row in rows]


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
