"""Verifying: once per token, not once per call.

A token that this process signed, or has checked before, is recognised by its exact text; only its expiry is looked at
again, and that its key was not given up. An unknown `kid` makes the key ring look for new keys; after a look in vain,
not again for a second.
"""

import time
from collections import OrderedDict
from datetime import datetime
from typing import Protocol

import msgspec
from jwt import PyJWK

from tracelake.errors import TraceError
from tracelake.ports import PublicKey, Signer
from tracelake.tokens import jws
from tracelake.tokens.token_claims import AUDIENCE, VerifiedClaims
from tracelake.wire.claims import Jwk, Jwks

_REMEMBERED = 20_000
_LOOK_SECONDS = 1.0


class KeyDirectory:
    """A key ring as this process sees it: what other processes add or remove is noticed within a second."""

    def __init__(self, signer: Signer) -> None:
        self._signer = signer
        self._keys: dict[str, PyJWK] = {}
        self._looked = -_LOOK_SECONDS
        self._looked_in_vain = -_LOOK_SECONDS

    def find(self, kid: str, now: datetime) -> PyJWK | None:
        self._look_now_and_then(now)
        key = self._keys.get(kid)
        if key is None and time.monotonic() - self._looked_in_vain >= _LOOK_SECONDS:
            self._look(now)
            key = self._keys.get(kid)
            if key is None:  # only rubbish is made to wait: a look that found its key costs the next one nothing
                self._looked_in_vain = time.monotonic()
        return key

    def sign(self, payload: bytes, now: datetime) -> tuple[str, str]:
        """`(token, kid)`, signed by the key whose turn it is."""
        self._look_now_and_then(now)
        kid = self._signer.current_kid(now)
        return jws.encode(payload, kid, lambda message: self._signer.sign(kid, message)), kid

    def _look_now_and_then(self, now: datetime) -> None:
        if time.monotonic() - self._looked >= _LOOK_SECONDS:
            self._look(now)

    def _look(self, now: datetime) -> None:
        self._looked = time.monotonic()
        self._signer.refresh()
        served = self._signer.public_keys(now)
        if {key.kid for key in served} != self._keys.keys():
            self._keys = {key.kid: PyJWK(msgspec.to_builtins(_jwk(key))) for key in served}

    def jwks(self, now: datetime) -> Jwks:
        self._signer.refresh()
        return Jwks(keys=[_jwk(key) for key in self._signer.public_keys(now)])


def _jwk(key: PublicKey) -> Jwk:
    return Jwk(kid=key.kid, x=jws.b64(key.x), y=jws.b64(key.y))


class KeyFinder(Protocol):
    def find(self, kid: str, now: datetime) -> PyJWK | None: ...


class TokenVerifier:
    def __init__(self, keys: KeyFinder, issuer: str) -> None:
        self._keys = keys
        self._issuer = issuer
        self._verified: OrderedDict[str, tuple[str, VerifiedClaims]] = OrderedDict()

    def verify(self, token: str, now: datetime) -> VerifiedClaims:
        entry = self._verified.get(token)
        if entry is None:
            kid, claims = self._check(token, now)
            self.remember(token, kid, claims)
        else:
            kid, claims = entry
            if self._keys.find(kid, now) is None:  # its key was given up since
                del self._verified[token]
                raise TraceError("credential_unknown_key")
        if claims.exp <= now.timestamp():
            raise TraceError("credential_expired")
        if claims.nbf > now.timestamp():
            raise TraceError("credential_invalid")
        return claims

    def remember(self, token: str, kid: str, claims: VerifiedClaims) -> None:
        self._verified[token] = (kid, claims)
        if len(self._verified) > _REMEMBERED:
            self._verified.popitem(last=False)

    def _check(self, token: str, now: datetime) -> tuple[str, VerifiedClaims]:
        kid, payload = jws.verify(token, lambda kid: self._keys.find(kid, now))
        try:
            claims = msgspec.json.decode(payload, type=VerifiedClaims)
        except jws.UNREADABLE as error:
            raise TraceError("credential_malformed") from error
        if claims.aud != AUDIENCE or claims.iss != self._issuer or claims.sub != f"task:{claims.task_id}":
            raise TraceError("credential_invalid")
        return kid, claims
