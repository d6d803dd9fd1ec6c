"""The table of bundles, and where their archives are."""

from collections.abc import Collection
from uuid import UUID

import asyncpg
import msgspec

from tracelake.db.transaction import Connection
from tracelake.dispatcher.records import to_struct
from tracelake.errors import TraceError
from tracelake.wire.bundles import BundleDetail, BundleNotice, BundleRow, BundlesPage

MAX_NAMED = 10_000
"""Bundles of an org that a document may name; older ones are unknown to it."""

_ROW = "bundle_id, status, created_at, created_by, size_bytes, language, entrypoint, sha256"
_DETAIL = f"{_ROW}, finalized_at, entry_count, expanded_bytes, reason_code, reason, disabled_at, disabled_by, notices"

_PAGE = f"""
    SELECT {_ROW} FROM udf_bundles WHERE org_id = $1 AND ($2::uuid IS NULL OR bundle_id < $2)
    ORDER BY bundle_id DESC LIMIT $3"""  # noqa: S608 - constants only

_FIND = f"SELECT {_DETAIL} FROM udf_bundles WHERE org_id = $1 AND bundle_id = $2"  # noqa: S608 - constants only

_FINALIZED = """
    SELECT bundle_id, language, entrypoint, status FROM udf_bundles
    WHERE org_id = $1 AND status IN ('ready', 'disabled') ORDER BY bundle_id DESC LIMIT $2"""

# Whoever disables one of them waits, so that a deploy commits with bundles that are enabled.
_ENABLED = """
    SELECT bundle_id FROM udf_bundles WHERE org_id = $1 AND bundle_id = ANY($2) AND status = 'ready'
    ORDER BY bundle_id FOR SHARE"""


def staging_uri(bucket: str, org_id: UUID, bundle_id: UUID) -> str:
    """Where an upload is sent. Whoever has its address writes here, and nothing reads it but the finalization."""
    return f"s3://{bucket}/uploads/{org_id}/{bundle_id}.zip"


def piece_uri(bucket: str, org_id: UUID, bundle_id: UUID, offset: int) -> str:
    """Where a piece of an upload waits for the others."""
    return f"{staging_uri(bucket, org_id, bundle_id)}.pieces/{offset:012}"


def content_uri(bucket: str, org_id: UUID, sha256: str) -> str:
    """Where the archive of a finalized bundle is: the bytes name their place, and only the platform writes there."""
    return f"s3://{bucket}/bundles/{org_id}/{sha256}.zip"


async def list_bundles(connection: Connection, org_id: UUID, limit: int, cursor: UUID | None) -> BundlesPage:
    rows = await connection.fetch(_PAGE, org_id, cursor, limit + 1)
    return BundlesPage(
        bundles=[to_struct(BundleRow, row) for row in rows[:limit]],
        next=str(rows[limit - 1]["bundle_id"]) if len(rows) > limit else None,
    )


async def find_bundle(connection: Connection, org_id: UUID, bundle_id: UUID) -> BundleDetail:
    row = await connection.fetchrow(_FIND, org_id, bundle_id)
    if row is None:
        raise TraceError("bundle_not_found")
    return bundle_detail(row)


def bundle_detail(row: asyncpg.Record) -> BundleDetail:
    return to_struct(BundleDetail, row, notices=msgspec.json.decode(row["notices"], type=list[BundleNotice]))


async def list_finalized(connection: Connection, org_id: UUID | None) -> list[asyncpg.Record]:
    rows: list[asyncpg.Record] = await connection.fetch(_FINALIZED, org_id, MAX_NAMED)
    return rows


async def hold_enabled(connection: Connection, org_id: UUID, bundle_ids: Collection[UUID]) -> set[UUID]:
    """Those of them that are enabled, and stay so until the transaction ends."""
    if not bundle_ids:
        return set()
    return {row["bundle_id"] for row in await connection.fetch(_ENABLED, org_id, list(bundle_ids))}
