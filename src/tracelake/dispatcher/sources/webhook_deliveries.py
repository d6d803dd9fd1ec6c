"""Deliveries of webhooks: signed, taken once, and answered when they are durable.

One transaction holds the delivery as it came, its number, the event on each output of the source, and the tasks that
the events make. Whoever gets no answer sends the same delivery again, and is told what was recorded.
"""

import hashlib
import re
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from secrets import token_urlsafe
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from tracelake.db.transaction import Connection, Store, unavailable_when_held_up
from tracelake.dispatcher.config import DispatcherConfig
from tracelake.dispatcher.engine.commit_metrics import count_written
from tracelake.dispatcher.engine.plan import NewEvent, WritePlan, source_event
from tracelake.dispatcher.engine.pressure.upstream import UpstreamDirectory
from tracelake.dispatcher.engine.writer import Writer
from tracelake.dispatcher.job_definitions import Definitions
from tracelake.dispatcher.metrics import Metrics
from tracelake.dispatcher.public_ids import PublicIds
from tracelake.dispatcher.sources.webhook_paths import Webhook, find_by_job, find_by_path
from tracelake.errors import TraceError
from tracelake.http.fair_slots import FairSlots
from tracelake.http.rates import RateLimiter
from tracelake.model.job import Job
from tracelake.ports import WebhookSecrets
from tracelake.wire.base import MAX_PARTITION_KEY_BYTES, Cursor, PartitionKey
from tracelake.wire.jobs import BlockRange
from tracelake.wire.webhooks import DeliveryReply, SignedHead, is_signed

AT_ONCE = 3
OF_ONE_ORG = 2
"""Deliveries of one source wait for each other; while they do, most of the pool is for everybody else."""
LOOK_UPS = 2
LOOK_UPS_WAITING = 256
"""Of each webhook that is known, and of all paths together that are not: who cannot sign waits for their own kind."""
KNOWN_PATHS = 10_000

_PATH = re.compile(r"[a-z0-9][a-z0-9_-]*(?:/[a-z0-9][a-z0-9_-]*)*")
_MAX_PATH = 200
_NO_PATH = ""
"""Looked up in the place of what no path can be."""
_NO_SECRET = token_urlsafe(32)
"""Signs nothing; computing with it takes as long as with a secret."""

_OPEN = "INSERT INTO source_state (node_id, org_id) VALUES ($1, $2) ON CONFLICT DO NOTHING"

_LOCK = "SELECT deliveries, paused_at IS NOT NULL AS paused FROM source_state WHERE node_id = $1 FOR UPDATE"

_FIND = "SELECT number, body_hash FROM webhook_deliveries WHERE node_id = $1 AND delivery_id = $2"

_EVENTS = """
    SELECT e.event_id FROM events e JOIN job_outputs o USING (dataset_uuid, dataset_version)
    WHERE e.producer = $1 AND o.job_id = $2 ORDER BY o.output_index"""

_KEEP = """
    WITH counted AS (
        UPDATE source_state SET deliveries = $3, updated_at = trace_now() WHERE node_id = $1)
    INSERT INTO webhook_deliveries (node_id, delivery_id, number, body_hash, content_type, body)
    VALUES ($1, $2, $3, $4, $5, $6)"""

_UNITS: dict[str, msgspec.json.Decoder[Any]] = {
    "cursor": msgspec.json.Decoder(Cursor),
    "range": msgspec.json.Decoder(BlockRange),
    "partition_key": msgspec.json.Decoder(PartitionKey),
}
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])


@dataclass(eq=False, kw_only=True)
class Deliveries:
    store: Store
    definitions: Definitions
    writer: Writer
    secrets: WebhookSecrets
    config: DispatcherConfig
    metrics: Metrics
    on_outbox: Callable[[], None]
    upstream: UpstreamDirectory
    ids: PublicIds

    def __post_init__(self) -> None:
        self._rates = RateLimiter(self.config.webhook_rate_per_second, self.config.webhook_rate_burst)
        burst = self.config.webhook_rate_burst
        self._places = FairSlots(AT_ONCE, per_org=OF_ONE_ORG, waiting=burst, retry_after_seconds=1, what="deliveries")
        self._look_ups = FairSlots(LOOK_UPS, per_org=1, waiting=LOOK_UPS_WAITING, retry_after_seconds=1)
        self._paths: OrderedDict[str, None] = OrderedDict()
        """Paths at which there was a webhook when somebody last signed for it."""

    async def deliver(self, path: str, head: SignedHead, body: bytes) -> DeliveryReply:
        """Nothing of the body is looked into, and no place is taken, before the signature is found good.

        A path that is not there is answered like a signature that does not hold, after the same work: who has no
        secret learns nothing about paths.
        """
        if len(path) > _MAX_PATH or not _PATH.fullmatch(path):
            path = _NO_PATH
        with unavailable_when_held_up("The delivery conflicts with a concurrent change; repeat it."):
            webhook = self._check(await self._find(path), head, body)
            async with self._counted(self._places.slot(webhook.org_id)):
                reply = await self._take(webhook, head, body)
        self.metrics.deliveries.labels("duplicate" if reply.duplicate else "accepted").inc()
        self.on_outbox()
        ids = await self.ids.of(webhook.org_id)
        return msgspec.structs.replace(reply, event_ids=[ids.events.seal(number) for number in reply.event_ids])

    async def _find(self, path: str) -> list[Webhook]:
        key = path if path in self._paths else None
        async with self._counted(self._look_ups.slot(key)), self.store.connection() as connection:
            return await find_by_path(connection, path)

    def _remember(self, path: str) -> None:
        self._paths[path] = None
        self._paths.move_to_end(path)
        if len(self._paths) > KNOWN_PATHS:
            self._paths.popitem(last=False)

    @asynccontextmanager
    async def _counted(self, slot: AbstractAsyncContextManager[None]) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(slot)
            except TraceError:
                self.metrics.rate_limited.inc()
                raise
            yield

    def _check(self, candidates: Sequence[Webhook], head: SignedHead, body: bytes) -> Webhook:
        """The webhook whose secret signed it.

        The rate comes last: who cannot sign must not be able to use up the rate of who can.
        """
        try:
            if not candidates:
                is_signed(head, [_NO_SECRET], body)
            signed = [webhook for webhook in candidates if is_signed(head, webhook.secrets(self.secrets), body)]
            if not signed:
                raise TraceError("signature_invalid")
            webhook = signed[0]
            if abs(webhook.now.timestamp() - head.time) > self.config.webhook_tolerance_seconds:
                raise TraceError("signature_stale")
        except TraceError as refused:
            self.metrics.token_failures.labels("signature", refused.code).inc()
            raise
        self._remember(webhook.path)
        try:
            self._rates.take((webhook.org_id, webhook.path))
        except TraceError:
            self.metrics.rate_limited.inc()
            raise
        return webhook

    async def _take(self, webhook: Webhook, head: SignedHead, body: bytes) -> DeliveryReply:
        body_hash = f"sha256:{hashlib.sha256(body).hexdigest()}"
        plan = WritePlan()
        async with self.store.transaction(routing=[webhook.org_id]) as connection:
            # Again, since only from here on nobody deploys.
            path = webhook.path
            webhook = await find_by_job(connection, webhook.org_id, webhook.dag, webhook.job)
            if webhook.path != path:
                raise TraceError("webhook_not_found")
            await self.definitions.load_jobs(connection, [webhook.job_id])
            job = self.definitions.job(webhook.job_id)
            assert job.node_id is not None
            delivery_number, paused = await _count(connection, job.node_id, webhook.org_id)
            number = delivery_number + 1
            earlier = await connection.fetchrow(_FIND, job.node_id, head.delivery_id)
            if earlier is not None:
                return await _repeated(connection, job, head, earlier, body_hash)
            content = (head.delivery_id, number, body_hash, head.content_type, body)
            await connection.execute(_KEEP, job.node_id, *content)
            plan.epochs = {webhook.org_id: webhook.routing_epoch}
            unit = {"cursor": number} if webhook.by_delivery else unit_of_body(body, number)
            plan.events += _events(job, head.delivery_id, unit)
            of_org = (job.org_id, webhook.routing_epoch)
            stopped = await self.upstream.source_stopped(connection, *of_org, job.node_id, paused=paused)
            applied = await self.writer.write(connection, plan)
            event_ids = await _event_ids(connection, job, head.delivery_id)
        self.writer.committed(plan)
        count_written(self.metrics, applied)
        return DeliveryReply(delivery_id=head.delivery_id, event_ids=event_ids, number=number, kept=stopped)


async def _count(connection: Connection, node_id: UUID, org_id: UUID) -> tuple[int, bool]:
    """Locks the row of the source; returns how many deliveries there were, and whether the source is paused."""
    state_row = await connection.fetchrow(_LOCK, node_id)
    if state_row is None:
        await connection.execute(_OPEN, node_id, org_id)
        state_row = await connection.fetchrow(_LOCK, node_id)
    assert state_row is not None
    return state_row["deliveries"], state_row["paused"]


async def _repeated(
    connection: Connection, job: Job, head: SignedHead, earlier: asyncpg.Record, body_hash: str
) -> DeliveryReply:
    if earlier["body_hash"] != body_hash:
        raise TraceError("delivery_conflict")
    event_ids = await _event_ids(connection, job, head.delivery_id)
    return DeliveryReply(delivery_id=head.delivery_id, event_ids=event_ids, number=earlier["number"], duplicate=True)


async def _event_ids(connection: Connection, job: Job, delivery_id: str) -> list[int]:
    return [row["event_id"] for row in await connection.fetch(_EVENTS, _producer(delivery_id), job.job_id)]


def _producer(delivery_id: str) -> str:
    return f"webhook:{delivery_id}"


def _events(job: Job, delivery_id: str, unit: dict[str, Any]) -> list[NewEvent]:
    return [source_event(_producer(delivery_id), job.org_id, output, **unit) for output in job.outputs]


def unit_of_body(body: bytes, number: int) -> dict[str, Any]:
    """The unit that the body names, if it is a JSON object that names exactly one; else the delivery's own number.

    Bodies are what others send: a `cursor` that is none of ours is no mistake, and means nothing.
    """
    unit = _named_unit(body)
    if isinstance(unit, BlockRange):
        return {"partition_key": f"{unit.start}-{unit.end}", "start": unit.start, "end": unit.end}
    if isinstance(unit, str):
        return {"partition_key": unit}
    return {"cursor": number if unit is None else unit}


def _named_unit(body: bytes) -> int | str | BlockRange | None:
    try:
        fields = _OBJECT.decode(body)
        names = [name for name in _UNITS if name in fields]
        if len(names) != 1:
            return None
        unit: Any = _UNITS[names[0]].decode(fields[names[0]])
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    if isinstance(unit, str) and ("\0" in unit or len(unit.encode("utf-8", "replace")) > MAX_PARTITION_KEY_BYTES):
        return None
    named_unit: int | str | BlockRange = unit
    return named_unit
