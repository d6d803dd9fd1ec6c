"""A signed address opens one object for one thing, reading it or creating it. Executors of a cluster have no more."""

import http.client
import pickle
from pathlib import Path
from urllib.parse import urlsplit
from uuid import uuid4

import pytest

from tests.security.conftest import RunningStore
from tracelake.adapters.s3.transfer import S3Transfer
from tracelake.errors import StoreUnavailableError
from tracelake.ports import ContentMismatchError, ObjectChangedError, ObjectExistsError, ObjectMeta
from tracelake.spark.signed import SignedTransfer, upload_first


@pytest.fixture
def transfer(running: RunningStore) -> S3Transfer:
    return S3Transfer(running[0].access())


@pytest.fixture
def prefix() -> str:
    return f"s3://bucket-one/signed/{uuid4()}/"


def lend(transfer: S3Transfer, *, reading: tuple[str, ...] = (), creating: tuple[str, ...] = ()) -> SignedTransfer:
    urls = [transfer.sign(uris, create=uris is creating, seconds=600) for uris in (reading, creating)]
    lent = SignedTransfer(
        dict(zip(reading, urls[0], strict=True)), dict(zip(creating, urls[1], strict=True)), retry_seconds=0.0
    )
    travelled = pickle.dumps(lent)
    assert transfer.access.secret_key is not None
    assert transfer.access.secret_key.encode() not in travelled
    copy: SignedTransfer = pickle.loads(travelled)
    return copy


def call(url: str, method: str, body: bytes | None = None, **headers: str) -> int:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=20)
    try:
        connection.request(
            method, f"{parts.path}?{parts.query}", body, {k.replace("_", "-"): headers[k] for k in headers}
        )
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.parametrize("size", [0, 5, 3 * 2**20])
def test_what_is_created_can_be_read_by_whoever_may(
    transfer: S3Transfer, prefix: str, tmp_path: Path, size: int
) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(b"x" * size)
    uri = f"{prefix}rows of a=b_0_9.parquet"
    meta = lend(transfer, creating=(uri,)).upload(source, uri)
    assert (meta.uri, meta.size) == (uri, size)
    lend(transfer, reading=(uri,)).download(meta, target)
    assert target.read_bytes() == source.read_bytes()
    target.unlink()
    transfer.download(meta, target)
    assert target.read_bytes() == source.read_bytes()


def test_an_address_replaces_nothing(transfer: S3Transfer, prefix: str, tmp_path: Path) -> None:
    first, second = f"{prefix}first", f"{prefix}second"
    lent = lend(transfer, creating=(first, second))
    path = tmp_path / "file"
    path.write_bytes(b"one")
    assert upload_first(lent, path, [first, second]).uri == first
    path.write_bytes(b"two")
    with pytest.raises(ObjectExistsError):
        lent.upload(path, first)
    assert upload_first(lent, path, [first, second]).uri == second
    with pytest.raises(ObjectExistsError):
        upload_first(lent, path, [first, second])
    assert call(lent.creating[first], "PUT", b"evil") == 403, "without the condition, which is signed"
    assert call(lent.creating[first], "PUT", b"evil", If_None_Match="*") == 412


def test_an_address_opens_nothing_else(transfer: S3Transfer, prefix: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"one")
    mine, foreign, new = (transfer.upload(path, f"{prefix}{name}").uri for name in ("mine", "foreign", "new"))
    lent = lend(transfer, reading=(mine,), creating=(f"{prefix}newer",))
    reading, creating = lent.reading[mine], lent.creating[f"{prefix}newer"]
    assert call(reading, "GET") == 200
    for method in ("PUT", "DELETE", "HEAD"):
        assert call(reading, method, If_None_Match="*") == 403
    for method in ("GET", "DELETE"):
        assert call(creating, method, If_None_Match="*") == 403
    assert call(reading.replace("/mine?", "/foreign?"), "GET") == 403
    assert call(reading.replace("/mine?", "/?"), "GET") == 403
    assert call(creating.replace("/newer?", "/newest?"), "PUT", b"x", If_None_Match="*") == 403
    assert call(reading.replace("Expires=600", "Expires=60000"), "GET") == 403
    assert call(reading.partition("?")[0] + "?", "GET") == 403
    for uri in (foreign, new):
        with pytest.raises(ValueError, match="no signed address"):
            lent.download(ObjectMeta(uri, 3, ""), path)
        with pytest.raises(ValueError, match="no signed address"):
            lent.upload(path, uri)


def test_only_the_pinned_bytes_are_read(transfer: S3Transfer, prefix: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"one")
    meta = transfer.upload(path, f"{prefix}mine")
    lent = lend(transfer, reading=(meta.uri,))
    target = tmp_path / "target"
    for wrong, error in (
        (ObjectMeta(meta.uri, 3, meta.etag, "0" * 64), ContentMismatchError),
        (ObjectMeta(meta.uri, 4, meta.etag), ObjectChangedError),
        (ObjectMeta(meta.uri, 3, '"another"'), ObjectChangedError),
    ):
        with pytest.raises(error):
            lent.download(wrong, target)
    away = SignedTransfer({meta.uri: "http://127.0.0.1:1/x?y"}, retry_seconds=0.0)
    with pytest.raises(StoreUnavailableError):
        away.download(meta, target)
    assert list(tmp_path.iterdir()) == [path]
