"""Every promise of the ObjectStore port. Each adapter subclasses `ObjectStoreSuite` and provides a `store` fixture."""

import asyncio

import pytest

from tracelake.errors import TraceError
from tracelake.ports import ObjectMeta, ObjectStore

TOP = "s3://bucket-one/datasets/a/"

NOT_CANONICAL = [
    "", "x", "/etc/passwd", "s3://", "s3:///key", "s3://bucket-one", "s3://bucket-one/", "s3://b/key", "S3://bucket-one/k",
    "file:///etc/passwd", "https://bucket-one/key", "s3://Bucket/key", "s3://../key", "s3://.aside/key", "s3://bucket-one//k",
    f"{TOP}../x", f"{TOP}..", f"{TOP}./x", f"{TOP}.", f"{TOP}x//y", f"{TOP}x/../../../../etc/passwd",
    f"{TOP}%2e%2e/x", f"{TOP}a%2Fb", f"{TOP}*", f"{TOP}?", f"{TOP}a\\b", f"{TOP}a\nb", f"{TOP}a\x00b", f"{TOP}a\x7f",
    f"{TOP}e\u0301", f"{TOP}\ud800", f"{TOP}{'k' * 1100}", "s3://bucket-one\n/key", "s3://bucket-one/../bucket-two/key",
]  # fmt: skip


class ObjectStoreSuite:
    def test_what_is_put_can_be_read(self, store: ObjectStore) -> None:
        async def test() -> None:
            for name, body in (("x", b"\x00\xff"), ("empty", b""), ("ünï/cöde \U0001f600", b"3"), ("a b", b"4")):
                meta = await store.put(TOP + name, body)
                assert (meta.uri, meta.size) == (TOP + name, len(body))
                assert await store.head(TOP + name) == meta
                assert await store.get(TOP + name) == body
                assert await store.get(TOP + name, if_match=meta.etag) == body

        asyncio.run(test())

    def test_what_is_not_there(self, store: ObjectStore) -> None:
        async def test() -> None:
            await store.put(TOP + "folder/inner", b"1")
            for name in ("x", "folder", "folder/inner/below", "n" * 300):
                assert await store.head(TOP + name) is None
                assert await store.get(TOP + name) is None
                assert await store.get(TOP + name, if_match="etag") is None
                await store.delete(TOP + name)
            assert await store.get(TOP + "folder/inner") == b"1"
            assert await store.list("s3://bucket-none/x/") == []

        asyncio.run(test())

    def test_delete(self, store: ObjectStore) -> None:
        async def test() -> None:
            await store.put(TOP + "x", b"1")
            await store.put(TOP + "y", b"2")
            await store.delete(TOP + "x")
            await store.delete(TOP + "x")
            assert await store.head(TOP + "x") is None
            assert [meta.uri for meta in await store.list(TOP)] == [TOP + "y"]

        asyncio.run(test())

    def test_a_copy_is_an_object_of_its_own(self, store: ObjectStore) -> None:
        async def test() -> None:
            await store.put(TOP + "a b/ü.parquet", b"1")
            await store.put(TOP + "y", b"old")
            copy = await store.copy(TOP + "a b/ü.parquet", TOP + "y")
            assert copy is not None
            assert (copy.uri, copy.size) == (TOP + "y", 1)
            await store.put(TOP + "a b/ü.parquet", b"changed")
            await store.delete(TOP + "a b/ü.parquet")
            assert await store.get(TOP + "y", if_match=copy.etag) == b"1"
            assert await store.copy(TOP + "none", TOP + "z") is None
            assert await store.head(TOP + "z") is None
            with pytest.raises(ValueError, match="bucket"):
                await store.copy(TOP + "y", "s3://bucket-two/datasets/y")

        asyncio.run(test())

    def test_an_etag_pins_bytes(self, store: ObjectStore) -> None:
        """Other bytes have another ETag, also of the same length and within one clock tick."""

        async def test() -> None:
            etags = []
            for number in range(50):
                meta = await store.put(TOP + "x", b"%03d" % number)
                etags.append(meta.etag)
            assert len(set(etags)) == len(etags)
            for etag in etags[:-1]:
                assert await store.get(TOP + "x", if_match=etag) is None
            assert await store.get(TOP + "x", if_match=etags[-1]) == b"049"
            assert await store.get(TOP + "x", if_match="") is None

        asyncio.run(test())

    def test_a_part_of_an_object(self, store: ObjectStore) -> None:
        async def test() -> None:
            meta = await store.put(TOP + "x", b"0123456789")
            for start, length in ((0, 10), (0, 1), (3, 4), (9, 1)):
                part = await store.read(TOP + "x", start, length, if_match=meta.etag)
                assert part == b"0123456789"[start : start + length]
            assert await store.read(TOP + "x", 8, 10, if_match=meta.etag) == b"89"
            assert await store.read(TOP + "x", 0, 1, if_match="other") is None
            assert await store.read(TOP + "x", 0, 1, if_match="") is None
            assert await store.read(TOP + "y", 0, 1, if_match=meta.etag) is None

        asyncio.run(test())

    def test_reading_changes_no_etag(self, store: ObjectStore) -> None:
        async def test() -> None:
            meta = await store.put(TOP + "x", b"1")
            await store.put(TOP + "y", b"1")
            for _ in range(3):
                await store.get(TOP + "x")
                assert await store.list(TOP) != []
                assert await store.head(TOP + "x") == meta

        asyncio.run(test())

    def test_a_prefix_is_a_directory(self, store: ObjectStore) -> None:
        async def test() -> None:
            names = ["b/1", "b/2/3", "bc/1", "b.x", "B/1", "b/.hidden", "b/_SUCCESS"]
            for name in names:
                await store.put(TOP + name, b"1")
            assert [meta.uri for meta in await store.list(TOP + "b/")] == sorted(
                TOP + name for name in names if name.startswith("b/")
            )
            assert len(await store.list(TOP)) == len(names)
            assert await store.list("s3://bucket-two/datasets/a/") == []
            for prefix in (TOP[:-1], TOP + "b", "s3://bucket-one/", "s3://bucket-one", TOP + "/", TOP + "../", ""):
                with pytest.raises(ValueError, match="canonical"):
                    await store.list(prefix)

        asyncio.run(test())

    def test_a_listing_says_what_head_says(self, store: ObjectStore) -> None:
        async def test() -> None:
            metas = [await store.put(f"{TOP}n{number}", b"x" * number) for number in range(20)]
            assert await store.list(TOP) == sorted(metas, key=lambda meta: meta.uri)

        asyncio.run(test())

    def test_a_listing_has_a_bound(self, store: ObjectStore) -> None:
        async def test() -> None:
            for number in range(7):
                await store.put(f"{TOP}deep/{number}", b"x")
            await store.put(TOP + "beside", b"x")
            assert len(await store.list(TOP + "deep/", limit=7)) == 7
            for limit in (0, 1, 6):
                with pytest.raises(TraceError) as refusal:
                    await store.list(TOP + "deep/", limit=limit)
                assert (refusal.value.code, refusal.value.status) == ("too_many_objects", 422)
                assert refusal.value.details == {"limit": limit}
                assert not refusal.value.retryable
            assert await store.list(TOP + "nothing/", limit=0) == []

        asyncio.run(test())

    def test_a_walk_has_none(self, store: ObjectStore) -> None:
        async def test() -> None:
            names = {f"{TOP}deep/{number:04}" for number in range(120)}
            for name in names:
                await store.put(name, b"x")
            await store.put(TOP + "beside", b"x")
            met = set()
            async for meta in store.walk(TOP + "deep/"):
                assert meta.uri not in met
                met.add(meta.uri)
                await store.delete(meta.uri)
            assert met == names
            assert [meta.uri async for meta in store.walk(TOP + "deep/")] == []
            assert [meta.uri async for meta in store.walk("s3://bucket-none/x/")] == []
            assert await store.head(TOP + "beside") is not None
            with pytest.raises(ValueError, match="canonical"):
                await anext(aiter(store.walk(TOP[:-1])))

        asyncio.run(test())

    @pytest.mark.parametrize("uri", NOT_CANONICAL, ids=ascii)
    def test_only_canonical_addresses_are_taken(self, store: ObjectStore, uri: str) -> None:
        async def test() -> None:
            for call in (
                store.head(uri),
                store.get(uri),
                store.put(uri, b"1"),
                store.delete(uri),
                store.list(uri + "/"),
            ):
                with pytest.raises(ValueError, match="canonical"):
                    await call

        asyncio.run(test())

    def test_an_object_address_is_no_prefix(self, store: ObjectStore) -> None:
        async def test() -> None:
            for call in (store.head(TOP), store.get(TOP), store.put(TOP, b"1"), store.delete(TOP)):
                with pytest.raises(ValueError, match="canonical"):
                    await call

        asyncio.run(test())

    def test_objects_appear_whole_under_concurrent_writers(self, store: ObjectStore) -> None:
        bodies = [bytes([number]) * 50_000 for number in range(8)]

        async def test() -> None:
            written: dict[str, bytes] = {}

            async def write(body: bytes) -> None:
                for _ in range(5):
                    meta = await store.put(TOP + "shared", body)
                    written[meta.etag] = body
                    await store.put(f"{TOP}own-{body[0]}", body)

            async def read() -> None:
                for _ in range(40):
                    body = await store.get(TOP + "shared")
                    assert body is None or body in bodies
                    for meta in await store.list(TOP):
                        assert meta.size == 50_000
                        pinned = await store.get(meta.uri, if_match=meta.etag)
                        assert pinned is None or pinned == written.get(meta.etag, pinned)

            await asyncio.gather(*(write(body) for body in bodies), read(), read())
            last = await store.head(TOP + "shared")
            assert isinstance(last, ObjectMeta)
            assert await store.get(TOP + "shared", if_match=last.etag) == written[last.etag]
            assert len(await store.list(TOP)) == 1 + len(bodies)

        asyncio.run(test())
