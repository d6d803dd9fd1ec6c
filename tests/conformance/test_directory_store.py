"""The directory store keeps the port's promises, and nothing in the directory leads out of it."""

import asyncio
import os
from pathlib import Path

import pytest

from tests.conformance.object_store_suite import TOP, ObjectStoreSuite
from tests.support.directory_store import DirectoryStore
from tracelake.errors import StoreUnavailableError


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path / "objects")


class TestDirectoryStore(ObjectStoreSuite):
    def test_links_to_files_are_no_objects(self, store: DirectoryStore, tmp_path: Path) -> None:
        secret = tmp_path / "secret"
        secret.write_bytes(b"secret")
        folder = tmp_path / "objects/bucket-one/datasets/a"
        folder.mkdir(parents=True)
        (folder / "link").symlink_to(secret)
        (folder / "dangling").symlink_to(tmp_path / "nothing")

        async def test() -> None:
            for name in ("link", "dangling"):
                assert await store.head(TOP + name) is None
                assert await store.get(TOP + name) is None
            assert await store.list(TOP) == []
            await store.delete(TOP + "link")
            # A write replaces the link itself; what it led to stays as it was.
            await store.put(TOP + "link", b"new")
            assert await store.get(TOP + "link") == b"new"

        asyncio.run(test())
        assert secret.read_bytes() == b"secret"

    @pytest.mark.parametrize("level", ["bucket-one", "bucket-one/datasets", "bucket-one/datasets/a"])
    def test_links_to_directories_are_not_followed(self, store: DirectoryStore, tmp_path: Path, level: str) -> None:
        outside = tmp_path / "outside"
        (outside / "datasets/a").mkdir(parents=True)
        (outside / "a").mkdir()
        for folder in (outside, outside / "a", outside / "datasets/a"):
            (folder / "x").write_bytes(b"secret")
        before = {path: path.is_file() and path.read_bytes() for path in sorted(outside.rglob("*"))}
        link = tmp_path / "objects" / level
        link.parent.mkdir(parents=True)
        link.symlink_to(outside)

        async def test() -> None:
            assert await store.head(TOP + "x") is None
            assert await store.get(TOP + "x") is None
            assert await store.list(TOP) == []
            await store.delete(TOP + "x")
            for name in ("x", "new", "deep/new"):
                with pytest.raises(StoreUnavailableError):
                    await store.put(TOP + name, b"1")

        asyncio.run(test())
        assert {path: path.is_file() and path.read_bytes() for path in sorted(outside.rglob("*"))} == before

    def test_a_root_behind_a_link_is_fine(self, tmp_path: Path) -> None:
        (tmp_path / "real").mkdir()
        (tmp_path / "linked").symlink_to(tmp_path / "real")
        store = DirectoryStore(tmp_path / "linked/objects")

        async def test() -> None:
            await store.put(TOP + "x", b"1")
            assert await store.get(TOP + "x") == b"1"
            assert len(await store.list(TOP)) == 1

        asyncio.run(test())

    def test_what_is_no_regular_file_is_no_object(self, store: DirectoryStore, tmp_path: Path) -> None:
        folder = tmp_path / "objects/bucket-one/datasets/a"
        folder.mkdir(parents=True)
        os.mkfifo(folder / "pipe")
        (folder / "folder").mkdir()

        async def test() -> None:
            assert await store.list(TOP) == []
            for name in ("pipe", "folder"):
                assert await store.head(TOP + name) is None
                assert await store.get(TOP + name) is None

        asyncio.run(test())

    def test_names_that_no_address_can_spell_are_not_listed(self, store: DirectoryStore, tmp_path: Path) -> None:
        folder = tmp_path / "objects/bucket-one/datasets/a"
        folder.mkdir(parents=True)
        for name in (b"\xff", b"50%", b"a*b", b"line\nbreak", "e\u0301".encode(), b"good"):
            (folder / os.fsdecode(name)).write_bytes(b"1")
        assert [meta.uri for meta in asyncio.run(store.list(TOP))] == [TOP + "good"]

    def test_a_store_that_cannot_be_read_is_unavailable(
        self, store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(self: Path) -> os.stat_result:
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(Path, "lstat", broken)
        with pytest.raises(StoreUnavailableError):
            asyncio.run(store.head(TOP + "x"))

    def test_a_changed_file_has_another_etag(self, store: DirectoryStore, tmp_path: Path) -> None:
        meta = asyncio.run(store.put(TOP + "x", b"12"))
        (tmp_path / "objects/bucket-one/datasets/a/x").write_bytes(b"34")
        assert asyncio.run(store.get(TOP + "x", if_match=meta.etag)) is None

    def test_nothing_is_left_aside(self, store: DirectoryStore, tmp_path: Path) -> None:
        asyncio.run(store.put(TOP + "x", b"1"))
        assert list((tmp_path / "objects/.aside").iterdir()) == []
