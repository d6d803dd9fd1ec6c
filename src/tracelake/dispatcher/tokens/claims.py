"""The claims of a capability token. Only `TokenVerifier` and `TokenMint` make these, so to hold one is to have
checked it.
"""

from uuid import UUID

import msgspec

AUDIENCE = "trace.task"


class DatasetGrant(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    dataset_uuid: UUID
    dataset_version: UUID
    name: str
    storage: list[str]
    boundary: int | None = None


class PublishGrant(msgspec.Struct, frozen=True, kw_only=True):
    dataset_uuid: UUID
    dataset_version: UUID
    name: str


class S3Grant(msgspec.Struct, frozen=True, kw_only=True):
    read_prefixes: list[str]
    write_prefixes: list[str]
    buffer_prefix: str
    scratch_prefix: str


class VerifiedClaims(msgspec.Struct, frozen=True, kw_only=True):
    iss: str
    aud: str
    sub: str
    iat: int
    exp: int
    jti: str
    org_id: UUID
    task_id: UUID
    attempt: int
    datasets: list[DatasetGrant]
    publishes: list[PublishGrant]
    s3: S3Grant
