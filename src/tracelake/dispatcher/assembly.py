"""A whole Dispatcher from its ports: the object graph, the loops, and the applications of the three listeners."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from secrets import token_bytes
from typing import Any

from tracelake.db.transaction import Store
from tracelake.dispatcher.access.user_tokens import UserTokens
from tracelake.dispatcher.actions import UserActions
from tracelake.dispatcher.batch_queries.outcomes import BATCH as QUERIES_BATCH
from tracelake.dispatcher.batch_queries.outcomes import QueryOutcomes
from tracelake.dispatcher.batch_queries.query_job import QueryJobs
from tracelake.dispatcher.batch_queries.states import BatchQueries
from tracelake.dispatcher.batch_queries.submission import BatchSubmissions
from tracelake.dispatcher.buffers.artifact_retention import PAGE as ARTIFACTS_PAGE
from tracelake.dispatcher.buffers.artifact_retention import ArtifactCollector
from tracelake.dispatcher.buffers.commits import BufferCommits
from tracelake.dispatcher.buffers.dead_batches import DeadBatches
from tracelake.dispatcher.bundles.inspection import BundleInspector, ThreadInspector
from tracelake.dispatcher.bundles.upload_retention import PAGE as UPLOADS_PAGE
from tracelake.dispatcher.bundles.upload_retention import UploadCollector
from tracelake.dispatcher.bundles.uploads import BundleUploads
from tracelake.dispatcher.clock import StoreClock
from tracelake.dispatcher.config import DispatcherConfig
from tracelake.dispatcher.deploy.builds import Builds
from tracelake.dispatcher.deploy.deployments import Deployments
from tracelake.dispatcher.deploy.reading import DocumentReader, FairReader, ThreadReader
from tracelake.dispatcher.deploy.removals import Removals
from tracelake.dispatcher.engine.calls.call import AnyCall
from tracelake.dispatcher.engine.catch_up.edge_drain import EdgeDrain
from tracelake.dispatcher.engine.catch_up.pace import BackgroundPace
from tracelake.dispatcher.engine.catch_up.routing_reconciler import RoutingReconciler
from tracelake.dispatcher.engine.group_commit import SLOW_LANES, GroupCommit
from tracelake.dispatcher.engine.lanes import CallOutcome
from tracelake.dispatcher.engine.pressure.upstream import UpstreamDirectory
from tracelake.dispatcher.engine.pressure.watch import PressureWatch
from tracelake.dispatcher.engine.routing.changed_units import ChangedUnits
from tracelake.dispatcher.engine.routing.directory import EdgeDirectory
from tracelake.dispatcher.engine.routing.drafts import TaskDrafts
from tracelake.dispatcher.engine.routing.router import EventRouter
from tracelake.dispatcher.engine.spans import Tracing
from tracelake.dispatcher.engine.transaction import LifecycleCommit
from tracelake.dispatcher.engine.writer import Writer
from tracelake.dispatcher.http.credentials import Gatekeeper, SecretMatcher
from tracelake.dispatcher.http.health import HealthChecks
from tracelake.dispatcher.http.machine_endpoints import MachineEndpoints
from tracelake.dispatcher.http.user_endpoints import UserEndpoints
from tracelake.dispatcher.invoke.loop import Invocations
from tracelake.dispatcher.job_definitions import Definitions
from tracelake.dispatcher.loops.gauges import Gauges
from tracelake.dispatcher.loops.reaper import BATCH as REAPER_BATCH
from tracelake.dispatcher.loops.reaper import Reaper
from tracelake.dispatcher.loops.reconciler import Reconciler
from tracelake.dispatcher.loops.requeue import BATCH as RETRY_BATCH
from tracelake.dispatcher.loops.requeue import RetryScheduler
from tracelake.dispatcher.loops.timer import Loop, RunOnce
from tracelake.dispatcher.loops.uncommitted_files import PAGE as COLLECTOR_PAGE
from tracelake.dispatcher.loops.uncommitted_files import Collector
from tracelake.dispatcher.metrics import Metrics
from tracelake.dispatcher.mint import TokenMint
from tracelake.dispatcher.openlineage.sender import BATCH as LINEAGE_BATCH
from tracelake.dispatcher.openlineage.sender import SEND_SECONDS as LINEAGE_SECONDS
from tracelake.dispatcher.openlineage.sender import LineageSender
from tracelake.dispatcher.outbox.relay import OutboxRelay
from tracelake.dispatcher.public_ids import PublicIds
from tracelake.dispatcher.quotas.admin import QuotaAdmin
from tracelake.dispatcher.quotas.book import QuotaBook
from tracelake.dispatcher.quotas.watch import QuotaWatch
from tracelake.dispatcher.retention.loop import BATCH as RETENTION_BATCH
from tracelake.dispatcher.retention.loop import Retention
from tracelake.dispatcher.run_logs.log_retention import PAGE as LOGS_PAGE
from tracelake.dispatcher.run_logs.log_retention import LogCollector
from tracelake.dispatcher.service import DispatcherService
from tracelake.dispatcher.sources.cron import CronSources
from tracelake.dispatcher.sources.delivery_retention import DeliveryPruner
from tracelake.dispatcher.sources.monitor import SourceMonitor
from tracelake.dispatcher.sources.pause import SourcePauses
from tracelake.dispatcher.sources.repair import SourceRepairs
from tracelake.dispatcher.sources.webhook_deliveries import Deliveries
from tracelake.dispatcher.sources.webhook_paths import WebhookAdmin
from tracelake.dispatcher.task_credentials import TaskCredentials
from tracelake.dispatcher.views.orgs import Orgs
from tracelake.dispatcher.views.rows import TableRows
from tracelake.http.app import ListenerApp
from tracelake.http.rates import RateLimiter
from tracelake.http.router import Router
from tracelake.ports import (
    CredentialMinter,
    DerivedSecrets,
    Invoker,
    ObjectStore,
    ObjectUrls,
    Queue,
    Signer,
    WebhookSecrets,
)
from tracelake.ports.webhook_secrets import MASTER_KEY_BYTES
from tracelake.tokens.jwks import RingKeys
from tracelake.tokens.revocations import RevocationCheck
from tracelake.tokens.users import UserKeys, UserVerifier
from tracelake.tokens.verify import KeyDirectory, TokenVerifier
from tracelake.wire.contract import DISPATCHER_LISTENERS, Principal, Route
from tracelake.wire.tokens import RevocationEntry

COLLECT_SECONDS = 60.0
RETENTION_SECONDS = 600.0
REMOVALS_SECONDS = 10.0
QUERIES_SECONDS = 30.0
GAUGE_SECONDS = 5.0
BUILD_SECONDS = 1.0
SOURCES_SECONDS = 1.0
QUOTA_SECONDS = 1.0
PRESSURE_SECONDS = 1.0
DRAIN_SECONDS = 1.0
"""Edges that another Dispatcher left behind; its own are taken on at once."""


@dataclass(frozen=True, slots=True)
class Ports:
    """What a Dispatcher is given; the composition root chooses the adapters."""

    store: Store
    queue: Queue
    objects: ObjectStore
    invoker: Invoker
    task_signer: Signer
    user_signer: Signer
    worker_secret: SecretMatcher
    service_secret: SecretMatcher
    metrics_secret: SecretMatcher | None = None
    """For a monitoring system; without it metrics need no credential, which is for a listener on loopback."""
    user_keys: UserKeys | None = None
    """Of an identity provider; without them user tokens are those that user_signer signs."""
    webhook_secrets: WebhookSecrets = field(default_factory=lambda: DerivedSecrets(token_bytes(MASTER_KEY_BYTES)))
    """Without it from a key that this process alone has, and takes along when it ends."""
    minter: CredentialMinter | None = None
    """Of credentials of the object store for users' code; without it the code gets none."""
    tables: TableRows | None = None
    """Of Postgres data, for people who read buffered datasets; without it they cannot."""
    documents: DocumentReader = field(default_factory=ThreadReader)
    """Without it documents are read in threads of this process, which share its interpreter with everything else."""
    urls: ObjectUrls | None = None
    """Addresses of single objects, for uploads of bundles and for their runs; without it there are no bundles."""
    bundles: BundleInspector = field(default_factory=ThreadInspector)
    """As `documents`, for archives."""
    query_url: Callable[[], str | None] = lambda: None
    """The address of the Query Service for people, as it is now."""


def reserved_connections(size: int, config: DispatcherConfig) -> int:
    """How many of a pool's connections belong to lifecycle calls: one for each lane and one for the health check, and
    at most half of a pool that is too small for that."""
    return min(2 * config.group_commit_lanes + SLOW_LANES + 1, size // 2)


class Dispatcher:
    def __init__(self, ports: Ports, config: DispatcherConfig) -> None:
        self.ports = ports
        self.metrics = Metrics()
        self.clock = StoreClock()
        store, objects, queue, metrics = ports.store, ports.objects, ports.queue, self.metrics
        definitions, ids = Definitions(), PublicIds(store)
        keys = KeyDirectory(ports.task_signer)
        verifier = TokenVerifier(keys, config.issuer)
        mint = TokenMint(keys, definitions, config, verifier)
        self.quotas = QuotaBook(config.quotas)

        # Who routes and writes
        directory = EdgeDirectory(definitions)
        upstream = UpstreamDirectory(self.quotas.holds_back)
        drafts = TaskDrafts(definitions, config, self.quotas.limits_running)
        router = EventRouter(definitions, directory, upstream, drafts, ChangedUnits(config, drafts))
        self.tracing = _tracing(config, definitions, self.clock, metrics)
        self.writer = Writer(router, config, self.tracing, on_made=self.quotas.note_made)
        # New work needs no poll: the process that writes outbox rows wakes its own loops.
        self._commit = LifecycleCommit(
            store,
            definitions,
            self.writer,
            config,
            self.clock,
            metrics,
            on_outbox=lambda: self._relay_loop.nudge(),
            on_freed_edge=lambda: self._drain_loop.nudge(),
            on_invoke=lambda: self._invoke_loop.nudge(),
            stopped=upstream.stopped,
        )
        self._live_calls = 0
        self.group = GroupCommit(
            self._commit_counted,
            max_batch=config.group_commit_max,
            lanes=config.group_commit_lanes,
            max_weight=config.group_commit_weight,
        )

        # What loops do
        pace = BackgroundPace(lambda: self._live_calls)
        self.relay = OutboxRelay(store, queue, config, metrics)
        self.drain = EdgeDrain(store, directory, upstream, router, self.writer, metrics, pace)
        self.quota_watch = QuotaWatch(store, queue, self.quotas, config)
        self.pressure = PressureWatch(store, upstream)
        self.builds = Builds(store, config)
        self.monitor = SourceMonitor(store, self.writer, definitions, config, metrics, self.quotas)
        self.pruner = DeliveryPruner(store, config)
        self.invocations = Invocations(
            store=store,
            group=self.group,
            definitions=definitions,
            mint=mint,
            clock=self.clock,
            invoker=ports.invoker,
            config=config,
            metrics=metrics,
            on_free=lambda: self._invoke_loop.nudge(),
            quotas=self.quotas,
            urls=ports.urls,
        )
        self.reaper = Reaper(store, self.writer, config, metrics, self.clock)
        self.retries = RetryScheduler(store, self.writer, definitions, config, metrics)
        self.reconciler = Reconciler(store, queue, config, metrics)
        self.routing_reconciler = RoutingReconciler(store, config, metrics)
        self.collector = Collector(store, objects, definitions, config)
        self.artifacts = ArtifactCollector(store, objects, config)
        self.uploads = UploadCollector(store, objects, config)
        self.logs = LogCollector(store, objects, config)
        self.retention = Retention(store, objects, queue, config)
        self.query_outcomes = QueryOutcomes(store, config)
        self.lineage = LineageSender(store, definitions, config, metrics) if config.openlineage_url else None
        self.gauges = Gauges(store, queue, metrics, self.pressure)

        # Who answers calls
        self.service = DispatcherService(
            store=store,
            objects=objects,
            group=self.group,
            definitions=definitions,
            directory=directory,
            mint=mint,
            clock=self.clock,
            config=config,
            metrics=metrics,
            ids=ids,
            task_credentials=TaskCredentials(ports.minter),
            quotas=self.quotas,
        )
        self.actions = UserActions(
            store=store,
            group=self.group,
            definitions=definitions,
            directory=directory,
            router=router,
            writer=self.writer,
            metrics=metrics,
            on_outbox=self._wake,
            upstream=upstream,
            ids=ids,
            tracing=self.tracing,
            quotas=self.quotas,
        )
        self.batch_queries = BatchQueries(
            store=store,
            group=self.group,
            submissions=BatchSubmissions(
                store=store,
                jobs=QueryJobs(store, definitions, config),
                writer=self.writer,
                config=config,
                metrics=metrics,
                quotas=self.quotas,
                on_outbox=self._wake,
            ),
            outcomes=self.query_outcomes,
            config=config,
        )
        self.documents = FairReader(ports.documents, config)
        self.deployments = Deployments(store, config, self._deployed, self.documents, quotas=self.quotas)
        self.removals = Removals(store, config, self._deployed, lambda: self._removals_loop.nudge())
        self.pauses = SourcePauses(store, self._paused)
        self.repairs = SourceRepairs(store)
        self.cron = CronSources(
            store=store, definitions=definitions, writer=self.writer, metrics=metrics, on_outbox=self._wake
        )
        self.deliveries = Deliveries(
            store=store,
            definitions=definitions,
            writer=self.writer,
            secrets=ports.webhook_secrets,
            config=config,
            metrics=metrics,
            on_outbox=self._wake,
            upstream=upstream,
            ids=ids,
        )
        self.buffers = BufferCommits(store=store, writer=self.writer, metrics=metrics, on_outbox=self._wake)
        user_ring = KeyDirectory(ports.user_signer)
        self.revocations = RevocationCheck(self._load_revocations)
        self.tokens = UserTokens(
            store=store,
            keys=user_ring,
            rules=config.user_tokens,
            clock=self.clock,
            signs=ports.user_keys is None,
            on_revoked=self.revocations.forget,
        )
        gatekeeper = Gatekeeper(
            tasks=verifier,
            users=UserVerifier(ports.user_keys or RingKeys(user_ring), config.user_tokens),
            revocations=self.revocations,
            worker=ports.worker_secret,
            service=ports.service_secret,
            monitoring=ports.metrics_secret,
            rates=RateLimiter(config.user_rate_per_second, config.user_rate_burst),
            clock=self.clock,
            metrics=metrics,
        )
        machines = MachineEndpoints(
            self.service,
            gatekeeper,
            keys,
            user_ring,
            HealthChecks(store, queue, self.group, config.group_commit_stall_seconds),
            self.deliveries,
            self.cron,
            self.buffers,
            queue,
            self.documents,
            self.retention,
            QuotaAdmin(store, self.quotas),
            self.batch_queries,
            self.tokens,
        )
        users = UserEndpoints(
            store=store,
            orgs=Orgs(store),
            deployments=self.deployments,
            removals=self.removals,
            actions=self.actions,
            pauses=self.pauses,
            repairs=self.repairs,
            webhooks=WebhookAdmin(store, ports.webhook_secrets, config),
            dead_batches=DeadBatches(store, self._wake),
            objects=objects,
            ids=ids,
            quotas=self.quotas,
            tables=ports.tables,
            bundles=BundleUploads(store, objects, ports.urls, ports.bundles, config),
            config=config,
            tokens=self.tokens,
            query_url=ports.query_url,
        )
        endpoints = machines.endpoints() + users.endpoints()
        self.apps = {
            listener: ListenerApp(
                listener.value,
                Router(endpoint for endpoint in endpoints if listener in endpoint.route.listeners),
                gatekeeper,
                metrics,
                body_max_bytes=config.body_max_bytes,
                batch_body_max_bytes=config.batch_body_max_bytes,
                webhook_max_bytes=config.webhook_max_bytes,
                anonymous_body_bytes=config.http_anonymous_body_bytes,
                on_refusal=self._count_refused_delivery,
            )
            for listener in DISPATCHER_LISTENERS
        }
        self.loops = self._make_loops(config)
        self._running: list[asyncio.Task[None]] = []

    async def _load_revocations(self) -> list[RevocationEntry]:
        return (await self.tokens.list_revocations()).revocations

    def _count_refused_delivery(self, route: Route[Any, Any], code: str) -> None:
        """`Deliveries` counts what gets as far as to it."""
        if route.principal is Principal.WEBHOOK:
            self.metrics.deliveries.labels(code).inc()

    def _make_loops(self, config: DispatcherConfig) -> list[Loop]:
        def loop(name: str, run_once: RunOnce, every_seconds: float, full_round: int = 0) -> Loop:
            return Loop(name, run_once, every_seconds=every_seconds, metrics=self.metrics, full_round=full_round)

        wake = self._wake
        self._relay_loop = loop("relay", self.relay.run_once, config.relay_poll_seconds, config.relay_batch)
        self._drain_loop = loop("drain", _then(self.drain.run_once, wake), DRAIN_SECONDS, 1)
        drain = self._drain_loop.nudge
        self._sources_loop = loop("sources", self._watch_sources, SOURCES_SECONDS)
        build = _then(self.builds.run_once, drain, self._sources_loop.nudge, wake)
        self._builds_loop = loop("builds", build, BUILD_SECONDS)
        self._invoke_loop = loop("invoke", self.invocations.run_once, config.relay_poll_seconds)
        self._retention_loop = loop("retention", self.retention.run_once, RETENTION_SECONDS, RETENTION_BATCH)
        purge = _then(self.retention.removed_dags.run_once, self._retention_loop.nudge)
        self._removals_loop = loop("removals", purge, REMOVALS_SECONDS, 1)
        loops = [
            self._relay_loop,
            self._drain_loop,
            loop("quotas", _then(self.quota_watch.run_once, drain, wake), QUOTA_SECONDS),
            loop("pressure", _then(self.pressure.run_once, drain), PRESSURE_SECONDS),
            self._builds_loop,
            self._sources_loop,
            self._invoke_loop,
            loop("reaper", _then(self.reaper.run_once, wake), config.reaper_seconds, REAPER_BATCH),
            loop("retry", _then(self.retries.run_once, wake), config.retry_seconds, RETRY_BATCH),
            loop("reconciler", self._reconcile, config.reconcile_seconds),
            loop("collector", self.collector.run_once, COLLECT_SECONDS, COLLECTOR_PAGE),
            loop("artifacts", self.artifacts.run_once, COLLECT_SECONDS, ARTIFACTS_PAGE),
            loop("uploads", self.uploads.run_once, COLLECT_SECONDS, UPLOADS_PAGE),
            loop("logs", self.logs.run_once, COLLECT_SECONDS, LOGS_PAGE),
            self._removals_loop,
            self._retention_loop,
            loop("queries", self.query_outcomes.run_once, QUERIES_SECONDS, QUERIES_BATCH),
            loop("gauges", self.gauges.run_once, GAUGE_SECONDS),
        ]
        if self.lineage is not None:
            loops.append(loop("openlineage", self.lineage.run_once, LINEAGE_SECONDS, LINEAGE_BATCH))
        return loops

    def start_loops(self) -> None:
        self._running = [asyncio.create_task(loop.run(), name=loop.name) for loop in self.loops]

    async def stop(self) -> None:
        """Finish what was accepted, then let the loops end their round."""
        await self.invocations.close()
        await self.group.close()
        for loop in self.loops:
            loop.stop()
        if self._running:
            await asyncio.wait(self._running, timeout=5.0)
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        if self.tracing is not None:
            await self.tracing.close()
        if self.lineage is not None:
            await self.lineage.close()

    async def _commit_counted(self, calls: Sequence[AnyCall], *, patient: bool) -> list[CallOutcome]:
        self.metrics.group_batches.inc()
        self.metrics.group_calls.inc(len(calls))
        self._live_calls += len(calls)
        return await self._commit(calls, patient=patient)

    def _deployed(self) -> None:
        """Edges may be behind now, tasks ready, a build begun, and sources without their run."""
        self._drain_loop.nudge()
        self._sources_loop.nudge()
        self._builds_loop.nudge()
        self._wake()

    async def _watch_sources(self) -> int:
        done = await self.monitor.run_once()
        await self.pruner.run_when_due()
        if done:
            self._wake()
        return done

    def _paused(self) -> None:
        """A source that was paused hears it at its next heartbeat; what was kept of one that goes on drains."""
        self._sources_loop.nudge()
        self._drain_loop.nudge()

    async def _reconcile(self) -> int:
        repaired = await self.routing_reconciler.run_once()
        if repaired:
            self._drain_loop.nudge()
        repaired += await self.reconciler.run_once()
        if repaired:
            self._wake()
        return repaired

    def _wake(self) -> None:
        self._relay_loop.nudge()
        self._invoke_loop.nudge()


def _then(run_once: RunOnce, *nudges: Callable[[], None]) -> RunOnce:
    """Rounds that, where they did something, wake the loops that go on from there."""

    async def run() -> int:
        done = await run_once()
        if done:
            for nudge in nudges:
                nudge()
        return done

    return run


def _tracing(config: DispatcherConfig, definitions: Definitions, clock: StoreClock, metrics: Metrics) -> Tracing | None:
    if not config.otlp_endpoint:
        return None
    from tracelake.dispatcher.tracing.exporter import OtlpSink  # slow to import: only who traces waits for it

    sink = OtlpSink(config.otlp_endpoint, metrics.spans_dropped.inc)
    return Tracing(sink, definitions, clock, config.otlp_sample_ratio)
