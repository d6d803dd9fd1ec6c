"""Verifying: once per token, not once per call.

A token that this process signed, or has checked before, is recognised by its exact text; only its expiry is looked at
again. An unknown `kid` makes the key ring look for new keys; after a look in vain, not again for a second.
"""

import time
from collections import OrderedDict
from datetime import datetime

import msgspec
from cryptography.hazmat.primitives.asymmetric import ec

from tracelake.dispatcher.tokens import jws
from tracelake.dispatcher.tokens.claims import AUDIENCE, VerifiedClaims
from tracelake.errors import TraceError
from tracelake.ports import Signer
from tracelake.wire.claims import Jwk, Jwks

_REMEMBERED = 20_000
_REFRESH_SECONDS = 1.0


class KeyDirectory:
    """The public half of a key ring, by kid."""

    def __init__(self, signer: Signer) -> None:
        self._signer = signer
        self._keys: dict[str, ec.EllipticCurvePublicKey] = {}
        self._looked_in_vain = -_REFRESH_SECONDS

    def find(self, kid: str, now: datetime) -> ec.EllipticCurvePublicKey | None:
        key = self._keys.get(kid)
        if key is None and time.monotonic() - self._looked_in_vain >= _REFRESH_SECONDS:
            self._signer.refresh()
            self._keys = {key.kid: jws.public_key(key) for key in self._signer.public_keys(now)}
            key = self._keys.get(kid)
            if key is None:  # only rubbish is made to wait: a look that found its key costs the next one nothing
                self._looked_in_vain = time.monotonic()
        return key

    def jwks(self, now: datetime) -> Jwks:
        self._signer.refresh()
        keys = self._signer.public_keys(now)
        return Jwks(keys=[Jwk(kid=key.kid, x=jws.b64(key.x), y=jws.b64(key.y)) for key in keys])


class TokenVerifier:
    def __init__(self, keys: KeyDirectory, issuer: str) -> None:
        self._keys = keys
        self._issuer = issuer
        self._known: OrderedDict[str, VerifiedClaims] = OrderedDict()

    def verify(self, token: str, now: datetime) -> VerifiedClaims:
        claims = self._known.get(token)
        if claims is None:
            claims = self._check(token, now)
            self.remember(token, claims)
        if claims.exp <= now.timestamp():
            raise TraceError("credential_expired")
        return claims

    def remember(self, token: str, claims: VerifiedClaims) -> None:
        self._known[token] = claims
        if len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)

    def _check(self, token: str, now: datetime) -> VerifiedClaims:
        payload = jws.verify(token, lambda kid: self._keys.find(kid, now))
        try:
            claims = msgspec.json.decode(payload, type=VerifiedClaims)
        except jws.UNREADABLE as error:
            raise TraceError("credential_malformed") from error
        if claims.aud != AUDIENCE or claims.iss != self._issuer or claims.sub != f"task:{claims.task_id}":
            raise TraceError("credential_invalid")
        return claims
