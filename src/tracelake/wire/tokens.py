"""User tokens: made, listed and revoked by admins; and the list of revocations that listeners read."""

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

from msgspec import Meta

from tracelake.wire.base import Name, Reply, Request, ShortText

MAX_TOKEN_DAYS = 30
"""The keys that sign are served this much longer than they sign."""
MAX_TOKEN_DAGS = 100

Subject = Annotated[str, Meta(pattern=r"^[!-~]{1,200}\Z")]
RoleName = Literal["reader", "writer", "admin"]


class UserTokenRequest(Request, frozen=True, kw_only=True, omit_defaults=True):
    """A new token of the caller's org."""

    subject: Subject
    """Whose token it is; the audit log shows this name."""
    role: RoleName
    days: Annotated[int, Meta(ge=1, le=MAX_TOKEN_DAYS)] = 1
    dags: Annotated[list[Name], Meta(min_length=1, max_length=MAX_TOKEN_DAGS)] | None = None
    """Limits the token to these DAGs, which need not exist yet; not for admins."""
    read_dags: Annotated[list[Name], Meta(min_length=1, max_length=MAX_TOKEN_DAGS)] | None = None
    """DAGs that a limited token may read besides these, and not change."""
    token_id: UUID | None = None
    """Chosen by the caller: the same call again makes no second token."""

    def __post_init__(self) -> None:
        if self.dags is not None and self.role == "admin":
            raise ValueError("a token that is limited to DAGs has the role reader or writer")
        if self.read_dags is not None and self.dags is None:
            raise ValueError("read_dags are more DAGs of a limited token: give dags, too")


class UserTokenRow(Reply, frozen=True, kw_only=True):
    """A token that an admin made. The token itself is not kept."""

    token_id: UUID
    """Its claim `jti`."""
    subject: str
    role: str
    dags: list[str] | None = None
    read_dags: list[str] | None = None
    created_by: str
    created_at: datetime
    expires_at: datetime
    revoked_at: datetime | None = None
    revoked_by: str | None = None


class TokenCreated(Reply, frozen=True, kw_only=True):
    token: str
    row: UserTokenRow
    duplicate: bool = False


class TokensPage(Reply, frozen=True, kw_only=True):
    """Newest first, without those that expired more than 30 days ago."""

    tokens: list[UserTokenRow]
    next: str | None = None


class RevokeRequest(Request, frozen=True, kw_only=True, omit_defaults=True):
    """Names tokens that have no record: of another issuer, or signed on the machine of the stack. One of the two."""

    token_id: ShortText | None = None
    """The claim `jti` of one token."""
    subject: ShortText | None = None
    """All tokens of this subject that were issued until now."""

    def __post_init__(self) -> None:
        if (self.token_id is None) == (self.subject is None):
            raise ValueError("tokens are named by token_id or by subject")


class Revoked(Reply, frozen=True, kw_only=True):
    revoked_at: datetime
    duplicate: bool = False
    """It had been revoked before."""


class RevocationEntry(Reply, frozen=True, kw_only=True):
    org: str
    token_id: str | None = None
    subject: str | None = None
    issued_until: datetime
    """Of a subject: tokens that were issued later are good."""


class RevocationsReply(Reply, frozen=True, kw_only=True):
    """Every revocation of a token that may still be valid otherwise."""

    revocations: list[RevocationEntry]
