"""Handlers of people: from a checked request to a view or a use case and back. No decision is made here.

Everything is of the caller's own org, which the token names; an org that has nothing yet reads as empty.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar
from uuid import UUID

import asyncpg
import msgspec

from tracelake.db.transaction import Connection, Store
from tracelake.dispatcher.actor import Actor
from tracelake.dispatcher.buffers.letters import DeadBatches, list_letters, show_letter
from tracelake.dispatcher.fair_slots import FairSlots
from tracelake.dispatcher.http.routing import Raw, Request
from tracelake.dispatcher.quotas.admin import show_quota
from tracelake.dispatcher.quotas.book import QuotaBook
from tracelake.dispatcher.users import Role
from tracelake.dispatcher.views import (
    audit,
    content,
    dags,
    datasets,
    deliveries,
    events,
    jobs,
    lineage,
    overview,
    pressure,
    tasks,
)
from tracelake.dispatcher.views.orgs import Orgs
from tracelake.dispatcher.views.settled import EventHorizon
from tracelake.dispatcher.views.sources import list_sources
from tracelake.dispatcher.why.dataset import why_dataset
from tracelake.dispatcher.why.job import why_job
from tracelake.dispatcher.why.task import why_task
from tracelake.errors import StoreUnavailableError, TraceError
from tracelake.ports import ObjectStore
from tracelake.wire import platform
from tracelake.wire.content import PIECE_BYTES
from tracelake.wire.dags import ActivateRequest, DeployReply
from tracelake.wire.jobs import RebuildReply, TriggerReply, TriggerRequest
from tracelake.wire.sources_view import PauseReply
from tracelake.wire.tasks import RetryReply, SkipReply
from tracelake.wire.webhooks import WebhookReply

YAML = "application/yaml"
READS_AT_ONCE = 3
READS_OF_ONE_ORG = 2
READS_WAITING = 200
"""Of one org; more are refused with 429."""
PIECES_AT_ONCE = 4
PIECES_OF_ONE_ORG = 2
"""Pieces of files that are fetched from the object store: each is held in memory until it is sent."""
# What a stranger sent is handed on as a file: no browser shows it as a page of ours.
_AS_A_FILE = ((b"content-disposition", b"attachment"), (b"x-content-type-options", b"nosniff"))
_EVERYBODY = ""
"""No org: a look that all of them share has a turn of its own."""
T = TypeVar("T")


class DeploysDags(Protocol):
    async def deploy(self, actor: Actor, dag: str, text: bytes, *, dry_run: bool, activate: bool) -> DeployReply: ...

    async def activate(self, actor: Actor, dag: str, request: ActivateRequest) -> DeployReply: ...


class ActsOnTasks(Protocol):
    async def trigger(
        self, actor: Actor, dag: str, job: str, body: TriggerRequest, traceparent: str | None = None
    ) -> TriggerReply: ...

    async def rebuild(self, actor: Actor, dag: str, job: str) -> RebuildReply: ...

    async def cancel(self, actor: Actor, task_id: UUID) -> platform.CancelReply: ...

    async def retry(self, actor: Actor, task_id: UUID) -> RetryReply: ...

    async def skip(self, actor: Actor, task_id: UUID) -> SkipReply: ...


class ManagesWebhooks(Protocol):
    async def show(self, actor: Actor, dag: str, job: str) -> WebhookReply: ...

    async def rotate(self, actor: Actor, dag: str, job: str, after: int | None) -> WebhookReply: ...


class PausesSources(Protocol):
    async def pause(self, actor: Actor, dag: str, job: str) -> PauseReply: ...

    async def resume(self, actor: Actor, dag: str, job: str) -> PauseReply: ...


@dataclass(frozen=True, slots=True)
class UserHandlers:
    store: Store
    orgs: Orgs
    deployments: DeploysDags
    actions: ActsOnTasks
    pauses: PausesSources
    webhooks: ManagesWebhooks
    dead_batches: DeadBatches
    objects: ObjectStore
    quotas: QuotaBook = field(default_factory=QuotaBook)
    horizon: EventHorizon = field(default_factory=EventHorizon)
    reading: FairSlots = field(
        default_factory=lambda: FairSlots(
            READS_AT_ONCE, per_org=READS_OF_ONE_ORG, waiting=READS_WAITING, retry_after_seconds=1, what="reads"
        )
    )
    """The pool is shared with claims and completions: people who read wait for each other, and not tasks for them; and
    each org's people for their own."""
    fetching: FairSlots = field(
        default_factory=lambda: FairSlots(
            PIECES_AT_ONCE,
            per_org=PIECES_OF_ONE_ORG,
            waiting=READS_WAITING,
            retry_after_seconds=1,
            what="pieces of files",
        )
    )

    async def whoami(self, request: Request) -> msgspec.Struct:
        claims = request.user_claims
        return platform.WhoAmI(subject=claims.sub, org=claims.org, roles=claims.roles)

    async def quota(self, request: Request) -> msgspec.Struct:
        return await self._view(request, show_quota, request.user_claims.org, self.quotas)

    # DAGs

    async def deploy(self, request: Request) -> msgspec.Struct:
        if not request.query["dry_run"]:  # whoever may read everything may also see what a document would change
            request.user_claims.require(Role.WRITER)
        return await self.deployments.deploy(
            await self._actor(request),
            request.path["dag"],
            request.body,
            dry_run=request.query["dry_run"],
            activate=request.query["activate"],
        )

    async def activate(self, request: Request) -> msgspec.Struct:
        return await self.deployments.activate(await self._actor(request), request.path["dag"], request.body)

    async def list_dags(self, request: Request) -> msgspec.Struct:
        return await self._view(request, dags.list_dags)

    async def dag_versions(self, request: Request) -> msgspec.Struct:
        return await self._view(request, dags.list_versions, request.path["dag"])

    async def dag_source(self, request: Request) -> Raw:
        text = await self._view(request, dags.source, request.path["dag"], request.path["number"])
        return Raw(text.encode(), YAML)

    async def dag_jobs(self, request: Request) -> msgspec.Struct:
        return await self._view(request, jobs.list_jobs, request.path["dag"], request.query["version"])

    async def trigger(self, request: Request) -> msgspec.Struct:
        actor = await self._actor(request)
        names = (request.path["dag"], request.path["job"])
        return await self.actions.trigger(actor, *names, request.body, request.traceparent)

    async def rebuild(self, request: Request) -> msgspec.Struct:
        return await self.actions.rebuild(await self._actor(request), request.path["dag"], request.path["job"])

    # Webhooks

    async def webhook(self, request: Request) -> msgspec.Struct:
        return await self.webhooks.show(await self._actor(request), request.path["dag"], request.path["job"])

    async def rotate_webhook(self, request: Request) -> msgspec.Struct:
        names = (request.path["dag"], request.path["job"])
        return await self.webhooks.rotate(await self._actor(request), *names, request.query["after"])

    async def list_deliveries(self, request: Request) -> msgspec.Struct:
        wanted = (request.path["dag"], request.path["job"], request.query["limit"], request.query["cursor"])
        return await self._view(request, deliveries.list_deliveries, *wanted)

    async def delivery_body(self, request: Request) -> Raw:
        wanted = (request.path["dag"], request.path["job"], request.path["delivery_id"])
        content_type, body = await self._view(request, deliveries.delivery_body, *wanted)
        return Raw(body, content_type, headers=_AS_A_FILE)

    # Sources

    async def list_sources(self, request: Request) -> msgspec.Struct:
        return await self._view(request, list_sources)

    async def pause(self, request: Request) -> msgspec.Struct:
        return await self.pauses.pause(await self._actor(request), request.path["dag"], request.path["job"])

    async def resume(self, request: Request) -> msgspec.Struct:
        return await self.pauses.resume(await self._actor(request), request.path["dag"], request.path["job"])

    # Tasks

    async def list_tasks(self, request: Request) -> msgspec.Struct:
        return await self._view(request, tasks.list_tasks, tasks.TaskFilter(**request.query), self.horizon.since)

    async def look_up_tasks(self, request: Request) -> msgspec.Struct:
        return await self._view(request, tasks.look_up, request.body.task_ids)

    async def task(self, request: Request) -> msgspec.Struct:
        return await self._view(request, tasks.task_detail, request.path["task_id"])

    async def cancel(self, request: Request) -> msgspec.Struct:
        return await self.actions.cancel(await self._actor(request), request.path["task_id"])

    async def retry(self, request: Request) -> msgspec.Struct:
        return await self.actions.retry(await self._actor(request), request.path["task_id"])

    async def skip(self, request: Request) -> msgspec.Struct:
        return await self.actions.skip(await self._actor(request), request.path["task_id"])

    # Data

    async def list_events(self, request: Request) -> msgspec.Struct:
        wanted = events.EventFilter(**request.query)
        if wanted.after is None:
            return await self._view(request, events.list_events, wanted)
        settled = await self.horizon.reach(partial(self._connection, _EVERYBODY))
        return await self._view(request, events.list_following, wanted, settled, self.horizon.since)

    async def look_up_events(self, request: Request) -> msgspec.Struct:
        return await self._view(request, events.look_up, request.body.events)

    async def list_datasets(self, request: Request) -> msgspec.Struct:
        return await self._view(request, datasets.list_datasets)

    async def dataset(self, request: Request) -> msgspec.Struct:
        return await self._view(request, datasets.dataset_detail, request.path["name"])

    async def lineage(self, request: Request) -> msgspec.Struct:
        wanted = lineage.UnitFilter(**request.query)
        return await self._view(request, lineage.dataset_lineage, request.path["name"], wanted)

    async def list_content(self, request: Request) -> msgspec.Struct:
        wanted = (request.user_claims.org, request.path["name"], request.body)
        return await self._view(request, content.list_content, *wanted)

    async def read_content(self, request: Request) -> Raw:
        offset = request.query["offset"]
        name = content.FileName(**{key: value for key, value in request.query.items() if key != "offset"})
        file = await self._view(request, content.find_file, request.path["name"], name)
        if not 0 <= offset < file.size:
            raise TraceError("body_invalid", f"offset is a number below {file.size}.", field="offset")
        length = min(PIECE_BYTES, file.size - offset)
        async with self.fetching.slot(request.user_claims.org):
            piece = await self.objects.read(file.uri, offset, length, if_match=file.etag)
        if piece is None or len(piece) != length:
            raise TraceError("content_mismatch", "The file is gone, or is not what was committed.")
        return Raw(piece, "application/octet-stream", headers=_AS_A_FILE)

    # Explanations

    async def overview(self, request: Request) -> msgspec.Struct:
        wanted = overview.OverviewFilter(**request.query)
        return await self._view(request, overview.read_overview, wanted, self.horizon.since)

    async def pressure(self, request: Request) -> msgspec.Struct:
        return await self._view(request, pressure.list_pressure)

    async def why_task(self, request: Request) -> msgspec.Struct:
        return await self._view(request, why_task, request.path["task_id"])

    async def why_job(self, request: Request) -> msgspec.Struct:
        return await self._view(request, why_job, request.path["dag"], request.path["job"])

    async def why_dataset(self, request: Request) -> msgspec.Struct:
        return await self._view(request, why_dataset, request.path["name"])

    # Admins

    async def audit(self, request: Request) -> msgspec.Struct:
        return await self._view(request, audit.list_entries, request.query["limit"], request.query["cursor"])

    # The way in

    # Dead letters

    async def list_dead_batches(self, request: Request) -> msgspec.Struct:
        wanted = (request.query["dataset"], request.query["limit"], request.query["cursor"])
        return await self._view(request, list_letters, *wanted)

    async def show_dead_batch(self, request: Request) -> msgspec.Struct:
        return await self._view(request, show_letter, request.path["publish_id"])

    async def replay_dead_batches(self, request: Request) -> msgspec.Struct:
        return await self.dead_batches.replay(await self._actor(request), request.body)

    async def drop_dead_batches(self, request: Request) -> msgspec.Struct:
        return await self.dead_batches.drop(await self._actor(request), request.body)

    async def _actor(self, request: Request) -> Actor:
        claims = request.user_claims
        return Actor(subject=claims.sub, org=claims.org, org_id=await self.orgs.find(claims.org))

    async def _view(self, request: Request, view: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        """A view is several statements that may be a moment apart, each of them true when it was read."""
        org_id = await self.orgs.find(request.user_claims.org)
        async with self._connection(request.user_claims.org) as connection:
            return await view(connection, org_id or NO_ORG, *arguments)

    @asynccontextmanager
    async def _connection(self, org: str) -> AsyncIterator[Connection]:
        async with self.reading.slot(org), self.store.connection() as connection:
            try:
                yield connection
            except asyncpg.LockNotAvailableError as error:  # a migration, or somebody at the tables by hand
                raise StoreUnavailableError from error


NO_ORG = UUID(int=0)
"""The org of nothing: whatever is asked for is not there, by the same statements that look for the rest."""
