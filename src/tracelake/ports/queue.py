"""The Queue port: wake-ups and pointers, at least once, in no promised order.

A received message is hidden for its visibility time and comes back unless it is acked; `receipt` fences the
receiver, so an ack or extend by somebody whose time ran out changes nothing. A message that was received more
often than allowed moves to the dead letters of its queue instead of being delivered again.

Messages of one queue belong to groups (orgs), and receivers get them by weighted fair queueing: a group with
nothing in flight comes first, then the one with the least in flight for its weight. However many messages a group has,
another group's message is received next when a receiver asks.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from tracelake.errors import StoreUnavailableError

MAX_BODY_BYTES = 256 * 1024


class QueueUnavailableError(Exception):
    """The transport is away: retry for ever, count nothing."""


@contextmanager
def unavailable_without_queue() -> Iterator[None]:
    """A queue that is away is a store that is away, for callers and loops: the error says so."""
    try:
        yield
    except QueueUnavailableError as away:
        raise StoreUnavailableError("The queue is not available right now.") from away


class QueueRejectedError(Exception):
    """The transport itself refuses this message (too large, no such queue): counts as a try."""


@dataclass(frozen=True, slots=True)
class Message:
    """`key` names what the message wakes (a task id, a publish id); it is how the reconciler finds it again.

    `group` is whose message it is: fair shares are counted by it. It is no part of the body.
    """

    queue: str
    key: str
    body: bytes
    group: str = ""


@dataclass(frozen=True, slots=True)
class Delivery:
    message_id: str
    receipt: str
    key: str
    body: bytes
    receives: int


@dataclass(frozen=True, slots=True)
class QueueDepth:
    queue: str
    ready: int
    in_flight: int
    dead: int
    oldest_ready_seconds: float


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that was received too often without an ack; `reason` says so to a person."""

    message_id: str
    queue: str
    key: str
    body: bytes
    receives: int
    reason: str
    published_at: datetime
    died_at: datetime


class Queue(Protocol):
    async def publish(self, messages: Sequence[Message]) -> None:
        """All or nothing. Raises QueueRejectedError before anything is stored if one message can never be taken."""
        ...

    async def receive(
        self,
        queue: str,
        limit: int,
        visibility_seconds: float,
        wait_seconds: float = 0.0,
        *,
        idle_after: float | None = None,
    ) -> list[Delivery]:
        """Up to `limit` visible messages; waits up to `wait_seconds` for the first one.

        `idle_after`: only of groups that have nothing in flight and have waited for so many seconds, one of each. For a
        receiver that keeps slots for groups that get none elsewhere.
        """
        ...

    async def set_weights(self, weights: Mapping[str, float]) -> None:
        """The weights of these groups; every group that is not named has weight 1."""
        ...

    async def ack(self, deliveries: Sequence[Delivery]) -> int:
        """Removes those still held under their receipt; answers how many."""
        ...

    async def extend(self, deliveries: Sequence[Delivery], visibility_seconds: float) -> int:
        """Hides those still held for that long from now; answers how many."""
        ...

    async def absent(self, queue: str, keys: Sequence[str]) -> set[str]:
        """Which of these keys have no live message (visible or in flight) in the queue."""
        ...

    async def depths(self) -> list[QueueDepth]:
        """Of every queue that holds something. Counting stops at a bound, so that a flood cannot hold up its caller."""
        ...

    async def dead_letters(self, queue: str | None, limit: int) -> list[DeadLetter]:
        """Of this queue, or of all; the newest first."""
        ...

    async def drop_dead(self, message_ids: Sequence[str] | None) -> int:
        """Forgets these dead letters, or all of them; answers how many there were."""
        ...

    async def discard(self, keys: Sequence[str]) -> int:
        """Removes the messages and dead letters of these keys from every queue, also those in flight; answers how many
        there were. For what nobody will ever need again."""
        ...

    async def discard_queue(self, queue: str, limit: int) -> int:
        """Removes up to `limit` messages, and as many dead letters, of a queue that nobody receives from any more;
        answers how many there were."""
        ...

    async def close(self) -> None: ...
