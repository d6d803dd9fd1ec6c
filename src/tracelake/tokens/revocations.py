"""Revoked user tokens, as every listener of users knows them.

A token is revoked by its id (`jti`), or with all tokens of its subject that were issued up to a moment. The list is
kept in Postgres state. Each listener has a copy, which it reads again when a call comes and the copy is older than a
second. If the list cannot be read, the copy is good for some seconds more, and then no token is accepted: a listener
that cannot tell fails closed, with an error that callers repeat.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable

from tracelake.errors import StoreUnavailableError, TraceError
from tracelake.tokens.users import UserClaims
from tracelake.wire.tokens import RevocationEntry

FRESH_SECONDS = 1.0
STALE_SECONDS = 10.0
"""How long a revocation can go unnoticed while the list cannot be read."""
_LOAD_SECONDS = 5.0


class RevokedTokens:
    """The revocations of one moment."""

    def __init__(self, entries: Iterable[RevocationEntry] = ()) -> None:
        self._ids: set[tuple[str, str]] = set()
        self._subjects: dict[tuple[str, str], float] = {}
        for entry in entries:
            if entry.token_id is not None:
                self._ids.add((entry.org, entry.token_id))
            elif entry.subject is not None:
                key = (entry.org, entry.subject)
                self._subjects[key] = max(entry.issued_until.timestamp(), self._subjects.get(key, 0.0))

    def contain(self, user: UserClaims) -> bool:
        """A token without the time of its issue is older than every revocation of its subject."""
        if user.token_id is not None and (user.org, user.token_id) in self._ids:
            return True
        until = self._subjects.get((user.org, user.sub))
        return until is not None and user.issued_at <= until


class RevocationCheck:
    """Refuses revoked tokens, by a copy of the list that `load` reads. One for each event loop."""

    def __init__(
        self,
        load: Callable[[], Awaitable[Iterable[RevocationEntry]]],
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._load = load
        self._monotonic = monotonic
        self._revoked = RevokedTokens()
        self._read_at: float | None = None
        self._reading: asyncio.Task[None] | None = None

    async def check(self, user: UserClaims) -> None:
        """Raises `credential_revoked`; or 503 if it cannot be told."""
        if self._age() > FRESH_SECONDS:
            await self._read()
        if self._revoked.contain(user):
            raise TraceError("credential_revoked")

    def forget(self) -> None:
        """The next check reads the list: this process has changed it."""
        self._read_at = None

    def _age(self) -> float:
        return float("inf") if self._read_at is None else self._monotonic() - self._read_at

    async def _read(self) -> None:
        """Callers that come meanwhile wait for the same look."""
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._look())
        reading = self._reading
        try:
            await asyncio.shield(reading)
        except (TraceError, TimeoutError) as error:
            if self._age() > STALE_SECONDS:
                raise StoreUnavailableError("It cannot be told whether the token was revoked.") from error

    async def _look(self) -> None:
        began = self._monotonic()  # the list may be older than its arrival
        async with asyncio.timeout(_LOAD_SECONDS):
            self._revoked = RevokedTokens(await self._load())
        self._read_at = began
