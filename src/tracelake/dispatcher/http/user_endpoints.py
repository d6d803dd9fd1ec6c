"""The endpoints of users: views and actions for the caller's own org, which the token names.

No decision is made here; `access/dag_rules.py` decides what a token reaches that is limited to DAGs. An org that has
nothing yet reads as empty.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeAlias, TypeVar
from uuid import UUID

import asyncpg

from tracelake.db.transaction import Connection, Store
from tracelake.dispatcher.access.dag_rules import DagScope
from tracelake.dispatcher.access.user_tokens import UserTokens, list_tokens
from tracelake.dispatcher.actions import UserActions
from tracelake.dispatcher.audit import Actor
from tracelake.dispatcher.buffers.dead_batches import DeadBatches, list_dead_batches, show_dead_batch
from tracelake.dispatcher.bundles.rows import find_bundle, list_bundles
from tracelake.dispatcher.bundles.uploads import BundleUploads
from tracelake.dispatcher.config import DispatcherConfig
from tracelake.dispatcher.deploy.deployments import Deployments
from tracelake.dispatcher.deploy.removals import Removals
from tracelake.dispatcher.public_ids import OrgIds, PublicIds
from tracelake.dispatcher.quotas.admin import show_quota
from tracelake.dispatcher.quotas.book import QuotaBook
from tracelake.dispatcher.removed_names import find_removed_dag, find_removed_dataset
from tracelake.dispatcher.sources.pause import SourcePauses
from tracelake.dispatcher.sources.repair import SourceRepairs
from tracelake.dispatcher.sources.webhook_paths import WebhookAdmin
from tracelake.dispatcher.views import (
    audit,
    checks,
    content,
    dags,
    datasets,
    deliveries,
    events,
    jobs,
    lineage,
    overview,
    pressure,
    query_audit,
    removals,
    rows,
    tasks,
)
from tracelake.dispatcher.views.failures import list_failures
from tracelake.dispatcher.views.job_selection import JobFilter
from tracelake.dispatcher.views.operators import list_operators
from tracelake.dispatcher.views.orgs import Orgs
from tracelake.dispatcher.views.run_logs import LogPositions, find_logs, list_job_runs, list_runs, read_log
from tracelake.dispatcher.views.settled import EventHorizon
from tracelake.dispatcher.views.sources import list_sources
from tracelake.dispatcher.views.trigger_progress import read_trigger_progress
from tracelake.dispatcher.why.dataset import why_dataset
from tracelake.dispatcher.why.job import why_job
from tracelake.dispatcher.why.task import why_task
from tracelake.errors import StoreUnavailableError, TraceError
from tracelake.http.fair_slots import FairSlots
from tracelake.http.router import Endpoint, HttpRequest, RawReply, StreamReply, answer
from tracelake.ports import ObjectStore
from tracelake.wire import routes
from tracelake.wire.content import PIECE_BYTES, RowsRequest
from tracelake.wire.contract import ARROW, BYTES, Role, Route
from tracelake.wire.dags import DeployReply
from tracelake.wire.datasets import EventsPage
from tracelake.wire.operators import OperatorsReply
from tracelake.wire.platform import WhoAmI
from tracelake.wire.run_logs import TaskLog
from tracelake.wire.sources_view import RepairReply

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
_ABOUT_REMOVALS = ("dag_removed", "dataset_removed")
"""Errors that say already what was removed: it need not be what the call names."""
NO_ORG = UUID(int=0)
"""The org of nothing: whatever is asked for is not there, by the same statements that look for the rest."""

B = TypeVar("B")
R = TypeVar("R")
View: TypeAlias = Callable[[Connection, UUID, HttpRequest[B]], Awaitable[R]]
NumberedView: TypeAlias = Callable[[Connection, UUID, OrgIds, HttpRequest[B]], Awaitable[R]]


@dataclass(frozen=True, slots=True)
class UserEndpoints:
    store: Store
    orgs: Orgs
    deployments: Deployments
    removals: Removals
    actions: UserActions
    pauses: SourcePauses
    repairs: SourceRepairs
    webhooks: WebhookAdmin
    dead_batches: DeadBatches
    objects: ObjectStore
    ids: PublicIds
    bundles: BundleUploads
    config: DispatcherConfig
    tokens: UserTokens
    query_url: Callable[[], str | None] = lambda: None
    """The Query Service for people, as it is now."""
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
    tables: rows.TableRows | None = None
    """None: this Dispatcher has no access to Postgres data."""
    streaming: FairSlots = field(
        default_factory=lambda: FairSlots(
            rows.STREAMS_AT_ONCE,
            per_org=rows.STREAMS_OF_ONE_ORG,
            waiting=rows.STREAMS_WAITING,
            retry_after_seconds=5,
            what="reads of tables",
        )
    )
    threads: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(rows.STREAMS_AT_ONCE, thread_name_prefix="rows")
    )

    def endpoints(self) -> list[Endpoint]:
        scope = DagScope(self.orgs.find, self._connection)
        return [scope.guard(endpoint) for endpoint in self._endpoints()]

    def _endpoints(self) -> list[Endpoint]:
        view, numbered, act = self._view, self._numbered_view, self._act
        since = self.horizon.since
        return [
            answer(routes.WHOAMI, self._whoami),
            answer(routes.LIST_OPERATORS, self._operators),
            view(routes.SHOW_QUOTA, lambda db, org, r: show_quota(db, org, r.user_claims.org, self.quotas)),
            view(routes.LIST_DAGS, lambda db, org, _: dags.list_dags(db, org)),
            answer(routes.DEPLOY, self._deploy),
            view(routes.LIST_VERSIONS, lambda db, org, r: dags.list_versions(db, org, r["dag"])),
            view(routes.READ_DOCUMENT, _read_document),
            act(routes.ACTIVATE, lambda actor, r: self.deployments.activate(actor, r["dag"], r.body)),
            view(routes.PLAN_REMOVAL, lambda db, org, r: removals.plan_removal(db, org, r["dag"], self.config)),
            act(routes.REMOVE_DAG, lambda actor, r: self.removals.remove(actor, r["dag"])),
            act(routes.RESTORE_DAG, lambda actor, r: self.removals.restore(actor, r["dag"])),
            act(routes.PURGE_DAG, lambda actor, r: self.removals.purge(actor, r["dag"])),
            view(routes.LIST_REMOVED, lambda db, org, _: removals.list_removed(db, org)),
            view(routes.LIST_JOBS, lambda db, org, r: jobs.list_jobs(db, org, r["dag"], r["version"])),
            act(
                routes.TRIGGER, lambda actor, r: self.actions.trigger(actor, r["dag"], r["job"], r.body, r.traceparent)
            ),
            view(
                routes.SHOW_TRIGGER,
                lambda db, org, r: read_trigger_progress(
                    db, org, r["key"], across=r["across"], dags=r.user_claims.readable_dags
                ),
            ),
            act(routes.REBUILD, lambda actor, r: self.actions.rebuild(actor, r["dag"], r["job"])),
            act(routes.SHOW_WEBHOOK, lambda actor, r: self.webhooks.show(actor, r["dag"], r["job"])),
            act(routes.ROTATE_WEBHOOK, lambda actor, r: self.webhooks.rotate(actor, r["dag"], r["job"], r["after"])),
            view(routes.LIST_DELIVERIES, lambda db, org, r: deliveries.list_deliveries(db, org, **r.parameters)),
            answer(routes.READ_DELIVERY, self._read_delivery),
            numbered(
                routes.LIST_DEAD_BATCHES,
                lambda db, org, ids, r: list_dead_batches(db, org, ids, r["dataset"], r["limit"], r["cursor"]),
            ),
            numbered(routes.SHOW_DEAD_BATCH, lambda db, org, ids, r: show_dead_batch(db, org, ids, r["publish_id"])),
            act(routes.REPLAY_DEAD_BATCHES, lambda actor, r: self.dead_batches.replay(actor, r.body)),
            act(routes.DROP_DEAD_BATCHES, lambda actor, r: self.dead_batches.drop(actor, r.body)),
            view(routes.LIST_SOURCES, lambda db, org, _: list_sources(db, org)),
            act(routes.PAUSE_SOURCE, lambda actor, r: self.pauses.pause(actor, r["dag"], r["job"])),
            act(routes.RESUME_SOURCE, lambda actor, r: self.pauses.resume(actor, r["dag"], r["job"])),
            act(routes.REPAIR_SOURCE, lambda actor, r: self._repair(actor, r["dag"], r["job"], r.body.from_block)),
            view(
                routes.LIST_TASKS,
                lambda db, org, r: tasks.list_tasks(
                    db, org, tasks.TaskFilter(**r.parameters, dags=r.user_claims.readable_dags), since
                ),
            ),
            view(
                routes.LIST_FAILURES,
                lambda db, org, r: list_failures(db, org, JobFilter(**r.parameters, dags=r.user_claims.readable_dags)),
            ),
            act(routes.ACT_ON_TASKS, lambda actor, r: self.actions.act_on_many(actor, r.body)),
            view(routes.LOOK_UP_TASKS, lambda db, org, r: tasks.look_up(db, org, r.body.task_ids)),
            numbered(routes.SHOW_TASK, lambda db, org, ids, r: tasks.task_detail(db, org, ids, r["task_id"])),
            answer(routes.READ_LOG, self._read_log),
            act(routes.CANCEL_TASK, lambda actor, r: self.actions.cancel(actor, r["task_id"])),
            act(routes.RETRY_TASK, lambda actor, r: self.actions.retry(actor, r["task_id"])),
            act(routes.SKIP_TASK, lambda actor, r: self.actions.skip(actor, r["task_id"])),
            answer(routes.LIST_EVENTS, self._list_events),
            numbered(routes.LOOK_UP_EVENTS, lambda db, org, ids, r: events.look_up(db, org, ids, r.body.events)),
            view(routes.LIST_BUNDLES, lambda db, org, r: list_bundles(db, org, r["limit"], r["cursor"])),
            act(routes.OPEN_BUNDLE, lambda actor, r: self.bundles.open(actor, r.body)),
            act(
                routes.SEND_BUNDLE_PIECE,
                lambda actor, r: self.bundles.receive(actor, r["bundle_id"], r["offset"], r.body),
            ),
            view(routes.SHOW_BUNDLE, lambda db, org, r: find_bundle(db, org, r["bundle_id"])),
            act(routes.FINALIZE_BUNDLE, lambda actor, r: self.bundles.finalize(actor, r["bundle_id"], r.body)),
            act(routes.DISABLE_BUNDLE, lambda actor, r: self.bundles.disable(actor, r["bundle_id"])),
            view(
                routes.LIST_JOB_RUNS,
                lambda db, org, r: list_job_runs(db, org, r["dag"], r["job"], failed=r["failed"], limit=r["limit"]),
            ),
            view(routes.LIST_RUNS, lambda db, org, r: list_runs(db, org, **r.parameters)),
            view(routes.LIST_DATASETS, lambda db, org, _: datasets.list_datasets(db, org)),
            view(routes.LIST_CHECKS, lambda db, org, r: checks.list_checks(db, org, r["dataset"])),
            view(routes.LIST_CHECK_RESULTS, lambda db, org, r: checks.list_results(db, org, **r.parameters)),
            view(routes.SHOW_DATASET, lambda db, org, r: datasets.dataset_detail(db, org, r["name"])),
            numbered(
                routes.SHOW_LINEAGE,
                lambda db, org, ids, r: lineage.dataset_lineage(
                    db, org, ids, r["name"], lineage.UnitFilter(**_without(r, "name"))
                ),
            ),
            view(
                routes.LIST_CONTENT,
                lambda db, org, r: content.list_content(db, org, r.user_claims.org, r["name"], r.body),
            ),
            answer(routes.READ_ROWS, self._read_rows),
            answer(routes.READ_CONTENT, self._read_content),
            view(
                routes.SHOW_OVERVIEW,
                lambda db, org, r: overview.read_overview(db, org, overview.OverviewFilter(**r.parameters), since),
            ),
            view(routes.SHOW_PRESSURE, lambda db, org, _: pressure.list_pressure(db, org)),
            view(routes.EXPLAIN_TASK, lambda db, org, r: why_task(db, org, r["task_id"])),
            view(routes.EXPLAIN_JOB, lambda db, org, r: why_job(db, org, self.quotas, r["dag"], r["job"])),
            view(routes.EXPLAIN_DATASET, lambda db, org, r: why_dataset(db, org, self.quotas, r["name"])),
            numbered(
                routes.LIST_AUDIT_LOG, lambda db, org, ids, r: audit.list_entries(db, org, ids, r["limit"], r["cursor"])
            ),
            view(
                routes.LIST_QUERIES,
                lambda db, _, r: query_audit.list_queries(db, r.user_claims.org, r["limit"], r["cursor"]),
            ),
            act(routes.CREATE_TOKEN, lambda actor, r: self.tokens.create(actor, r.body)),
            view(routes.LIST_TOKENS, lambda db, _, r: list_tokens(db, r.user_claims.org, r["limit"], r["cursor"])),
            act(routes.REVOKE_TOKEN, lambda actor, r: self.tokens.revoke(actor, r["token_id"])),
            act(routes.REVOKE_UNRECORDED, lambda actor, r: self.tokens.revoke_unrecorded(actor, r.body)),
        ]

    def _view(self, route: Route[B, R], view: View[B, R]) -> Endpoint:
        """The view gets a connection and the caller's org."""
        return answer(route, lambda request: self._read(request, view))

    def _numbered_view(self, route: Route[B, R], view: NumberedView[B, R]) -> Endpoint:
        """The view shows numbers that all orgs share, as the caller's org sees them."""
        return answer(route, lambda request: self._read_numbered(request, view))

    def _act(self, route: Route[B, R], action: Callable[[Actor, HttpRequest[B]], Awaitable[R]]) -> Endpoint:
        """The action gets the caller as actor."""

        async def perform(request: HttpRequest[B]) -> R:
            actor = await self._actor(request)
            try:
                return await action(actor, request)
            except TraceError as error:
                if error.status != 404 or actor.org_id is None:
                    raise
                async with self._connection(actor.org) as connection:
                    raise await _explain(connection, actor.org_id, request, error) from None

        return answer(route, perform)

    async def _operators(self, _: HttpRequest[None]) -> OperatorsReply:
        return list_operators()

    async def _whoami(self, request: HttpRequest[None]) -> WhoAmI:
        claims = request.user_claims
        return WhoAmI(
            subject=claims.sub,
            org=claims.org,
            roles=claims.roles,
            dags=None if claims.dags is None else list(claims.dags),
            read_dags=list(claims.read_dags) or None,
            expires_at=datetime.fromtimestamp(claims.exp, UTC),
            query_url=self.query_url(),
        )

    async def _deploy(self, request: HttpRequest[bytes]) -> DeployReply:
        dry_run = request["dry_run"]
        if not dry_run:  # whoever may read everything may also see what a document would change
            request.user_claims.require(Role.WRITER)
        return await self.deployments.deploy(
            await self._actor(request), request["dag"], request.body, dry_run=dry_run, activate=request["activate"]
        )

    async def _read_delivery(self, request: HttpRequest[None]) -> RawReply:
        content_type, body = await self._read(
            request, lambda db, org, r: deliveries.delivery_body(db, org, **r.parameters)
        )
        return RawReply(body, content_type, headers=_AS_A_FILE)

    async def _list_events(self, request: HttpRequest[None]) -> EventsPage:
        filters = events.EventFilter(**request.parameters, dags=request.user_claims.readable_dags)
        if filters.after is None:
            return await self._read_numbered(request, lambda db, org, ids, _: events.list_events(db, org, ids, filters))
        horizon = await self.horizon.reach(partial(self._connection, _EVERYBODY))
        return await self._read_numbered(
            request, lambda db, org, ids, _: events.list_following(db, org, ids, filters, horizon, self.horizon.since)
        )

    async def _read_content(self, request: HttpRequest[None]) -> RawReply:
        offset = request["offset"]
        name = content.FileName(**_without(request, "name", "offset"))
        file = await self._read(request, lambda db, org, r: content.find_file(db, org, r["name"], name))
        if not 0 <= offset < file.size:
            raise TraceError(
                "body_invalid", f"Expected an offset below {file.size}; received {offset}.", field="offset"
            )
        length = min(PIECE_BYTES, file.size - offset)
        async with self.fetching.slot(request.user_claims.org):
            piece = await self.objects.read(file.uri, offset, length, if_match=file.etag)
        if piece is None or len(piece) != length:
            raise TraceError("content_mismatch", "The file is missing, or differs from the committed one.")
        return RawReply(piece, BYTES, headers=_AS_A_FILE)

    async def _repair(self, actor: Actor, dag: str, job: str, block: int | None) -> RepairReply:
        reply = await self.repairs.repair(actor, dag, job, block)
        if reply.task_id is not None:
            # It waits for its next attempt, or is about to fail the one that it has.
            await self.actions.retry(actor, reply.task_id)
        return reply

    async def _read_log(self, request: HttpRequest[None]) -> TaskLog:
        places = await self._read(
            request, lambda db, org, r: find_logs(db, self.config, org, r["task_id"], r["attempt"])
        )
        positions = LogPositions(request["stdout_from"], request["stderr_from"], request["lines_from"])
        async with self.fetching.slot(request.user_claims.org):
            return await read_log(self.objects, self.config, places, positions)

    async def _read_rows(self, request: HttpRequest[RowsRequest]) -> StreamReply:
        org, body = request.user_claims.org, request.body
        dataset_uuid, columns = await self._read(request, lambda db, _, r: rows.find_table(db, org, r["name"], r.body))
        if self.tables is None:
            raise StoreUnavailableError("This Dispatcher has no access to Postgres data: set data_read_dsn.")
        async with AsyncExitStack() as resources:
            await resources.enter_async_context(self.streaming.slot(org))
            batches = self.tables.stream(dataset_uuid, columns, body.head, rows.STREAM_SECONDS, body.live)
            pieces = rows.RowPieces(batches, self.threads, resources.pop_all())
        try:
            await pieces.begin()
        except BaseException:
            await pieces.close()
            raise
        return StreamReply(pieces, ARROW, rows.STREAM_SECONDS, headers=_AS_A_FILE)

    async def _actor(self, request: HttpRequest[Any]) -> Actor:
        claims = request.user_claims
        return Actor(
            subject=claims.sub,
            org=claims.org,
            org_id=await self.orgs.find(claims.org),
            dags=claims.dags,
            read_dags=claims.read_dags,
        )

    async def _read(self, request: HttpRequest[B], view: View[B, R]) -> R:
        """A view is several statements that may be a moment apart, each of them true when it was read."""
        org_id = await self.orgs.find(request.user_claims.org)
        async with self._connection(request.user_claims.org) as connection:
            try:
                return await view(connection, org_id or NO_ORG, request)
            except TraceError as error:
                if error.status != 404:
                    raise
                raise await _explain(connection, org_id or NO_ORG, request, error) from None

    async def _read_numbered(self, request: HttpRequest[B], view: NumberedView[B, R]) -> R:
        ids = await self.ids.of(await self.orgs.find(request.user_claims.org) or NO_ORG)
        return await self._read(request, lambda db, org, r: view(db, org, ids, r))

    @asynccontextmanager
    async def _connection(self, org: str) -> AsyncIterator[Connection]:
        async with self.reading.slot(org), self.store.connection() as connection:
            try:
                yield connection
            except asyncpg.LockNotAvailableError as error:  # a migration, or somebody at the tables by hand
                raise StoreUnavailableError from error


async def _read_document(connection: Connection, org_id: UUID, request: HttpRequest[None]) -> bytes:
    return (await dags.source(connection, org_id, request["dag"], request["number"])).encode()


async def _explain(connection: Connection, org_id: UUID, request: HttpRequest[Any], error: TraceError) -> TraceError:
    """Says of a name that is not there whether it was removed; otherwise it is the same error."""
    if error.code in _ABOUT_REMOVALS:
        return error
    dag, dataset = request.parameters.get("dag"), request.parameters.get("name") or request.parameters.get("dataset")
    removed = None
    if dag is not None:
        removed = await find_removed_dag(connection, org_id, dag)
    elif dataset is not None:
        removed = await find_removed_dataset(connection, org_id, dataset)
    return removed or error


def _without(request: HttpRequest[Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in request.parameters.items() if name not in names}
