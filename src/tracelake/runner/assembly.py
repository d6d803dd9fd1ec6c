"""A whole runner from its parts: the object graph and the application of its listener."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import msgspec

from tracelake import __version__
from tracelake.bundles.archive import ArchiveLimits
from tracelake.client import HttpClient, TaskClient
from tracelake.errors import TraceError
from tracelake.http.app import ListenerApp
from tracelake.http.router import HttpRequest, RawReply, Router, answer
from tracelake.runner.attempt import AttemptTools
from tracelake.runner.bundles import BundleCache
from tracelake.runner.egress import Destinations
from tracelake.runner.function import FunctionRunner
from tracelake.runner.metrics import RunnerMetrics
from tracelake.runner.run_log import LogUploads
from tracelake.runner.service import RunnerService
from tracelake.wire import platform, routes
from tracelake.wire.claims import InvokeReply, InvokeRequest
from tracelake.wire.contract import HEADERS, JSON, Listener, Principal


class AcceptedSecret(Protocol):
    def matches(self, token: str, now: datetime) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerConfig:
    slots: int
    wait_seconds: float
    scratch_bytes: int
    cache_bytes: int
    bundle_limits: ArchiveLimits
    heartbeat_seconds: float
    body_max_bytes: int
    batch_body_max_bytes: int
    http_anonymous_body_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerPorts:
    """What the runner is given. It has no credential for a database or the object store, and no signing key."""

    functions: FunctionRunner
    tasks: HttpClient
    """Of the task listener; closed by whoever made it."""
    destinations: Destinations
    directory: Path
    """The runner's own, for unpacked bundles."""
    service_secret: AcceptedSecret
    metrics_secret: AcceptedSecret | None = None
    """None: metrics are open, since only programs on this machine can ask."""
    problem: str | None = None
    """Why this machine cannot isolate functions."""


class RunnerApplication:
    """Must be made on the event loop that serves."""

    def __init__(self, ports: RunnerPorts, config: RunnerConfig) -> None:
        self._ports = ports
        self.metrics = RunnerMetrics()
        self.logs = LogUploads(lambda outcome: self.metrics.log_uploads.labels(outcome).inc())
        self.service = RunnerService(
            AttemptTools(
                functions=ports.functions,
                bundles=BundleCache(
                    ports.directory / "bundles",
                    config.cache_bytes,
                    config.bundle_limits,
                    on_changed=self.metrics.changed_bundles.inc,
                ),
                tasks=TaskClient(ports.tasks),
                destinations=ports.destinations,
                scratch_bytes=config.scratch_bytes,
                heartbeat_seconds=config.heartbeat_seconds,
                logs=self.logs,
            ),
            self.metrics,
            slots=config.slots,
            wait_seconds=config.wait_seconds,
            problem=ports.problem,
        )
        endpoints = (
            answer(routes.INVOKE_FUNCTION, self._invoke),
            answer(routes.HEALTHZ, self._health),
            answer(routes.READYZ, self._ready),
            answer(routes.METRICS, self._metrics),
        )
        self.app = ListenerApp(
            Listener.RUNNER.value,
            Router(endpoints),
            RunnerGatekeeper(ports.service_secret, ports.metrics_secret, self.metrics),
            self.metrics,
            body_max_bytes=config.body_max_bytes,
            batch_body_max_bytes=config.batch_body_max_bytes,
            webhook_max_bytes=config.body_max_bytes,
            anonymous_body_bytes=config.http_anonymous_body_bytes,
        )

    async def close(self) -> None:
        await self.service.close()
        await self.logs.close()

    async def _invoke(self, request: HttpRequest[InvokeRequest]) -> InvokeReply:
        return await self.service.take(request.body)

    async def _health(self, _request: HttpRequest[None]) -> RawReply:
        return _report_health({})

    async def _ready(self, _request: HttpRequest[None]) -> RawReply:
        return _report_health({"sandbox": "ok" if self._ports.problem is None else "unavailable"})

    async def _metrics(self, _request: HttpRequest[None]) -> bytes:
        return self.metrics.render()


@dataclass(frozen=True, slots=True)
class RunnerGatekeeper:
    """The Admission of the listener: Dispatchers have the service token."""

    service: AcceptedSecret
    monitoring: AcceptedSecret | None
    metrics: RunnerMetrics
    now: Callable[[], datetime] = lambda: datetime.now(UTC)

    async def admit(self, request: HttpRequest[Any], header: Callable[[str], str | None]) -> None:
        principal = request.route.principal
        if principal is Principal.NOBODY or (principal is Principal.METRICS and self.monitoring is None):
            return
        try:
            if principal is Principal.METRICS:
                self._check(self.monitoring, (header("authorization") or "").removeprefix("Bearer "), "authorization")
            else:
                name = HEADERS[Principal.SERVICE]
                self._check(self.service, header(name) or "", name)
        except TraceError as refusal:
            self.metrics.token_failures.labels(principal.value, refusal.code).inc()
            raise
        request.proven = True

    def _check(self, secret: AcceptedSecret | None, token: str, name: str) -> None:
        if not token:
            raise TraceError("credential_missing", header=name)
        if secret is None or not secret.matches(token, self.now()):
            raise TraceError("credential_invalid")


def _report_health(checks: dict[str, str]) -> RawReply:
    healthy = all(state == "ok" for state in checks.values())
    body = platform.Health(status="ok" if healthy else "unavailable", checks=checks, version=__version__)
    return RawReply(msgspec.json.encode(body), JSON, 200 if healthy else 503)
