"""The claims of a capability token. Only `TokenVerifier` and `TokenMint` make these, so to hold one is to have
checked it.

Thousands are remembered at a time. They hold no lists and are in no cycles, so the garbage collector passes them by.
"""

from typing import Annotated
from uuid import UUID

import msgspec

AUDIENCE = "trace.task"
LAST_SECOND = 253_402_300_799
"""Of the year 9999: a token that claims to live longer names no time at all."""


class DatasetGrant(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    dataset_uuid: UUID
    dataset_version: UUID
    name: str
    storage: tuple[str, ...]
    boundary: int | None = None


class PublishGrant(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    dataset_uuid: UUID
    dataset_version: UUID
    name: str


class S3Grant(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    read_prefixes: tuple[str, ...]
    write_prefixes: tuple[str, ...]
    buffer_prefix: str
    scratch_prefix: str


class VerifiedClaims(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    iss: str
    aud: str
    sub: str
    iat: int
    exp: Annotated[int, msgspec.Meta(ge=0, le=LAST_SECOND)]
    jti: str
    org_id: UUID
    task_id: UUID
    attempt: int
    datasets: tuple[DatasetGrant, ...]
    publishes: tuple[PublishGrant, ...]
    s3: S3Grant
    nbf: int = 0
    """The Dispatcher gives out no token before its time; one that has the claim is held to it."""
