"""The life of a bundle: opened, finalized once, disabled; whatever happens twice, at once, late or in between."""

import asyncio
import random
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import msgspec
import pytest

from tests.api.support import Seed, User
from tests.bundles.archives import RawEntry, elf, make_zip
from tests.bundles.hostile import CORPUS
from tests.bundles.uploading import ARCHIVE, bundle_request, finalize, push, send, stage
from tests.support.dispatcher import DispatcherHarness, Reply
from tracelake.adapters.bundle_processes import BundleProcesses
from tracelake.bundles.archive import ArchiveLimits
from tracelake.bundles.child import InspectionReply, InspectionRequest
from tracelake.dispatcher.audit import Actor
from tracelake.dispatcher.bundles.inspection import BundleInspector, ThreadInspector
from tracelake.dispatcher.bundles.rows import content_uri, staging_uri
from tracelake.dispatcher.bundles.uploads import BundleUploads
from tracelake.errors import StoreUnavailableError, TraceError
from tracelake.wire.bundles import PIECE_BYTES, BundleDetail, FinalizeBundleRequest

RUST = {"language": "rust", "entrypoint": None}


@pytest.fixture
def user(harness: DispatcherHarness) -> User:
    return Seed(harness).user("writer")


def org_id_of(user: User) -> UUID:
    org_id: UUID = user.harness.sql("SELECT org_id FROM orgs WHERE name = $1", user.org)[0]["org_id"]
    return org_id


def actions(user: User) -> list[str]:
    rows = user.harness.sql(
        "SELECT action FROM audit_log JOIN orgs USING (org_id) WHERE name = $1 ORDER BY audit_id", user.org
    )
    return [row["action"] for row in rows]


def content(user: User, archive: bytes = ARCHIVE) -> bytes | None:
    harness = user.harness
    uri = content_uri(harness.config.bundle_bucket, org_id_of(user), bundle_request(archive)["sha256"])
    return harness.run(harness.objects.get(uri))


def test_a_bundle_from_its_upload_to_its_end(user: User) -> None:
    opened = user.call("POST", "/v1/udf/bundles", {"size_bytes": len(ARCHIVE)}).body
    bundle_id = opened["bundle_id"]
    assert opened["headers"]["content-length"] == str(len(ARCHIVE))
    path = f"/v1/udf/bundles/{bundle_id}"
    assert finalize(user, bundle_id).code == "bundle_not_uploaded"
    send(user, bundle_id, ARCHIVE)
    ready = finalize(user, bundle_id).body
    assert (ready["status"], ready["language"], ready["entrypoint"]) == ("ready", "python", "trace.handler")
    assert (ready["entry_count"], ready["size_bytes"]) == (2, len(ARCHIVE))
    assert [(notice["code"], notice["entry"]) for notice in ready["notices"]] == [
        ("shadows_standard_library", "trace.py")
    ]
    assert content(user) == ARCHIVE
    assert user.get(path) == ready
    assert [row["bundle_id"] for row in user.get("/v1/udf/bundles")["bundles"]] == [bundle_id]
    disabled = user.call("POST", f"{path}/disable").body
    assert (disabled["status"], disabled["disabled_by"]) == ("disabled", "somebody")
    assert user.call("POST", f"{path}/disable").body == disabled | {"duplicate": True}
    assert actions(user) == ["bundle.open", "bundle.finalize", "bundle.disable"]


def test_an_org_may_begin_with_a_bundle(harness: DispatcherHarness) -> None:
    user = User(harness, "first_bundle", "writer")
    assert user.get("/v1/udf/bundles") == {"bundles": []}
    push(user)
    assert len(user.get("/v1/udf/bundles")["bundles"]) == 1


def test_a_repeated_finalization_changes_nothing(user: User) -> None:
    bundle_id = push(user)
    before = user.get(f"/v1/udf/bundles/{bundle_id}")
    send(user, bundle_id, make_zip(RawEntry(name=b"evil.py")))
    assert finalize(user, bundle_id).body == before | {"duplicate": True}
    changes: list[dict[str, Any]] = [{"sha256": "0" * 64}, {"language": "node"}, {"entrypoint": "other.handler"}]
    for change in changes:
        assert finalize(user, bundle_id, **change).code == "bundle_conflict"
    assert user.get(f"/v1/udf/bundles/{bundle_id}") == before
    assert content(user) == ARCHIVE
    assert actions(user) == ["bundle.open", "bundle.finalize"]


@pytest.mark.parametrize(
    ("reason", "archive", "changes"),
    [
        ("sha256_mismatch", ARCHIVE, {"sha256": "0" * 64}),
        ("entrypoint_missing", ARCHIVE, {"entrypoint": "other.handler"}),
        ("entrypoint_invalid", ARCHIVE, {"entrypoint": "handler"}),
        ("entrypoint_invalid", ARCHIVE, {"entrypoint": None}),
        ("entrypoint_missing", ARCHIVE, {"language": "node", "entrypoint": "index.handler"}),
        ("bootstrap_invalid", make_zip(RawEntry(name=b"bootstrap", content=elf())), RUST),
        ("name_invalid", CORPUS["a parent"][1], {}),
        ("overlap", CORPUS["entries that share their content"][1], {}),
    ],
)  # fmt: skip
def test_a_bundle_that_lies_is_rejected_for_good(
    user: User, reason: str, archive: bytes, changes: dict[str, Any]
) -> None:
    bundle_id = stage(user, archive)
    for _ in range(2):
        reply = finalize(user, bundle_id, archive, **changes)
        assert (reply.status, reply.code) == (422, "bundle_rejected")
        assert reply.body["error"]["details"]["reason_code"] == reason
    assert user.get(f"/v1/udf/bundles/{bundle_id}")["reason_code"] == reason
    assert finalize(user, bundle_id, archive).code == "bundle_rejected", "also if the next call tells the truth"
    assert user.call("POST", f"/v1/udf/bundles/{bundle_id}/disable").code == "bundle_not_ready"
    assert content(user, archive) is None
    assert actions(user) == ["bundle.open", "bundle.reject"]


def test_an_upload_of_another_size_is_rejected_unread(user: User) -> None:
    bundle_id = stage(user, ARCHIVE, size=len(ARCHIVE) + 1)
    assert finalize(user, bundle_id).body["error"]["details"]["reason_code"] == "size_mismatch"


def test_an_upload_that_is_too_large_is_not_opened(user: User) -> None:
    most = user.harness.config.bundle_limits.max_bytes
    reply = user.call("POST", "/v1/udf/bundles", {"size_bytes": most + 1})
    assert (reply.status, reply.code) == (413, "bundle_too_large")
    assert user.call("POST", "/v1/udf/bundles", {"size_bytes": 0}).code == "body_invalid"


def test_open_uploads_are_limited_by_org(user: User) -> None:
    most = user.harness.config.bundle_open_uploads
    bundle_ids = [stage(user) for _ in range(most)]
    reply = user.call("POST", "/v1/udf/bundles", {"size_bytes": 1})
    assert (reply.status, reply.code) == (429, "quota_bundles")
    push(Seed(user.harness).user("writer"))  # another org is not affected
    assert finalize(user, bundle_ids[0]).status == 200
    assert user.call("POST", "/v1/udf/bundles", {"size_bytes": 1}).status == 200


def test_pages_of_bundles(user: User) -> None:
    bundle_ids = [push(user) for _ in range(3)]
    rows = user.pages("/v1/udf/bundles?limit=1", "bundles")
    assert [row["bundle_id"] for row in rows] == bundle_ids[::-1]


class _Gate(ThreadInspector):
    """An inspector that waits until as many archives are there as the test wants."""

    def __init__(self, archives: int) -> None:
        self._barrier = asyncio.Barrier(archives)

    async def inspect(self, request: InspectionRequest, archive: bytes) -> InspectionReply:
        await self._barrier.wait()
        return await super().inspect(request, archive)


def uploads_of(user: User, inspector: BundleInspector) -> BundleUploads:
    ports = user.harness.dispatcher.ports
    return BundleUploads(ports.store, ports.objects, ports.urls, inspector, user.harness.config)


def as_request(**changes: Any) -> FinalizeBundleRequest:
    return msgspec.convert(bundle_request(**changes), FinalizeBundleRequest)


@pytest.mark.parametrize("second", [{}, {"sha256": "0" * 64}, {"entrypoint": "other.handler"}])
def test_of_two_finalizations_at_once_one_decides(user: User, second: dict[str, Any]) -> None:
    """On two Dispatchers, both of which have read the upload before either commits."""
    bundle_id, actor = UUID(stage(user)), Actor("somebody", user.org, org_id_of(user))
    gate = _Gate(2)

    async def both() -> list[BundleDetail | BaseException]:
        calls = [
            uploads_of(user, gate).finalize(actor, bundle_id, request)
            for request in (as_request(), as_request(**second))
        ]
        return await asyncio.gather(*calls, return_exceptions=True)

    replies = user.harness.run(both())
    details = [reply for reply in replies if isinstance(reply, BundleDetail)]
    row = user.get(f"/v1/udf/bundles/{bundle_id}")
    assert len(actions(user)) == 2
    if not second:
        assert sorted(reply.duplicate for reply in details) == [False, True]
    elif row["status"] == "ready":
        assert [reply.duplicate for reply in details] == [False]
        assert {getattr(reply, "code", None) for reply in replies} == {None, "bundle_conflict"}
    else:
        assert {getattr(reply, "code", None) for reply in replies} == {"bundle_rejected"}


def test_a_crash_between_copy_and_commit_leaves_an_upload_that_can_be_finalized(
    user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle_id, actor = UUID(stage(user)), Actor("somebody", user.org, org_id_of(user))
    uploads = uploads_of(user, ThreadInspector())

    async def crash(*_: object) -> BundleDetail:
        raise StoreUnavailableError("The state store is not available right now.")

    monkeypatch.setattr(uploads, "_commit", crash)
    with pytest.raises(StoreUnavailableError):
        user.harness.run(uploads.finalize(actor, bundle_id, as_request()))
    assert content(user) == ARCHIVE
    assert user.get(f"/v1/udf/bundles/{bundle_id}")["status"] == "uploading"
    assert finalize(user, str(bundle_id)).body["status"] == "ready"
    assert actions(user) == ["bundle.open", "bundle.finalize"]


def test_staged_bytes_go_when_their_address_has_expired(harness: DispatcherHarness, user: User) -> None:
    kept, left = push(user), stage(user)
    collector = harness.dispatcher.uploads
    addresses = [
        staging_uri(harness.config.bundle_bucket, org_id_of(user), UUID(bundle_id)) for bundle_id in (kept, left)
    ]
    harness.run(collector.run_once())
    assert all(harness.run(harness.objects.head(uri)) for uri in addresses), "while somebody could send them again"
    harness.sql("UPDATE udf_bundles SET upload_expires_at = upload_expires_at - interval '1 day' WHERE org_id = $1", org_id_of(user))  # fmt: skip  # noqa: E501
    assert harness.run(collector.run_once()) == 2
    assert not any(harness.run(harness.objects.head(uri)) for uri in addresses)
    assert user.get(f"/v1/udf/bundles/{kept}")["status"] == "ready"
    assert user.get(f"/v1/udf/bundles/{left}")["reason_code"] == "upload_expired"
    assert content(user) == ARCHIVE
    assert harness.run(collector.run_once()) == 0


@pytest.fixture
def processes(harness: DispatcherHarness) -> Iterator[BundleProcesses]:
    pool = BundleProcesses(1, seconds=1)
    yield pool
    harness.run(pool.close())


def test_a_process_inspects_archives_and_survives_hostile_ones(
    harness: DispatcherHarness, processes: BundleProcesses
) -> None:
    def inspect(archive: bytes, **limits: int) -> InspectionReply:
        request = InspectionRequest(**bundle_request(archive), limits=ArchiveLimits(**limits))
        return harness.run(processes.inspect(request, archive))

    assert inspect(ARCHIVE).code is None
    for name in ("a bomb", "entries that share their content", "not deflated", "nothing"):
        assert inspect(CORPUS[name][1]).code == CORPUS[name][0]
    endless = make_zip(*(RawEntry(name=b"%d" % number, content=bytes(50 * 1024**2)) for number in range(60)))
    assert inspect(endless, max_ratio=2000, max_expanded_bytes=2**40).code == "too_costly"
    assert inspect(ARCHIVE).code is None


def test_a_lost_process_is_a_failure_that_may_be_repeated(user: User) -> None:
    class Lost(ThreadInspector):
        async def inspect(self, request: InspectionRequest, archive: bytes) -> InspectionReply:
            raise TraceError("bundle_inspector_unavailable")

    bundle_id, actor = UUID(stage(user)), Actor("somebody", user.org, org_id_of(user))
    with pytest.raises(TraceError) as error:
        user.harness.run(uploads_of(user, Lost()).finalize(actor, bundle_id, as_request()))
    assert error.value.retryable
    assert finalize(user, str(bundle_id)).status == 200


def test_a_reader_may_look_and_nothing_else(user: User) -> None:
    bundle_id = push(user)
    reader = User(user.harness, user.org, "reader")
    reader.get(f"/v1/udf/bundles/{bundle_id}")
    replies: list[Reply] = [
        reader.call("POST", "/v1/udf/bundles", {"size_bytes": 1}),
        finalize(reader, bundle_id),
        reader.call("POST", f"/v1/udf/bundles/{bundle_id}/disable"),
    ]
    assert {reply.code for reply in replies} == {"role_forbidden"}


LARGE = make_zip(
    RawEntry(name=b"trace.py"), RawEntry(name=b"lib/data.bin", content=random.Random(1).randbytes(1_200_000))
)
"""Of three pieces."""


def send_piece(user: User, bundle_id: str, offset: int, piece: bytes) -> Reply:
    path = f"/v1/udf/bundles/{bundle_id}/pieces?offset={offset}"
    return user.harness.call("public", "POST", path, piece, user.headers)


def test_an_archive_comes_in_pieces_in_any_order_and_more_than_once(user: User) -> None:
    assert len(LARGE) > 2 * PIECE_BYTES
    bundle_id = user.call("POST", "/v1/udf/bundles", {"size_bytes": len(LARGE)}).body["bundle_id"]
    pieces = {offset: LARGE[offset : offset + PIECE_BYTES] for offset in range(0, len(LARGE), PIECE_BYTES)}
    first, second, last = pieces
    assert send_piece(user, bundle_id, second, pieces[second]).body["received"] == second + PIECE_BYTES
    assert send_piece(user, bundle_id, last, pieces[last]).code == "bundle_not_uploaded", "the first one is missing"
    for offset in (first, first, last, last):
        assert send_piece(user, bundle_id, offset, pieces[offset]).status == 200
    assert finalize(user, bundle_id, LARGE).body["status"] == "ready"
    assert content(user, LARGE) == LARGE
    assert send_piece(user, bundle_id, first, b"x" * PIECE_BYTES).status == 200, "too late: it is left alone"
    assert content(user, LARGE) == LARGE


def test_a_piece_has_its_place_and_its_size(user: User) -> None:
    bundle_id = user.call("POST", "/v1/udf/bundles", {"size_bytes": len(LARGE)}).body["bundle_id"]
    for offset, piece in ((1, LARGE[1:9]), (0, LARGE[:9]), (0, b""), (4 * PIECE_BYTES, b"x"), (0, LARGE)):
        reply = send_piece(user, bundle_id, offset, piece)
        assert reply.code in ("body_invalid", "body_too_large"), reply


def test_pieces_of_an_upload_that_expired_are_deleted(user: User) -> None:
    harness = user.harness
    bundle_id = user.call("POST", "/v1/udf/bundles", {"size_bytes": len(LARGE)}).body["bundle_id"]
    assert send_piece(user, bundle_id, 0, LARGE[:PIECE_BYTES]).status == 200
    prefix = f"s3://{harness.config.bundle_bucket}/uploads/{org_id_of(user)}/"
    assert len(harness.run(harness.objects.list(prefix))) == 1
    harness.sql(
        "UPDATE udf_bundles SET upload_expires_at = trace_now() - interval '1 day' WHERE bundle_id = $1", bundle_id
    )
    harness.run(harness.dispatcher.uploads.run_once())
    assert harness.run(harness.objects.list(prefix)) == []
