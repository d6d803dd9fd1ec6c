"""Credentials: one header per principal, and no other accepted in its place; for users also their rate and role.

The signature of a webhook is only read here: it can be checked once the body is there
(`sources/webhook_deliveries.py`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from tracelake.dispatcher.clock import StoreClock
from tracelake.dispatcher.metrics import Metrics
from tracelake.errors import TraceError
from tracelake.http.rates import RateLimiter
from tracelake.http.router import HttpRequest
from tracelake.tokens.revocations import RevocationCheck
from tracelake.tokens.token_claims import VerifiedClaims
from tracelake.tokens.users import UserClaims, UserVerifier
from tracelake.tokens.verify import TokenVerifier
from tracelake.wire.contract import HEADERS, Principal
from tracelake.wire.webhooks import DELIVERY_HEADER, SignedHead, read_head

CONTENT_TYPE = "content-type"
TRACEPARENT = "traceparent"
CAPABILITY, SERVICE, AUTHORIZATION = HEADERS[Principal.TASK], HEADERS[Principal.SERVICE], HEADERS[Principal.USER]


class SecretMatcher(Protocol):
    def matches(self, token: str, now: datetime) -> bool: ...


@dataclass(eq=False, kw_only=True)
class Gatekeeper:
    tasks: TokenVerifier
    users: UserVerifier
    revocations: RevocationCheck
    worker: SecretMatcher
    service: SecretMatcher
    monitoring: SecretMatcher | None
    """None: metrics are open, since only programs on this machine can ask."""
    rates: RateLimiter
    clock: StoreClock
    metrics: Metrics

    def __post_init__(self) -> None:
        self._secrets = {Principal.WORKER: self.worker, Principal.SERVICE: self.service}

    async def admit(self, request: HttpRequest[Any], header: Callable[[str], str | None]) -> None:
        """Raise 401 (429, 403 for users), or leave what the credential says in the request."""
        principal = request.route.principal
        if principal is Principal.NOBODY or (principal is Principal.METRICS and self.monitoring is None):
            return
        if principal is Principal.ITEMS:
            request.proven = self._is_capability(header(CAPABILITY))
            return
        try:
            if principal is Principal.METRICS:
                self._admit_monitoring(header)
                return
            token = header(HEADERS[principal])
            if not token:
                raise TraceError("credential_missing", header=HEADERS[principal])
            if principal is Principal.WEBHOOK:
                request.signed = _signed_head(token, header(DELIVERY_HEADER), header(CONTENT_TYPE))
            elif principal is Principal.TASK:
                request.claims = self.capability(token)
            elif principal is Principal.USER:
                scheme, _, value = token.partition(" ")
                if scheme.lower() != "bearer":
                    raise TraceError("credential_malformed")
                user = await self.users.verify(value, self.clock.now())
                await self.revocations.check(user)
                request.user = user
            elif not self._secrets[principal].matches(token, self.clock.now()):
                raise TraceError("credential_invalid")
        except TraceError as refused:
            self.metrics.token_failures.labels(principal.value, refused.code).inc()
            raise
        request.proven = principal is not Principal.WEBHOOK
        if request.user is not None:
            self._admit_user(request, request.user)
            request.traceparent = header(TRACEPARENT)

    def _is_capability(self, token: str | None) -> bool:
        """Of a batch: whether the header holds a token. One that does not hold is no error, its items are answered."""
        try:
            return bool(token) and self.item_capability(token or "") is not None
        except TraceError:
            return False

    def _admit_monitoring(self, header: Callable[[str], str | None]) -> None:
        service, bearer = header(SERVICE), header(AUTHORIZATION)
        if not service and not bearer:
            raise TraceError("credential_missing", header=AUTHORIZATION)
        scheme, _, value = (bearer or "").partition(" ")
        now = self.clock.now()
        if service and self._secrets[Principal.SERVICE].matches(service, now):
            return
        if not (self.monitoring and scheme.lower() == "bearer" and self.monitoring.matches(value, now)):
            raise TraceError("credential_invalid")

    def _admit_user(self, request: HttpRequest[Any], user: UserClaims) -> None:
        try:
            self.rates.take((user.org, user.sub))
        except TraceError:
            self.metrics.rate_limited.inc()
            raise
        user.require(request.route.role)

    def capability(self, token: str) -> VerifiedClaims:
        return self.tasks.verify(token, self.clock.now())

    def item_capability(self, token: str) -> VerifiedClaims:
        """The token of one item of a batch."""
        try:
            return self.capability(token)
        except TraceError as refused:
            self.metrics.token_failures.labels(Principal.TASK.value, refused.code).inc()
            raise


def _signed_head(signature: str, delivery_id: str | None, content_type: str | None) -> SignedHead:
    if not delivery_id:
        raise TraceError("credential_missing", header=DELIVERY_HEADER)
    head = read_head(signature, delivery_id, content_type)
    if head is None:
        raise TraceError("signature_malformed")
    return head
