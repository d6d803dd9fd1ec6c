"""Bundles of users' code: uploads, and what is known of each."""

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

from msgspec import Meta

from tracelake.wire.base import Reply, Request, Sha256
from tracelake.wire.claims import BundleLanguage

PIECE_BYTES = 512 * 1024
"""Of an archive that is sent in pieces; the last one has the rest."""

BundleStatus = Literal["uploading", "ready", "rejected", "disabled"]


class OpenBundleRequest(Request, frozen=True, kw_only=True):
    size_bytes: Annotated[int, Meta(ge=1, le=2**40)]
    """The size of the archive; the upload takes exactly that many bytes."""


class BundleUpload(Reply, frozen=True, kw_only=True):
    """Where the archive is sent: one PUT with these headers, without a credential."""

    bundle_id: UUID
    url: str
    headers: dict[str, str]
    expires_at: datetime


class BundlePiece(Reply, frozen=True, kw_only=True):
    """A piece of an archive that was stored."""

    bundle_id: UUID
    received: int
    """Bytes of the archive up to the end of this piece. With the last piece the archive is whole."""


class FinalizeBundleRequest(Request, frozen=True, kw_only=True, omit_defaults=True):
    sha256: Sha256
    language: BundleLanguage
    entrypoint: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    """Of python and node; a Rust bundle has none."""


class BundleNotice(Reply, frozen=True, kw_only=True):
    """Something that works, and that the author may not expect: a name that hides another module."""

    code: str
    entry: str
    message: str


class BundleRow(Reply, frozen=True, kw_only=True):
    bundle_id: UUID
    status: BundleStatus
    created_at: datetime
    created_by: str
    size_bytes: int
    """Of an upload: as it was announced."""
    language: BundleLanguage | None = None
    entrypoint: str | None = None
    sha256: str | None = None


class BundleDetail(BundleRow, frozen=True, kw_only=True):
    finalized_at: datetime | None = None
    entry_count: int | None = None
    expanded_bytes: int | None = None
    notices: list[BundleNotice] = []
    reason_code: str | None = None
    """Of a rejected bundle: the stable code of what is wrong with it."""
    reason: str | None = None
    disabled_at: datetime | None = None
    disabled_by: str | None = None
    duplicate: bool = False
    """The call was made before; this is what it recorded."""


class BundlesPage(Reply, frozen=True, kw_only=True):
    bundles: list[BundleRow]
    next: str | None = None
