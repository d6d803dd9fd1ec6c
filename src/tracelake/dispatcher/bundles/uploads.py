"""Opening, finalizing and disabling bundles.

An upload goes to a staging address that its sender may write until the address expires. Finalizing reads the bytes
once, inspects exactly these, and writes exactly these to a place that is named by their hash and that only the platform
writes: whatever becomes of the staged object meanwhile changes nothing. The row is committed last, so that a crash in
between leaves an upload that can be finalized again, with the same result. Of two finalizations at once the first to
commit decides; the second is answered with what was recorded.
"""

import logging
from dataclasses import dataclass, field
from uuid import UUID

import msgspec

from tracelake.bundles.child import InspectionReply, InspectionRequest
from tracelake.db.transaction import Connection, Store
from tracelake.dispatcher import audit
from tracelake.dispatcher.audit import Actor
from tracelake.dispatcher.bundles import rows
from tracelake.dispatcher.bundles.inspection import BundleInspector, inspection_slots
from tracelake.dispatcher.config import DispatcherConfig
from tracelake.dispatcher.job_definitions import ensure_org
from tracelake.errors import TraceError
from tracelake.http.fair_slots import FairSlots
from tracelake.model.ids import new_id
from tracelake.ports import ObjectStore, ObjectUrls
from tracelake.wire.bundles import (
    PIECE_BYTES,
    BundleDetail,
    BundlePiece,
    BundleUpload,
    FinalizeBundleRequest,
    OpenBundleRequest,
)

logger = logging.getLogger(__name__)

# The org's row is the lock of its count.
_LOCK_ORG = "SELECT FROM orgs WHERE org_id = $1 FOR NO KEY UPDATE"

_COUNT = """
    SELECT count(*) FILTER (WHERE status = 'uploading') AS uploads, count(*) FILTER (WHERE status = 'ready') AS ready
    FROM udf_bundles WHERE org_id = $1 AND status IN ('uploading', 'ready')"""

_OPEN = """
    INSERT INTO udf_bundles (bundle_id, org_id, created_by, size_bytes, upload_expires_at)
    VALUES ($1, $2, $3, $4, trace_now() + make_interval(secs => $5)) RETURNING upload_expires_at"""

_ACCEPT = """
    UPDATE udf_bundles SET status = 'ready', sha256 = $3, language = $4, entrypoint = $5, entry_count = $6,
        expanded_bytes = $7, notices = $8, finalized_at = trace_now()
    WHERE org_id = $1 AND bundle_id = $2 AND status = 'uploading' RETURNING bundle_id"""

_REJECT = """
    UPDATE udf_bundles SET status = 'rejected', sha256 = $3, language = $4, entrypoint = $5, reason_code = $6,
        reason = $7, finalized_at = trace_now()
    WHERE org_id = $1 AND bundle_id = $2 AND status = 'uploading' RETURNING bundle_id"""

_DISABLE = """
    UPDATE udf_bundles SET status = 'disabled', disabled_at = trace_now(), disabled_by = $3
    WHERE org_id = $1 AND bundle_id = $2 AND status = 'ready' RETURNING bundle_id"""


@dataclass(eq=False)
class BundleUploads:
    store: Store
    objects: ObjectStore
    urls: ObjectUrls | None
    """None: this Dispatcher cannot sign addresses of its object store."""
    inspector: BundleInspector
    config: DispatcherConfig
    slots: FairSlots = field(init=False)
    """Finalizations hold an archive in memory: each org in its turn."""

    def __post_init__(self) -> None:
        self.slots = inspection_slots(self.config)

    async def open(self, actor: Actor, request: OpenBundleRequest) -> BundleUpload:
        if self.urls is None:
            raise TraceError("bundles_unavailable")
        most = self.config.bundle_limits.max_bytes
        if request.size_bytes > most:
            message = f"Expected an archive of at most {most} bytes; received {request.size_bytes}."
            raise TraceError("bundle_too_large", message, field="size_bytes", limit_bytes=most)
        bundle_id = new_id()
        async with self.store.transaction() as connection:
            org_id = actor.org_id or await ensure_org(connection, actor.org)
            await self._check_counts(connection, org_id)
            expires_at = await connection.fetchval(
                _OPEN, bundle_id, org_id, actor.subject, request.size_bytes, float(self.config.bundle_upload_seconds)
            )
            details = {"size_bytes": request.size_bytes}
            await audit.record(connection, org_id, actor.subject, "bundle.open", str(bundle_id), details)
        uri = rows.staging_uri(self.config.bundle_bucket, org_id, bundle_id)
        url, headers = self.urls.sign_upload(uri, size=request.size_bytes, seconds=self.config.bundle_upload_seconds)
        return BundleUpload(bundle_id=bundle_id, url=url, headers=dict(headers), expires_at=expires_at)

    async def receive(self, actor: Actor, bundle_id: UUID, offset: int, piece: bytes) -> BundlePiece:
        """A piece of an archive whose sender cannot reach the object store. The last one puts them together; a piece
        that comes again changes nothing."""
        if actor.org_id is None:
            raise TraceError("bundle_not_found")
        async with self.store.connection() as connection:
            bundle = await rows.find_bundle(connection, actor.org_id, bundle_id)
        end = min(offset + PIECE_BYTES, bundle.size_bytes)
        if offset % PIECE_BYTES or offset >= bundle.size_bytes or offset + len(piece) != end:
            message = f"Expected {PIECE_BYTES} bytes at a multiple of that, or the rest; received {len(piece)}."
            raise TraceError("body_invalid", message, field="offset")
        if bundle.status == "uploading":
            bucket = self.config.bundle_bucket
            await self.objects.put(rows.piece_uri(bucket, actor.org_id, bundle_id, offset), piece)
            if end == bundle.size_bytes:
                async with self.slots.slot(actor.org):
                    await self._put_together(actor.org_id, bundle)
        return BundlePiece(bundle_id=bundle_id, received=end)

    async def _put_together(self, org_id: UUID, bundle: BundleDetail) -> None:
        bucket, archive = self.config.bundle_bucket, bytearray()
        for offset in range(0, bundle.size_bytes, PIECE_BYTES):
            piece = await self.objects.get(rows.piece_uri(bucket, org_id, bundle.bundle_id, offset))
            if piece is None:
                raise TraceError("bundle_not_uploaded", f"The piece at byte {offset} has not arrived.")
            archive += piece
        await self.objects.put(rows.staging_uri(bucket, org_id, bundle.bundle_id), bytes(archive))

    async def finalize(self, actor: Actor, bundle_id: UUID, request: FinalizeBundleRequest) -> BundleDetail:
        if actor.org_id is None:
            raise TraceError("bundle_not_found")
        async with self.slots.slot(actor.org):
            async with self.store.connection() as connection:
                bundle = await rows.find_bundle(connection, actor.org_id, bundle_id)
            if bundle.status != "uploading":
                return _repeat(bundle, request)
            verdict = await self._examine(actor.org_id, bundle, request)
        return await self._commit(actor, actor.org_id, bundle_id, request, verdict)

    async def disable(self, actor: Actor, bundle_id: UUID) -> BundleDetail:
        """Attempts that run go on; none starts from now on."""
        if actor.org_id is None:
            raise TraceError("bundle_not_found")
        async with self.store.transaction() as connection:
            changed = await connection.fetchval(_DISABLE, actor.org_id, bundle_id, actor.subject) is not None
            bundle = await rows.find_bundle(connection, actor.org_id, bundle_id)
            if changed:
                await audit.record(connection, actor.org_id, actor.subject, "bundle.disable", str(bundle_id), {})
        if bundle.status != "disabled":
            raise TraceError("bundle_not_ready", status=bundle.status)
        return msgspec.structs.replace(bundle, duplicate=not changed)

    async def _check_counts(self, connection: Connection, org_id: UUID) -> None:
        await connection.execute(_LOCK_ORG, org_id)
        counts = await connection.fetchrow(_COUNT, org_id)
        assert counts is not None
        if counts["uploads"] >= self.config.bundle_open_uploads:
            message = f"Expected at most {self.config.bundle_open_uploads} open uploads of bundles."
            raise TraceError("quota_bundles", message, retry_after_seconds=self.config.bundle_upload_seconds)
        if counts["ready"] >= self.config.bundles_per_org:
            message = f"Expected at most {self.config.bundles_per_org} enabled bundles: disable those that no DAG uses."
            raise TraceError("quota_bundles", message, retry_after_seconds=self.config.bundle_upload_seconds)

    async def _examine(self, org_id: UUID, bundle: BundleDetail, request: FinalizeBundleRequest) -> InspectionReply:
        """Inspect the staged bytes and, if they are acceptable, write the very same ones to their place."""
        uri = rows.staging_uri(self.config.bundle_bucket, org_id, bundle.bundle_id)
        meta = await self.objects.head(uri)
        if meta is not None and meta.size != bundle.size_bytes:
            message = f"expected an archive of {bundle.size_bytes} bytes, received {meta.size}"
            return InspectionReply(code="size_mismatch", message=message)
        archive = None if meta is None else await self.objects.get(uri, if_match=meta.etag)
        if archive is None:
            raise TraceError("bundle_not_uploaded")
        inspection = InspectionRequest(
            sha256=request.sha256,
            language=request.language,
            entrypoint=request.entrypoint,
            limits=self.config.bundle_limits,
        )
        verdict = await self.inspector.inspect(inspection, archive)
        if verdict.code is None:
            await self.objects.put(rows.content_uri(self.config.bundle_bucket, org_id, request.sha256), archive)
            await self.objects.sync()
        return verdict

    async def _commit(
        self, actor: Actor, org_id: UUID, bundle_id: UUID, request: FinalizeBundleRequest, verdict: InspectionReply
    ) -> BundleDetail:
        key = (org_id, bundle_id, request.sha256, request.language, request.entrypoint)
        async with self.store.transaction() as connection:
            if verdict.code is None:
                notices = msgspec.json.encode(verdict.warnings).decode()
                changed = await connection.fetchval(_ACCEPT, *key, verdict.entry_count, verdict.expanded_bytes, notices)
            else:
                changed = await connection.fetchval(_REJECT, *key, verdict.code, verdict.message)
            bundle = await rows.find_bundle(connection, org_id, bundle_id)
            if changed is not None:
                action = "bundle.finalize" if verdict.code is None else "bundle.reject"
                details = {"sha256": request.sha256, "language": request.language, "entrypoint": request.entrypoint}
                if verdict.code is not None:
                    details["reason_code"] = verdict.code
                await audit.record(connection, org_id, actor.subject, action, str(bundle_id), details)
        return _repeat(bundle, request, duplicate=changed is None)


def _repeat(bundle: BundleDetail, request: FinalizeBundleRequest, *, duplicate: bool = True) -> BundleDetail:
    """What was recorded, for a call that is the one that was recorded."""
    recorded = (bundle.sha256, bundle.language, bundle.entrypoint)
    if bundle.status == "rejected":
        raise TraceError(
            "bundle_rejected", f"The bundle was rejected: {bundle.reason}.", reason_code=bundle.reason_code
        )
    if recorded != (request.sha256, request.language, request.entrypoint):
        raise TraceError("bundle_conflict", status=bundle.status)
    return msgspec.structs.replace(bundle, duplicate=duplicate)
