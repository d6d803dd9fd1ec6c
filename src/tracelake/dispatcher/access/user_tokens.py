"""Tokens that admins make, list and revoke; and the list of revocations that every listener of users reads.

A token is signed by the keys of the stack and not kept: its row has what it says, so that the same call again signs the
same claims. A revocation is a row of its own, by org and `jti` or subject, so that tokens without a row (of an identity
provider, or signed on the machine of the stack) are revoked in the same way. `stack/rewind.py` carries both over when
an older dump is restored.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

import asyncpg

from tracelake.db.transaction import Connection, Store
from tracelake.dispatcher import audit
from tracelake.dispatcher.audit import Actor
from tracelake.dispatcher.clock import StoreClock
from tracelake.dispatcher.job_definitions import ensure_org
from tracelake.dispatcher.records import to_struct
from tracelake.errors import TraceError
from tracelake.model.ids import new_id
from tracelake.tokens.users import UserTokenRules, user_payload
from tracelake.tokens.verify import KeyDirectory
from tracelake.wire.contract import Role
from tracelake.wire.tokens import (
    MAX_TOKEN_DAYS,
    RevocationEntry,
    RevocationsReply,
    Revoked,
    RevokeRequest,
    TokenCreated,
    TokensPage,
    UserTokenRequest,
    UserTokenRow,
)

MOST_TOKENS = 10_000
"""Of one org, that have not expired."""
MOST_REVOCATIONS = 1_000
"""Of one org, without an end: every listener reads all of them."""

_COLUMNS = "token_id, subject, role, dags, read_dags, created_by, created_at, expires_at, revoked_at, revoked_by"

_INSERT = f"""
    INSERT INTO user_tokens (org, token_id, subject, role, dags, read_dags, created_by, expires_at)
    VALUES ($1, $2, $3, $4, $5, $6, $7, trace_now() + $8) ON CONFLICT DO NOTHING
    RETURNING {_COLUMNS}"""  # noqa: S608 - constants only

_FIND = f"SELECT {_COLUMNS} FROM user_tokens WHERE org = $1 AND token_id = $2"  # noqa: S608 - constants only

_LIST = f"""
    SELECT {_COLUMNS} FROM user_tokens
    WHERE org = $1 AND expires_at > trace_now() - interval '{MAX_TOKEN_DAYS} days'
      AND ($2::uuid IS NULL OR (created_at, token_id) < (
          SELECT u.created_at, u.token_id FROM user_tokens u WHERE u.org = $1 AND u.token_id = $2))
    ORDER BY created_at DESC, token_id DESC LIMIT $3"""  # noqa: S608 - constants only

_COUNT = "SELECT count(*) FROM user_tokens WHERE org = $1 AND expires_at > trace_now()"

_FORGET_TOKENS = f"""
    DELETE FROM user_tokens
    WHERE org = $1 AND expires_at < trace_now() - interval '{MAX_TOKEN_DAYS} days'"""  # noqa: S608 - constants only

_FORGET_REVOCATIONS = "DELETE FROM token_revocations WHERE org = $1 AND expires_at < trace_now() - interval '1 hour'"

_MARK = f"""
    UPDATE user_tokens SET revoked_at = trace_now(), revoked_by = $3
    WHERE org = $1 AND token_id = $2 AND revoked_at IS NULL RETURNING {_COLUMNS}"""  # noqa: S608 - constants only

_MARK_SUBJECT = """
    UPDATE user_tokens SET revoked_at = trace_now(), revoked_by = $3
    WHERE org = $1 AND subject = $2 AND revoked_at IS NULL AND created_at <= trace_now()"""

_COUNT_ENDLESS = "SELECT count(*) FROM token_revocations WHERE org = $1 AND expires_at IS NULL"

_REVOKE = """
    INSERT INTO token_revocations AS r (org, kind, value, issued_until, revoked_by, expires_at)
    VALUES ($1, $2, $3, trace_now(), $4, $5)
    ON CONFLICT (org, kind, value) DO UPDATE SET issued_until = excluded.issued_until, revoked_by = excluded.revoked_by
        WHERE r.kind = 'subject'
    RETURNING issued_until"""

_REVOKED_AT = "SELECT issued_until FROM token_revocations WHERE org = $1 AND kind = $2 AND value = $3"

_ALL = """
    SELECT org, kind, value, issued_until FROM token_revocations
    WHERE expires_at IS NULL OR expires_at > trace_now() - interval '1 hour'"""


@dataclass(eq=False, kw_only=True)
class UserTokens:
    store: Store
    keys: KeyDirectory
    rules: UserTokenRules
    clock: StoreClock
    signs: bool
    """False: tokens come from an identity provider, and those of this stack are not accepted."""
    on_revoked: Callable[[], None]

    async def create(self, actor: Actor, request: UserTokenRequest) -> TokenCreated:
        if not self.signs:
            raise TraceError("tokens_external")
        token_id = request.token_id or new_id()
        dags, read_dags = (None if names is None else sorted({*names}) for names in (request.dags, request.read_dags))
        life = timedelta(days=request.days)
        terms = (request.subject, request.role, dags, read_dags, life)
        async with self.store.transaction() as connection:
            org_id = await ensure_org(connection, actor.org)
            await connection.execute(_FORGET_TOKENS, actor.org)
            if await connection.fetchval(_COUNT, actor.org) >= MOST_TOKENS:
                raise TraceError("too_many_tokens", f"Expected at most {MOST_TOKENS} tokens of one organisation.")
            row = await connection.fetchrow(_INSERT, actor.org, token_id, *terms[:4], actor.subject, life)
            duplicate = row is None
            if row is None:
                row = await connection.fetchrow(_FIND, actor.org, token_id)
                assert row is not None
                earlier_terms = (
                    *(row[field] for field in ("subject", "role", "dags", "read_dags")),
                    row["expires_at"] - row["created_at"],
                )
                if earlier_terms != terms or row["revoked_at"] is not None:
                    raise TraceError("token_conflict")
            else:
                details = {"subject": request.subject, "role": request.role, "days": request.days, "dags": dags}
                details |= {} if read_dags is None else {"read_dags": read_dags}
                await audit.record(connection, org_id, actor.subject, "token.create", str(token_id), details)
        return TokenCreated(token=self._sign(actor.org, row), row=to_struct(UserTokenRow, row), duplicate=duplicate)

    async def revoke(self, actor: Actor, token_id: UUID) -> Revoked:
        """Of a token that an admin of this org made."""
        async with self.store.transaction() as connection:
            org_id = await ensure_org(connection, actor.org)
            row = await connection.fetchrow(_MARK, actor.org, token_id, actor.subject)
            if row is None:
                existing = await connection.fetchrow(_FIND, actor.org, token_id)
                if existing is None:
                    raise TraceError("token_not_found")
                return Revoked(revoked_at=existing["revoked_at"], duplicate=True)
            await self._write(connection, actor, "token", str(token_id), row["expires_at"])
            details = {"subject": row["subject"], "role": row["role"]}
            await audit.record(connection, org_id, actor.subject, "token.revoke", str(token_id), details)
        self.on_revoked()
        return Revoked(revoked_at=row["revoked_at"])

    async def revoke_unrecorded(self, actor: Actor, request: RevokeRequest) -> Revoked:
        """By what a token says of itself. A subject may be revoked again: then tokens made meanwhile end too."""
        kind, value = ("token", request.token_id) if request.token_id is not None else ("subject", request.subject)
        assert value is not None
        async with self.store.transaction() as connection:
            org_id = await ensure_org(connection, actor.org)
            revoked_at = await self._write(connection, actor, kind, value, None)
            if revoked_at is None:
                earlier: datetime = await connection.fetchval(_REVOKED_AT, actor.org, kind, value)
                return Revoked(revoked_at=earlier, duplicate=True)
            if kind == "subject":
                await connection.execute(_MARK_SUBJECT, actor.org, value, actor.subject)
            await audit.record(connection, org_id, actor.subject, "token.revoke", value, {"by": kind})
        self.on_revoked()
        return Revoked(revoked_at=revoked_at)

    async def list_revocations(self) -> RevocationsReply:
        async with self.store.connection() as connection:
            rows = await connection.fetch(_ALL)
        return RevocationsReply(revocations=[_entry(row) for row in rows])

    async def _write(
        self, connection: Connection, actor: Actor, kind: str, value: str, expires_at: datetime | None
    ) -> datetime | None:
        """The time of the revocation; None if the token was revoked before."""
        await connection.execute(_FORGET_REVOCATIONS, actor.org)
        if expires_at is None and await connection.fetchval(_COUNT_ENDLESS, actor.org) >= MOST_REVOCATIONS:
            raise TraceError(
                "too_many_tokens",
                f"Expected at most {MOST_REVOCATIONS} revocations without an end; rotate the keys instead.",
            )
        revoked_at: datetime | None = await connection.fetchval(
            _REVOKE, actor.org, kind, value, actor.subject, expires_at
        )
        return revoked_at

    def _sign(self, org: str, row: asyncpg.Record) -> str:
        payload = user_payload(
            self.rules,
            subject=row["subject"],
            org=org,
            roles=[Role(row["role"])],
            issued=row["created_at"].timestamp(),
            expires=int(row["expires_at"].timestamp()),
            token_id=str(row["token_id"]),
            dags=row["dags"],
            read_dags=row["read_dags"],
        )
        return self.keys.sign(payload, self.clock.now())[0]


async def list_tokens(connection: Connection, org: str, limit: int, cursor: UUID | None) -> TokensPage:
    rows = await connection.fetch(_LIST, org, cursor, limit + 1)
    return TokensPage(
        tokens=[to_struct(UserTokenRow, row) for row in rows[:limit]],
        next=str(rows[limit - 1]["token_id"]) if len(rows) > limit else None,
    )


def _entry(row: asyncpg.Record) -> RevocationEntry:
    is_token = row["kind"] == "token"
    return RevocationEntry(
        org=row["org"],
        token_id=row["value"] if is_token else None,
        subject=None if is_token else row["value"],
        issued_until=row["issued_until"],
    )
