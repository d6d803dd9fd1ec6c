"""Who asks: user tokens and capability tokens, verified with public keys that the Dispatcher serves.

The service holds no signing key. Keys are read again when a token names an unknown one, and now and then.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

import msgspec
from jwt import PyJWK

from tracelake.errors import TraceError
from tracelake.http.metrics import HttpMetrics
from tracelake.http.rates import RateLimiter
from tracelake.http.router import HttpRequest
from tracelake.tokens import jws
from tracelake.tokens.jwks import JwksKeys
from tracelake.tokens.revocations import RevocationCheck
from tracelake.tokens.token_claims import VerifiedClaims
from tracelake.tokens.users import UserVerifier
from tracelake.tokens.verify import TokenVerifier
from tracelake.wire.claims import Jwks
from tracelake.wire.contract import HEADERS, Principal

_LOAD_SECONDS = 10.0


class MetricsSecret(Protocol):
    def matches(self, token: str, now: datetime) -> bool: ...


def served_keys(ask: Callable[[], Awaitable[Jwks]], cache_seconds: float) -> JwksKeys:
    """Keys that the Dispatcher serves. Must be made on the event loop that serves the requests."""
    loop = asyncio.get_running_loop()

    async def read() -> bytes:
        return msgspec.json.encode(await ask())

    def load() -> bytes:
        try:
            return asyncio.run_coroutine_threadsafe(read(), loop).result(_LOAD_SECONDS)
        except (TraceError, TimeoutError) as error:
            raise OSError("the Dispatcher serves no keys") from error

    return JwksKeys(load, again_seconds=1.0, stale_seconds=cache_seconds)


class TaskTokens:
    """Verifies capability tokens; one that was verified is recognised by its text."""

    def __init__(self, keys: JwksKeys, issuer: str) -> None:
        self._keys = keys
        self._verifier = TokenVerifier(_LoadedKeys(keys), issuer)

    async def verify(self, token: str, now: datetime) -> VerifiedClaims:
        await self._keys.find(jws.take_apart(token).header.kid, now)
        return self._verifier.verify(token, now)


class _LoadedKeys:
    def __init__(self, keys: JwksKeys) -> None:
        self._keys = keys

    def find(self, kid: str, now: datetime) -> PyJWK | None:  # noqa: ARG002 - the protocol's
        return self._keys.loaded(kid)


@dataclass(eq=False, kw_only=True)
class QueryGatekeeper:
    """The Admission of both listeners."""

    users: UserVerifier
    revocations: RevocationCheck
    tasks: TaskTokens
    monitoring: MetricsSecret | None
    """None: metrics are open, since only programs on this machine can ask."""
    rates: RateLimiter
    metrics: HttpMetrics
    now: Callable[[], datetime] = lambda: datetime.now(UTC)

    async def admit(self, request: HttpRequest[Any], header: Callable[[str], str | None]) -> None:
        principal = request.route.principal
        if principal is Principal.NOBODY or (principal is Principal.METRICS and self.monitoring is None):
            return
        name = HEADERS[Principal.USER if principal is Principal.METRICS else principal]
        try:
            token = header(name)
            if not token:
                raise TraceError("credential_missing", header=name)
            if principal is Principal.TASK:
                request.claims = await self.tasks.verify(token, self.now())
            elif principal is Principal.USER:
                user = await self.users.verify(_bearer(token), self.now())
                await self.revocations.check(user)
                request.user = user
            elif self.monitoring is None or not self.monitoring.matches(_bearer(token), self.now()):
                raise TraceError("credential_invalid")
        except TraceError as refusal:
            self.metrics.token_failures.labels(principal.value, refusal.code).inc()
            raise
        request.proven = True
        if request.user is not None:
            try:
                self.rates.take((request.user.org, request.user.sub))
            except TraceError:
                self.metrics.rate_limited.inc()
                raise
            request.user.require(request.route.role)


def _bearer(header: str) -> str:
    scheme, _, value = header.partition(" ")
    if scheme.lower() != "bearer":
        raise TraceError("credential_malformed")
    return value
