"""The object store of a test answers tools of S3, keeps a bounded number of bytes, and refuses other keys."""

import asyncio
from datetime import UTC, datetime

import pytest

from tracelake.runner.upstream import UpstreamReply
from tracelake.udf_test import object_requests
from tracelake.udf_test.local_upstream import RefusedRequest
from tracelake.udf_test.memory_objects import MemoryObjects
from tracelake.udf_test.object_requests import ObjectUpstream
from tracelake.wire.task_calls import ScopedCredentials

KEYS = ScopedCredentials(
    access_key_id="TEST1",
    secret_access_key="s",
    session_token="t",
    expires_at=datetime.now(UTC),
    read_prefixes=[],
    write_prefixes=[],
)
SIGNED = {
    "authorization": "AWS4-HMAC-SHA256 Credential=TEST1/20260101/us-east-1/s3/aws4_request",
    "x-amz-security-token": "t",
}


class Store:
    def __init__(self, most_bytes: int = 1000) -> None:
        self.refused: list[RefusedRequest] = []
        self.upstream = ObjectUpstream(objects=MemoryObjects(most_bytes), keys=KEYS, note_refusal=self.refused.append)

    def ask(self, method: str, target: str, body: bytes = b"", **headers: str) -> tuple[UpstreamReply, bytes]:
        async def send() -> tuple[UpstreamReply, bytes]:
            names = SIGNED | {name.replace("_", "-"): value for name, value in headers.items()}
            reply = await self.upstream.request(method, target, list(names.items()), body, seconds=1)
            return reply, b"".join([part async for part in reply.body])

        return asyncio.run(send())

    def status(self, method: str, target: str, body: bytes = b"", **headers: str) -> int:
        return self.ask(method, target, body, **headers)[0].status


def test_objects_are_written_and_read() -> None:
    store = Store()
    assert store.status("GET", "/b/a/x") == 404
    assert store.status("PUT", "/b/a/x%20y", b"0123456789") == 200
    assert store.ask("GET", "/b/a/x%20y")[1] == b"0123456789"
    assert store.status("PUT", "/b/a/x%20y", b"other", if_none_match="*") == 412
    reply, part = store.ask("GET", "/b/a/x%20y", range="bytes=2-4")
    assert (reply.status, part, dict(reply.headers)["content-range"]) == (206, b"234", "bytes 2-4/10")
    assert store.ask("GET", "/b/a/x%20y", range="bytes=8-")[1] == b"89"
    assert store.status("GET", "/b/a/x%20y", range="bytes=10-12") == 416
    reply, body = store.ask("HEAD", "/b/a/x%20y")
    assert (reply.status, reply.length, body) == (200, 10, b"")
    assert [request.status for request in store.refused] == [412, 416], "what is not there is no refusal"


def test_listings_have_pages_and_directories(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_requests, "_MOST_KEYS", 2)
    store = Store()
    for name in ("a/1", "a/2", "a/d/3", "a/d/4", "z/5"):
        store.status("PUT", f"/b/{name}", b"x")
    page = store.ask("GET", "/b?list-type=2&prefix=a/")[1].decode()
    assert ("<Key>a/1</Key>" in page, "<Key>a/2</Key>" in page, "a/d" in page) == (True, True, False)
    assert "<NextContinuationToken>a/2</NextContinuationToken>" in page
    rest = store.ask("GET", "/b/?list-type=2&prefix=a/&continuation-token=a/2")[1].decode()
    assert ("<IsTruncated>false" in rest, rest.count("<Key>")) == (True, 2)
    below = store.ask("GET", "/b/?list-type=2&prefix=a/&delimiter=/&start-after=a/1")[1].decode()
    assert (below.count("<Key>"), below.count("<Prefix>a/d/</Prefix>")) == (1, 1)


def test_uploads_in_parts_and_in_chunks() -> None:
    store = Store()
    upload = store.ask("POST", "/b/a/big?uploads")[1].decode().partition("<UploadId>")[2].partition("<")[0]
    for number, data in ((2, b"world"), (1, b"hello ")):
        assert store.status("PUT", f"/b/a/big?partNumber={number}&uploadId={upload}", data) == 200
    assert store.status("PUT", f"/b/a/other?partNumber=1&uploadId={upload}", b"x") == 404
    assert store.status("GET", "/b/a/big") == 404
    assert store.status("POST", f"/b/a/big?uploadId={upload}") == 200
    assert store.ask("GET", "/b/a/big")[1] == b"hello world"
    chunks = b"5;chunk-signature=x\r\nhello\r\n3\r\n wo\r\n0\r\nx-amz-checksum-crc32:abc\r\n\r\n"
    streaming = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
    assert store.status("PUT", "/b/a/chunks", chunks, x_amz_content_sha256=streaming) == 200
    assert store.ask("GET", "/b/a/chunks")[1] == b"hello wo"
    for broken in (b"", b"zz\r\n", b"9\r\nhello"):
        assert store.status("PUT", "/b/a/chunks", broken, x_amz_content_sha256=streaming) == 400


def test_memory_is_bounded() -> None:
    store = Store(most_bytes=10)
    assert store.status("PUT", "/b/a/x", b"12345678") == 200
    assert store.status("PUT", "/b/a/y", b"123") == 413
    assert store.status("PUT", "/b/a/x", b"1234567890") == 200
    upload = store.ask("POST", "/b/a/big?uploads")[1].decode().partition("<UploadId>")[2].partition("<")[0]
    assert store.status("PUT", f"/b/a/big?partNumber=1&uploadId={upload}", b"1") == 413
    assert "write less" in store.refused[-1].message


def test_other_keys_open_nothing() -> None:
    store = Store()
    store.status("PUT", "/b/a/x", b"1")
    assert store.status("GET", "/b/a/x", authorization="AWS4-HMAC-SHA256 Credential=OTHER/x") == 403
    assert store.status("GET", "/b/a/x", x_amz_security_token="other") == 403
    assert store.status("GET", "/b/a/x", authorization="") == 403
