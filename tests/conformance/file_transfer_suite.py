"""Every promise of the FileTransfer port. An adapter subclasses `FileTransferSuite` and has a `transfer` fixture."""

import hashlib
import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from tracelake.ports import ContentMismatchError, FileTransfer, ObjectExistsError, ObjectMeta


def make_file(tmp_path: Path, body: bytes) -> Path:
    path = tmp_path / uuid4().hex
    path.write_bytes(body)
    return path


class FileTransferSuite:
    @pytest.fixture
    def uri(self) -> str:
        return f"s3://bucket-one/transfers/{uuid4()}/x.parquet"

    def fetch(self, transfer: FileTransfer, meta: ObjectMeta, tmp_path: Path) -> bytes:
        path = tmp_path / uuid4().hex
        transfer.download(meta, path)
        return path.read_bytes()

    @pytest.mark.parametrize("size", [0, 1, 9 * 2**20])
    def test_what_is_uploaded_can_be_downloaded(
        self, transfer: FileTransfer, uri: str, tmp_path: Path, size: int
    ) -> None:
        meta = transfer.upload(make_file(tmp_path, b"x" * size), uri)
        assert (meta.uri, meta.size) == (uri, size)
        assert self.fetch(transfer, meta, tmp_path) == b"x" * size

    def test_content_is_known_by_its_hash(self, transfer: FileTransfer, uri: str, tmp_path: Path) -> None:
        meta = transfer.upload(make_file(tmp_path, b"x"), uri)
        assert meta.sha256 == hashlib.sha256(b"x").hexdigest()
        assert self.fetch(transfer, replace(meta, sha256=None), tmp_path) == b"x"
        # As if the store had other bytes of the same size under the same ETag.
        path = tmp_path / "pinned"
        with pytest.raises(ContentMismatchError, match=r"^content_mismatch: x\.parquet does not have the SHA-256"):
            transfer.download(replace(meta, sha256=hashlib.sha256(b"y").hexdigest()), path)
        assert list(tmp_path.glob("*pinned*")) == []

    def test_an_upload_replaces_nothing(self, transfer: FileTransfer, uri: str, tmp_path: Path) -> None:
        first = transfer.upload(make_file(tmp_path, b"first"), uri)
        for body in (b"other", b"longer than that", b""):
            with pytest.raises(ObjectExistsError, match=r"x\.parquet is there already, with other bytes"):
                transfer.upload(make_file(tmp_path, body), uri)
        assert self.fetch(transfer, first, tmp_path) == b"first"

    def test_the_same_upload_again_is_answered_alike(self, transfer: FileTransfer, uri: str, tmp_path: Path) -> None:
        """The answer to the first may have been lost."""
        first = transfer.upload(make_file(tmp_path, b"first"), uri)
        assert transfer.upload(make_file(tmp_path, b"first"), uri) == first

    def test_one_of_many_at_once_wins(self, transfer: FileTransfer, uri: str, tmp_path: Path) -> None:
        files = [make_file(tmp_path, b"%03d" % number) for number in range(8)]

        def upload(path: Path) -> ObjectMeta | None:
            try:
                return transfer.upload(path, uri)
            except ObjectExistsError:
                return None

        with ThreadPoolExecutor(8) as pool:
            metas = list(pool.map(upload, files))
        winners = [path.read_bytes() for path, meta in zip(files, metas, strict=True) if meta is not None]
        meta = next(meta for meta in metas if meta is not None)
        assert winners == [self.fetch(transfer, meta, tmp_path)]

    def test_it_can_be_pickled(self, transfer: FileTransfer, uri: str, tmp_path: Path) -> None:
        copy: FileTransfer = pickle.loads(pickle.dumps(transfer))
        meta = copy.upload(make_file(tmp_path, b"x"), uri)
        assert self.fetch(transfer, meta, tmp_path) == b"x"
