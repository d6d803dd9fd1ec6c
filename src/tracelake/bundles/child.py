"""The process that inspects archives, with limits on its time and memory; see `limited_processes`.

A request is a length (4 bytes, big endian), that many bytes of JSON, and the archive. The reply is JSON.
"""

import hashlib
import sys

import msgspec

from tracelake.bundles.archive import ArchiveLimits, ArchiveRefusal, read_archive
from tracelake.bundles.entrypoint import BundleWarning, Language, check_entrypoint
from tracelake.limited_processes.child import limit_and_serve


class InspectionRequest(msgspec.Struct, frozen=True, kw_only=True):
    sha256: str
    language: Language
    entrypoint: str | None
    limits: ArchiveLimits


class InspectionReply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`code` and `message` of a refusal, or what there is to know of an acceptable bundle."""

    code: str | None = None
    message: str = ""
    entry_count: int = 0
    expanded_bytes: int = 0
    warnings: list[BundleWarning] = []


_REQUESTS = msgspec.json.Decoder(InspectionRequest)
REPLIES = msgspec.json.Decoder(InspectionReply)


def encode_request(request: InspectionRequest) -> bytes:
    """What comes before the archive."""
    head = msgspec.json.encode(request)
    return len(head).to_bytes(4, "big") + head


def answer(body: bytes) -> bytes:
    view = memoryview(body)
    size = int.from_bytes(view[:4], "big")
    return msgspec.json.encode(inspect_bundle(_REQUESTS.decode(view[4 : 4 + size]), view[4 + size :]))


def inspect_bundle(request: InspectionRequest, archive: bytes | memoryview) -> InspectionReply:
    if len(archive) > request.limits.max_bytes:
        return InspectionReply(code="archive_too_large", message="the archive is larger than allowed")
    digest = hashlib.sha256(archive).hexdigest()
    if digest != request.sha256:
        message = f"expected an archive with SHA-256 {request.sha256}, received {digest}"
        return InspectionReply(code="sha256_mismatch", message=message)
    try:
        entries = read_archive(archive, request.limits)
        warnings = check_entrypoint(archive, entries, request.language, request.entrypoint)
    except ArchiveRefusal as refusal:
        return InspectionReply(code=refusal.code, message=str(refusal))
    return InspectionReply(
        entry_count=len(entries), expanded_bytes=sum(entry.size for entry in entries), warnings=warnings
    )


if __name__ == "__main__":
    limit_and_serve(sys.argv[1:], lambda: answer)
