"""User tokens on the public listener: who is asking, for which org, in which roles."""

from datetime import datetime

import msgspec

from tracelake.dispatcher.tokens import jws
from tracelake.dispatcher.tokens.verify import KeyDirectory
from tracelake.errors import TraceError

AUDIENCE = "trace.user"


class UserClaims(msgspec.Struct, frozen=True, kw_only=True):
    iss: str
    aud: str
    sub: str
    iat: int
    exp: int
    org: str
    roles: list[str]


class UserVerifier:
    def __init__(self, keys: KeyDirectory, issuer: str) -> None:
        self._keys = keys
        self._issuer = issuer

    def verify(self, token: str, now: datetime) -> UserClaims:
        _, payload = jws.verify(token, lambda kid: self._keys.find(kid, now))
        try:
            claims = msgspec.json.decode(payload, type=UserClaims)
        except jws.UNREADABLE as error:
            raise TraceError("credential_malformed") from error
        if claims.aud != AUDIENCE or claims.iss != self._issuer:
            raise TraceError("credential_invalid")
        if claims.exp <= now.timestamp():
            raise TraceError("credential_expired")
        return claims
