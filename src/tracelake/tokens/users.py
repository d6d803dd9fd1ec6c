"""User tokens on the public listener: who is asking, for which org, in which roles.

Issuer, audience, keys and the names of two claims are configurable, so that tokens of an identity provider can be used
in place of the stack's own. Whatever signed them, the same is checked: signature, issuer, audience, times, and that
subject and org are names that can be stored.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

import msgspec
from jwt import PyJWK

from tracelake.errors import TraceError
from tracelake.tokens import jws
from tracelake.tokens.token_claims import LAST_SECOND
from tracelake.wire.contract import Role

_ORG = re.compile(r"[a-z][a-z0-9_]{0,127}")
# No control characters, and none that are not seen or that reorder what is seen: the audit log names subjects.
_SUBJECT = re.compile(
    r"[^\x00-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e"
    r"\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\ud800-\udfff\U000e0000-\U000e0fff]{1,200}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class UserTokenRules:
    """What a user token must say, and where it says it."""

    issuer: str
    audience: str
    org_claim: str
    roles_claim: str
    dags_claim: str
    read_dags_claim: str


class UserClaims(msgspec.Struct, frozen=True, kw_only=True):
    """A verified user. Only `UserVerifier` makes these, so to hold one is to have checked it."""

    sub: str
    org: str
    roles: list[str]
    exp: float
    dags: tuple[str, ...] | None = None
    """The DAGs to which the token is limited, sorted; None: all of the org."""
    read_dags: tuple[str, ...] = ()
    """The DAGs that a limited token may read besides these, and not change; sorted."""
    token_id: str | None = None
    """`jti`: names the token, to revoke it alone."""
    issued_at: float = 0
    """0: the token does not say when it was issued."""

    @property
    def readable_dags(self) -> tuple[str, ...] | None:
        """The DAGs whose things the token may see; None: all of the org."""
        return None if self.dags is None else tuple(sorted({*self.dags, *self.read_dags}))

    def may(self, role: Role | None) -> bool:
        """Returns whether one of the user's roles includes this one. Unknown roles open nothing. A token that is
        limited to DAGs is no admin's, whatever it says: what admins do concerns all of the org."""
        if role is Role.ADMIN and self.dags is not None:
            return False
        return role is None or any(role in own_role.includes for own_role in Role if own_role in self.roles)

    def require(self, role: Role | None) -> None:
        if role is None or self.may(role):
            return
        if role is Role.ADMIN and self.dags is not None and role in self.roles:
            message = "A token that is limited to DAGs cannot do what an admin does."
            raise TraceError("role_forbidden", message, needed_role=role.value)
        own_roles = ", ".join(each.value for each in Role if each in self.roles) or "none"
        raise TraceError(
            "role_forbidden", f"This needs the role {role.value}; your token has {own_roles}.", needed_role=role.value
        )


class UserKeys(Protocol):
    @property
    def header_type(self) -> type[jws.Header]: ...

    async def find(self, kid: str, now: datetime) -> PyJWK | None: ...


class _Registered(msgspec.Struct, frozen=True, kw_only=True):
    """The claims whose names everybody shares."""

    iss: str
    aud: str | list[str]
    sub: str
    exp: int | float
    nbf: int | float = 0
    iat: int | float = 0
    jti: str | None = None


class UserVerifier:
    def __init__(self, keys: UserKeys, rules: UserTokenRules) -> None:
        self._keys = keys
        self._rules = rules

    async def verify(self, token: str, now: datetime) -> UserClaims:
        parts = jws.take_apart(token, self._keys.header_type)
        payload = jws.check(parts, await self._keys.find(parts.header.kid, now))
        try:
            claims = msgspec.json.decode(payload, type=_Registered)
            org, roles, dags, read_dags = self._own(msgspec.json.decode(payload, type=dict[str, Any]))
        except jws.UNREADABLE as error:
            raise TraceError("credential_malformed") from error
        if claims.exp > LAST_SECOND:
            raise TraceError("credential_malformed")
        audiences = [claims.aud] if isinstance(claims.aud, str) else claims.aud
        if self._rules.audience not in audiences or claims.iss != self._rules.issuer:
            raise TraceError("credential_invalid")
        if not _ORG.fullmatch(org) or not _SUBJECT.fullmatch(claims.sub):
            raise TraceError("credential_invalid")
        if claims.nbf > now.timestamp():
            raise TraceError("credential_invalid")
        if claims.exp <= now.timestamp():
            raise TraceError("credential_expired")
        return UserClaims(
            sub=claims.sub,
            org=org,
            roles=roles,
            exp=claims.exp,
            dags=dags,
            read_dags=read_dags,
            token_id=claims.jti,
            issued_at=claims.iat,
        )

    def _own(self, payload: dict[str, Any]) -> tuple[str, list[str], tuple[str, ...] | None, tuple[str, ...]]:
        """A claim of DAGs that is there is a limit, whatever its value: `null` is malformed, and `[]` opens none. So is
        a claim of DAGs to read: alone, it leaves none to change."""
        org = msgspec.convert(payload.get(self._rules.org_claim), str)
        roles = msgspec.convert(payload.get(self._rules.roles_claim), list[str])
        if not {self._rules.dags_claim, self._rules.read_dags_claim} & payload.keys():
            return org, roles, None, ()
        dags, read_dags = (
            tuple(sorted(set(msgspec.convert(payload.get(claim, []), list[str]))))
            for claim in (self._rules.dags_claim, self._rules.read_dags_claim)
        )
        return org, roles, dags, read_dags


def user_payload(
    rules: UserTokenRules,
    *,
    subject: str,
    org: str,
    roles: Iterable[str],
    issued: float,
    expires: int,
    token_id: str | None = None,
    dags: Sequence[str] | None = None,
    read_dags: Sequence[str] | None = None,
) -> bytes:
    """What a token of the stack's own says, in the words that `UserVerifier` reads."""
    more = {} if token_id is None else {"jti": token_id}
    claims = {rules.dags_claim: dags, rules.read_dags_claim: read_dags}
    limit = {claim: list(names) for claim, names in claims.items() if names is not None}
    return msgspec.json.encode(
        {
            **more,
            **limit,
            "iss": rules.issuer,
            "aud": rules.audience,
            "sub": subject,
            "iat": issued,
            "exp": expires,
            rules.org_claim: org,
            rules.roles_claim: list(roles),
        }
    )
