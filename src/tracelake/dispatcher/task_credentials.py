"""Credentials of the object store for the code of a task: one or more sets, each for some of the token's prefixes.

The groups of prefixes follow from the token alone, so every call of an attempt meets the same ones. A set is minted
when a call first needs its group, and the same set answers further calls until half of its life is over: however often
a task asks, the store mints each of its sets once in that time, and nobody is refused for asking.

Credentials cannot be taken back. They end with their own life, at most an hour; the calls of an attempt that is not
current get no more of them. What they can still write until then is below the attempt's own prefixes, from which
commits are copied, so no committed byte changes.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tracelake.db.transaction import Connection
from tracelake.dispatcher.audit import record
from tracelake.errors import TraceError
from tracelake.model.job import Job
from tracelake.model.prefixes import Prefix, parse_uri
from tracelake.model.session_policy import PolicyTooLargeError, PrefixGrant, make_grants, split_grants
from tracelake.ports import CredentialMinter, MintedCredentials
from tracelake.ports.credential_minter import MAX_SECONDS, MIN_SECONDS
from tracelake.tokens.token_claims import VerifiedClaims
from tracelake.wire.task_calls import CredentialsReply, ScopedCredentials

_REMEMBERED = 10_000
_CONCURRENT_MINTS = 8

GrantGroup: TypeAlias = tuple[PrefixGrant, ...]


@dataclass(frozen=True, slots=True)
class _MintedSets:
    """The sets of one group: one, or several where the store packs policies and the group did not fit."""

    sets: tuple[tuple[GrantGroup, MintedCredentials], ...]
    reuse_until: float
    """On the monotonic clock."""


class TaskCredentials:
    def __init__(self, minter: CredentialMinter | None) -> None:
        self._minter = minter
        self._minted: OrderedDict[tuple[str, GrantGroup], asyncio.Task[_MintedSets]] = OrderedDict()
        self._slots = asyncio.Semaphore(_CONCURRENT_MINTS)

    def choose_groups(self, claims: VerifiedClaims, locations: Sequence[str] | None) -> list[GrantGroup]:
        """The groups that the locations need, or all; `prefix_forbidden` if the token does not grant one of them."""
        if self._minter is None:
            raise TraceError("credentials_unavailable")
        s3 = claims.s3
        try:
            groups = split_grants(
                make_grants(s3.read_prefixes, (*s3.write_prefixes, s3.buffer_prefix, s3.scratch_prefix))
            )
        except (ValueError, PolicyTooLargeError):
            raise TraceError("prefix_forbidden", "The token has a prefix that is not canonical.") from None
        if locations is None:
            return groups
        index = {(grant.prefix, grant.writable): group for group in groups for grant in group}
        return list(dict.fromkeys(_find_group(index, location, at) for at, location in enumerate(locations)))

    async def issue(
        self,
        claims: VerifiedClaims,
        groups: Sequence[GrantGroup],
        seconds: int,
        audit: Callable[[Sequence[GrantGroup]], Awaitable[None]],
    ) -> CredentialsReply:
        """`audit` is awaited with the groups that are minted now, before they are: none are without it."""
        assert self._minter is not None
        tasks = {group: task for group in groups if (task := self._find_fresh(claims, group)) is not None}
        due = [group for group in groups if group not in tasks]
        if due:
            await audit(due)
        for group in due:
            tasks[group] = self._find_fresh(claims, group) or self._start(claims, group, seconds)
        # A caller that hangs up does not end what others wait for.
        minted = await asyncio.gather(*(asyncio.shield(tasks[group]) for group in groups))
        return CredentialsReply(
            endpoint=self._minter.endpoint,
            region=self._minter.region,
            credentials=[_describe(group, credentials) for item in minted for group, credentials in item.sets],
        )

    def _find_fresh(self, claims: VerifiedClaims, group: GrantGroup) -> "asyncio.Task[_MintedSets] | None":
        """The sets that can be used again, or that are being minted."""
        task = self._minted.get((_key(claims), group))
        if task is None or not task.done():
            return task
        if task.cancelled() or task.exception() is not None:
            return None
        return task if time.monotonic() < task.result().reuse_until else None

    def _start(self, claims: VerifiedClaims, group: GrantGroup, seconds: int) -> "asyncio.Task[_MintedSets]":
        key = (_key(claims), group)
        task = self._minted[key] = asyncio.create_task(self._mint(claims, group, seconds))
        self._minted.move_to_end(key)
        while len(self._minted) > _REMEMBERED:
            self._minted.popitem(last=False)
        return task

    async def _mint(self, claims: VerifiedClaims, group: GrantGroup, seconds: int) -> _MintedSets:
        reuse_until = time.monotonic() + seconds / 2
        return _MintedSets(tuple(await self._mint_sets(claims, group, seconds)), reuse_until)

    async def _mint_sets(
        self, claims: VerifiedClaims, group: GrantGroup, seconds: int
    ) -> list[tuple[GrantGroup, MintedCredentials]]:
        assert self._minter is not None
        try:
            async with self._slots:
                return [(group, await self._minter.mint(group, session=_session(claims), seconds=seconds))]
        except PolicyTooLargeError:
            # AWS also limits the packed policy, by a size that nobody can compute beforehand.
            if len(group) == 1:
                raise TraceError("credentials_unavailable", "A prefix of the task needs too long a policy.") from None
        half = len(group) // 2
        return [
            *await self._mint_sets(claims, group[:half], seconds),
            *await self._mint_sets(claims, group[half:], seconds),
        ]


async def record_mint(
    connection: Connection, claims: VerifiedClaims, job: Job, groups: Sequence[GrantGroup], seconds: int
) -> None:
    """An entry of the audit log: which attempt gets credentials, for how much, until when."""
    grants = [grant for group in groups for grant in group]
    details = {
        "attempt": claims.attempt,
        "seconds": seconds,
        "sets": len(groups),
        "write_prefixes": sum(grant.writable for grant in grants),
        "read_prefixes": sum(not grant.writable for grant in grants),
    }
    target = f"{job.dag_name}/{job.name}"
    await record(connection, claims.org_id, claims.sub, "credentials.mint", target, details)


def credential_seconds(claims: VerifiedClaims, now: float) -> int:
    """As long as the token, within what STS gives: credentials outlive a token by less than `MIN_SECONDS`."""
    return max(MIN_SECONDS, min(MAX_SECONDS, int(claims.exp - now)))


def _key(claims: VerifiedClaims) -> str:
    return f"{claims.task_id}:{claims.attempt}"


def _session(claims: VerifiedClaims) -> str:
    """Names the attempt in the store's logs; STS takes 64 characters."""
    return f"task-{claims.task_id}-{claims.attempt}"


def _find_group(index: dict[tuple[Prefix, bool], GrantGroup], location: str, at: int) -> GrantGroup:
    """Walks up from the location: the nearest prefix that may be written, or else read, contains it."""
    place = parse_uri(location)
    if place is None:
        raise TraceError("prefix_forbidden", "Expected a canonical s3://bucket/key address.", field=f"locations[{at}]")
    bucket, key = place
    parents = [Prefix(bucket, key[: end + 1]) for end, letter in enumerate(key) if letter == "/"]
    for writable in (True, False):
        for parent in parents:
            if (parent, writable) in index:
                return index[parent, writable]
    raise TraceError("prefix_forbidden", "The token grants no such location.", field=f"locations[{at}]")


def _describe(group: GrantGroup, credentials: MintedCredentials) -> ScopedCredentials:
    return ScopedCredentials(
        access_key_id=credentials.access_key_id,
        secret_access_key=credentials.secret_access_key,
        session_token=credentials.session_token,
        expires_at=credentials.expires_at,
        read_prefixes=[grant.prefix.uri for grant in group if not grant.writable],
        write_prefixes=[grant.prefix.uri for grant in group if grant.writable],
    )
