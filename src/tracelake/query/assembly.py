"""A whole Query Service from its parts: the object graph and the applications of its two listeners."""

import asyncio
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tracelake.client import InternalClient
from tracelake.errors import TraceError
from tracelake.http.app import ListenerApp
from tracelake.http.rates import RateLimiter
from tracelake.http.router import Router
from tracelake.ports import ObjectStore
from tracelake.query.batch import BatchQueryFront
from tracelake.query.broker import TableBroker
from tracelake.query.control import ControlPlane
from tracelake.query.credentials import MetricsSecret, QueryGatekeeper, TaskTokens, served_keys
from tracelake.query.endpoints import QueryEndpoints
from tracelake.query.engine.server import EngineServer
from tracelake.query.execution import EngineResources, QueryExecution
from tracelake.query.exports import ExportTransfer, ResultExports
from tracelake.query.files import QueryFiles
from tracelake.query.metrics import QueryMetrics
from tracelake.query.parts import SqlGate
from tracelake.query.result_pieces import ResultPieces
from tracelake.query.service import QueryLimits, QueryService
from tracelake.query.slots import QuerySlots, SlotLimits
from tracelake.storage.file_cache import FileCache
from tracelake.tokens.revocations import RevocationCheck
from tracelake.tokens.users import UserKeys, UserTokenRules, UserVerifier
from tracelake.wire import routes
from tracelake.wire.contract import QUERY_LISTENERS

EXPIRE_SECONDS = 600.0
_CHECK_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryServiceConfig:
    limits: QueryLimits
    slots: SlotLimits
    resources: EngineResources
    cache_bytes: int
    scratch_bucket: str
    download_seconds: int
    issuer: str
    user_tokens: UserTokenRules
    jwks_cache_seconds: int
    user_rate_per_second: float
    user_rate_burst: float
    body_max_bytes: int
    http_anonymous_body_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryPorts:
    """What the service is given. It has no credential for the state database and no signing key."""

    dispatcher: InternalClient
    """With the service token."""
    gate: SqlGate
    engine: EngineServer
    """Started, and closed by whoever made it."""
    transfer: ExportTransfer
    objects: ObjectStore
    data_dsn: Callable[[], str]
    """Of the role that reads buffered datasets."""
    directory: Path
    """The service's own, for its cache and for queries that run."""
    user_keys: UserKeys | None = None
    """Of an identity provider; without them user tokens are those that the Dispatcher's keys sign."""
    metrics_secret: MetricsSecret | None = None


class QueryApplication:
    """Must be made on the event loop that serves."""

    def __init__(self, ports: QueryPorts, config: QueryServiceConfig) -> None:
        self._ports = ports
        self.metrics = QueryMetrics()
        self.control = ControlPlane(ports.dispatcher)
        self.exports = ResultExports(
            transfer=ports.transfer, bucket=config.scratch_bucket, download_seconds=config.download_seconds
        )
        self._cache = FileCache(ports.directory / "cache", ports.transfer, config.cache_bytes, self.metrics)
        self.metrics.cache_limit_bytes.set(config.cache_bytes)
        (ports.directory / "cache").mkdir(parents=True, exist_ok=True, mode=0o700)
        running = ports.directory / "running"
        shutil.rmtree(running, ignore_errors=True)  # of a service that was killed
        running.mkdir(parents=True, mode=0o700)
        self.service = QueryService(
            control=self.control,
            gate=ports.gate,
            execution=QueryExecution(ports.engine, config.resources),
            files=QueryFiles(self._cache),
            broker=TableBroker(ports.data_dsn),
            exports=self.exports,
            slots=QuerySlots(config.slots, self.metrics),
            limits=config.limits,
            metrics=self.metrics,
            directory=running,
        )
        dispatcher = ports.dispatcher
        user_keys = ports.user_keys or served_keys(
            lambda: dispatcher.call(routes.READ_USER_KEYS), config.jwks_cache_seconds
        )
        task_keys = served_keys(lambda: dispatcher.call(routes.READ_TASK_KEYS), config.jwks_cache_seconds)
        gatekeeper = QueryGatekeeper(
            users=UserVerifier(user_keys, config.user_tokens),
            revocations=RevocationCheck(self.control.revocations),
            tasks=TaskTokens(task_keys, config.issuer),
            monitoring=ports.metrics_secret,
            rates=RateLimiter(config.user_rate_per_second, config.user_rate_burst),
            metrics=self.metrics,
        )
        batch = BatchQueryFront(self.control, ports.gate, self.exports, self.service.slots, self.metrics)
        pieces = ResultPieces(ports.objects, self.exports, batch)
        endpoints = QueryEndpoints(self.service, batch, self.metrics, self._check, pieces).endpoints()
        self.apps = {
            listener: ListenerApp(
                listener.value,
                Router(endpoint for endpoint in endpoints if listener in endpoint.route.listeners),
                gatekeeper,
                self.metrics,
                body_max_bytes=config.body_max_bytes,
                batch_body_max_bytes=config.body_max_bytes,
                webhook_max_bytes=config.body_max_bytes,
                anonymous_body_bytes=config.http_anonymous_body_bytes,
            )
            for listener in QUERY_LISTENERS
        }
        self._checked_at = -_CHECK_SECONDS
        self._checks: dict[str, str] = {}
        self._expiry: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._expiry = asyncio.create_task(self._expire())

    async def close(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
            await asyncio.wait({self._expiry})
        await self.control.close()

    async def _check(self) -> dict[str, str]:
        """Asks the Dispatcher at most once a second."""
        if time.monotonic() - self._checked_at >= _CHECK_SECONDS:
            try:
                async with asyncio.timeout(3.0):
                    await self._ports.dispatcher.call(routes.READ_USER_KEYS)
                state = "ok"
            except (TraceError, TimeoutError):
                state = "unavailable"
            self._checks, self._checked_at = {"dispatcher": state}, time.monotonic()
        return self._checks

    async def _expire(self) -> None:
        while True:
            await asyncio.to_thread(self._cache.shrink)  # the limit may be lower than it was
            await self.exports.delete_expired(self._ports.objects)
            await asyncio.sleep(EXPIRE_SECONDS)
