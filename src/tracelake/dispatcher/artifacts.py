"""What must be looked up in the object store before a transaction: listings to pin, artifacts to measure."""

import asyncio
import secrets
from collections.abc import Sequence
from dataclasses import replace

import msgspec

from tracelake.dispatcher.engine.file_publications import PublicationRequest
from tracelake.errors import TraceError
from tracelake.model.locations import MARKER_FAMILY, Layout
from tracelake.model.prefixes import lies_under, parse_uri
from tracelake.ports import LISTING_LIMIT, ObjectMeta, ObjectStore
from tracelake.tokens.token_claims import VerifiedClaims
from tracelake.wire.base import Sha256
from tracelake.wire.task_calls import BufferPublishRequest, DatasetPublished, OutputReport

GLOB = "*.parquet"
SUCCESS = "_SUCCESS"
MARKER_BYTES = 4 * 1024 * 1024
"""Of a `_SUCCESS` that names files: some 40,000 of them."""


_COPIES_AT_ONCE = 8


class _NamedFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    size: int


class _HashedFile(_NamedFile, frozen=True, forbid_unknown_fields=True):
    sha256: Sha256


class _Marker(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="format", tag="trace-files-1"):
    """A `_SUCCESS` that begins with `MARKER_FAMILY`: which files are the output's content."""

    files: list[_NamedFile]


class _HashedMarker(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="format", tag="trace-files-2"):
    files: list[_HashedFile]


async def list_publications(
    objects: ObjectStore,
    published: Sequence[DatasetPublished],
    claims: VerifiedClaims,
    layout: Layout,
    reports: Sequence[OutputReport] = (),
) -> list[PublicationRequest]:
    """The files each publication pins: what the attempt says it wrote, where it says so. Whatever is written there
    later is never read. Of files in staging, copies are pinned."""
    if len({item.dataset_uuid for item in published}) != len(published):
        # An output has one prefix, so its files belong to one publication: a task commits one unit of it.
        raise TraceError("body_invalid", "A task publishes a dataset at most once.", field="datasets_published")
    requests = []
    for index, item in enumerate(published):
        prefix = _granted_prefix(item, index, claims)
        try:
            listing = await objects.list(prefix, limit=LISTING_LIMIT)
        except TraceError as refusal:
            refusal.details.setdefault("field", f"datasets_published[{index}]")
            raise
        marker = next((meta for meta in listing if meta.uri == prefix + SUCCESS), None)
        if marker is None:
            raise _incomplete("The output's _SUCCESS marker is missing.", index)
        files = tuple(meta for meta in listing if meta.uri.endswith(".parquet") and "/" not in meta.uri[len(prefix) :])
        if marker.size:
            files = await _choose_named(objects, marker, prefix, files, index)
        for report in reports:
            if report.dataset_uuid == item.dataset_uuid:
                _compare(report, files, index)
        committed = layout.committed_prefix(prefix)
        if committed != prefix:
            files = await _copy(objects, files, prefix, committed, index)
        requests.append(PublicationRequest(item, committed, files))
    if requests:
        await objects.sync()  # a unit that counts has its files, also after a power cut
    return requests


async def _choose_named(
    objects: ObjectStore, marker: ObjectMeta, prefix: str, files: Sequence[ObjectMeta], index: int
) -> tuple[ObjectMeta, ...]:
    """The files that the marker names, or all of them if it is another's kind of marker. Those that are not named are
    of Spark tasks that were tried again, or came too late."""
    if marker.size > MARKER_BYTES:
        message = f"_SUCCESS has {marker.size:,} bytes, at most {MARKER_BYTES:,} are read: write fewer files."
        raise _incomplete(message, index)
    data = await objects.get(marker.uri, if_match=marker.etag)
    if data is None:
        raise _incomplete("The output's _SUCCESS marker changed while it was read.", index)
    if not data.startswith(MARKER_FAMILY):
        return tuple(files)
    try:
        listed: Sequence[_NamedFile] = msgspec.json.decode(data, type=_Marker | _HashedMarker).files
    except (msgspec.DecodeError, UnicodeDecodeError):
        message = '_SUCCESS: expected a list of {"name", "size", "sha256"} in `files`; received something else.'
        raise _incomplete(message, index) from None
    by_name = {meta.uri.removeprefix(prefix): meta for meta in files}
    if len({file.name for file in listed}) != len(listed):
        raise _incomplete("_SUCCESS names a file twice.", index)
    absent = sum(file.name not in by_name or by_name[file.name].size != file.size for file in listed)
    if absent:
        raise _incomplete(
            f"_SUCCESS names {len(listed)} files; {absent} of them are missing or have another size.", index
        )
    return tuple(_pin(by_name[file.name], file) for file in sorted(listed, key=lambda file: file.name))


async def _copy(
    objects: ObjectStore, files: Sequence[ObjectMeta], prefix: str, committed: str, index: int
) -> tuple[ObjectMeta, ...]:
    """Copies to where only the platform writes. The code that wrote the files may hold credentials for a while yet, and
    may report its end again: names that are unique to this call keep what is committed from being replaced."""
    call = secrets.token_hex(4)
    copies: list[ObjectMeta] = []
    for start in range(0, len(files), _COPIES_AT_ONCE):
        some = files[start : start + _COPIES_AT_ONCE]
        names = [meta.uri.removeprefix(prefix).removesuffix(".parquet") for meta in some]
        results = await asyncio.gather(
            *(
                objects.copy(meta.uri, f"{committed}{name}-{call}.parquet")
                for meta, name in zip(some, names, strict=True)
            )
        )
        for meta, copy in zip(some, results, strict=True):
            if copy is None or copy.size != meta.size:
                raise _incomplete("A file changed while it was committed.", index)
            copies.append(replace(copy, sha256=meta.sha256))
    return tuple(copies)


def _pin(meta: ObjectMeta, file: _NamedFile) -> ObjectMeta:
    """The object with the hash of its content, which is the word of the attempt that wrote it."""
    return replace(meta, sha256=file.sha256) if isinstance(file, _HashedFile) else meta


async def check_artifact(
    objects: ObjectStore, body: BufferPublishRequest, claims: VerifiedClaims, max_bytes: int
) -> ObjectMeta:
    if not lies_under(body.batch_uri, claims.s3.buffer_prefix):
        raise TraceError("prefix_forbidden", field="batch_uri")
    artifact = await objects.head(body.batch_uri)
    if artifact is None:
        raise TraceError("artifact_missing", field="batch_uri")
    if artifact.size > max_bytes:
        message = f"The artifact has {artifact.size:,} bytes; `artifact_max_bytes` allows {max_bytes:,}."
        raise TraceError("artifact_too_large", message, field="batch_uri", limit_bytes=max_bytes)
    if body.batch_size_bytes not in (None, artifact.size):
        raise TraceError("artifact_mismatch", field="batch_size_bytes")
    await objects.sync()
    return replace(artifact, sha256=body.batch_sha256)


def _compare(report: OutputReport, files: Sequence[ObjectMeta], index: int) -> None:
    count, size = len(files), sum(meta.size for meta in files)
    if report.file_count in (None, count) and report.size_bytes in (None, size):
        return
    pairs = (("files", report.file_count), ("bytes", report.size_bytes))
    differences = ", ".join(f"{what}: {number}" for what, number in pairs if number is not None)
    message = f"The attempt reported {differences}; the object store has files: {count}, bytes: {size}."
    raise _incomplete(message, index)


def _incomplete(message: str, index: int) -> TraceError:
    return TraceError("output_incomplete", message, field=f"datasets_published[{index}]")


def _granted_prefix(item: DatasetPublished, index: int, claims: VerifiedClaims) -> str:
    field = f"datasets_published[{index}].storage_ref"
    ref = item.storage_ref
    if ref.glob != GLOB:
        raise TraceError(
            "prefix_forbidden", f"The glob of a publication must be exactly {GLOB}.", field=f"{field}.glob"
        )
    prefix = f"s3://{ref.bucket}/{ref.prefix}"
    generation = f"/{item.dataset_uuid}/{item.dataset_version}/"
    if prefix not in claims.s3.write_prefixes or parse_uri(prefix) is None or generation not in prefix:
        raise TraceError("prefix_forbidden", field=field)
    return prefix
