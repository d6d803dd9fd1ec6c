"""Worker-only calls (claim, fetch, token) and introspection by services."""

from datetime import datetime
from typing import Literal
from uuid import UUID

import msgspec

from tracelake.wire.base import Cursor, Reply, Request, ShortText
from tracelake.wire.units import TaskPayload

MAX_BATCH = 256


class ClaimRequest(Request, frozen=True, kw_only=True, omit_defaults=True):
    task_id: UUID
    worker_id: ShortText
    claim_id: ShortText | None = None
    """A repeated claim_id gets the same lease, so a lost reply costs nothing."""


class ClaimBatchRequest(Request, frozen=True, kw_only=True):
    """Items are decoded one by one, so that an invalid item does not fail the others."""

    claims: list[msgspec.Raw]


class TaskSecrets(Reply, frozen=True, kw_only=True):
    """The names of the operator's secrets. The worker looks up the values, which the Dispatcher never sees."""

    org: str
    names: list[str]


class ClaimReply(Reply, frozen=True, kw_only=True):
    """`status` is `Claimed` (with everything else) or `NotClaimed` (with a reason)."""

    status: str
    reason: str | None = None
    attempt: int | None = None
    lease_token: UUID | None = None
    lease_expires_at: datetime | None = None
    capability_token: str | None = None
    task: TaskPayload | None = None
    always_on: bool = False
    """The task runs an always_on source, which ends only when it is stopped."""
    pause: bool = False
    """As in the reply to a heartbeat: the source should emit nothing for now."""
    org: str | None = None
    """The name of the task's org; the worker uses only endpoints of this org. Not part of the payload."""
    secrets: TaskSecrets | None = None
    """Absent if the job names none. Not part of the payload: neither fetch nor an invocation has it."""


BundleLanguage = Literal["python", "node", "rust"]


class BundleRef(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The code of an invoked attempt. A runner checks the bytes against `sha256` and `size_bytes` before every run."""

    bundle_id: UUID
    url: str
    """A presigned GET of the archive, valid for this attempt. It is a credential: logs and errors never show it."""
    sha256: str
    """In hex."""
    size_bytes: int
    language: BundleLanguage
    """Which runner takes the attempt."""
    entrypoint: str | None = None
    """Of python `module.function`, of node `file.function`; a Rust bundle starts its `bootstrap`."""
    timeout_seconds: int
    memory_mb: int


class InvokingOrg(msgspec.Struct, frozen=True, kw_only=True):
    """Whose attempt it is: a runner shares its slots fairly between orgs."""

    org_id: UUID
    name: str
    weight: float = 1.0


class LogAddresses(msgspec.Struct, frozen=True, kw_only=True):
    """Where the runner stores the log of an attempt, with PUT. Both are credentials, as the address of a bundle is."""

    running_url: str
    """For the log of the running function; may be written again."""
    final_url: str
    """For the final log, with `If-None-Match: *`: it is created once."""


class Invocation(TaskPayload, frozen=True, kw_only=True, omit_defaults=True):
    """The input of an invoked attempt; it is complete, since the attempt can only make its own task calls."""

    lease_token: UUID
    lease_expires_at: datetime
    capability_token: str
    bundle_url: str | None
    """`bundle.url`, where the wire contract has it; None for operators that are not a bundle's."""
    bundle: BundleRef | None = None
    """The code to run; None for operators that are not a bundle's."""
    org: InvokingOrg | None = None
    """For the runner alone: not part of the event."""
    log: LogAddresses | None = None
    """For the runner alone: the function does not get it."""


class InvokeRequest(Invocation, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """An invocation as a Dispatcher sends it to a runner."""


class InvokeReply(Reply, frozen=True, kw_only=True):
    """The runner has the attempt, which makes its own final report."""

    duplicate: bool = False
    """It had it already."""


class FetchReply(Reply, frozen=True, kw_only=True):
    status: str
    task: TaskPayload


class TokenRequest(Request, frozen=True, kw_only=True):
    task_id: UUID
    attempt: Cursor
    lease_token: UUID


class TokenReply(Reply, frozen=True, kw_only=True):
    capability_token: str
    lease_expires_at: datetime | None = None


class IntrospectRequest(Request, frozen=True, kw_only=True, omit_defaults=True):
    task_id: UUID
    attempt: Cursor
    lease_token: UUID | None = None


class IntrospectReply(Reply, frozen=True, kw_only=True):
    current: bool
    status: str


class Jwk(msgspec.Struct, frozen=True, kw_only=True):
    kty: str = "EC"
    crv: str = "P-256"
    alg: str = "ES256"
    use: str = "sig"
    kid: str
    x: str
    y: str


class Jwks(msgspec.Struct, frozen=True, kw_only=True):
    keys: list[Jwk]
