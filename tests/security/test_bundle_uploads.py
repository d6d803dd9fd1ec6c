"""The address of an upload creates one object of one size, once, on a real store; that of a bundle reads one object."""

import asyncio
import http.client
from urllib.parse import urlsplit
from uuid import uuid4

import pytest

from tests.security.conftest import RunningStore
from tracelake.adapters.s3.access import ASKING
from tracelake.adapters.s3.object_store import S3ObjectStore
from tracelake.adapters.s3.signing import S3Urls
from tracelake.client.errors import DispatcherUnavailableError
from tracelake.client.uploads import upload
from tracelake.dispatcher.bundles.rows import content_uri, staging_uri
from tracelake.dispatcher.run_logs.rows import log_uris

BUCKET = "trace-bundles"
CONTENT = b"archive" * 100


@pytest.fixture
def urls(running: RunningStore) -> S3Urls:
    return S3Urls(running[0].access(), ASKING)


@pytest.fixture
def objects(running: RunningStore) -> S3ObjectStore:
    return S3ObjectStore(running[0].access())


@pytest.fixture
def uri() -> str:
    return staging_uri(BUCKET, uuid4(), uuid4())


def call(url: str, method: str, body: bytes = b"", **headers: str) -> tuple[int, bytes]:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=20)
    try:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, f"{parts.path}?{parts.query}", body, given)
        reply = connection.getresponse()
        return reply.status, reply.read()
    finally:
        connection.close()


def test_an_archive_arrives_once(urls: S3Urls, objects: S3ObjectStore, uri: str) -> None:
    url, headers = urls.sign_upload(uri, size=len(CONTENT), seconds=600)
    upload(url, headers, CONTENT)
    assert asyncio.run(objects.get(uri)) == CONTENT
    upload(url, headers, CONTENT[::-1])  # as after a lost reply: what is there stays
    assert asyncio.run(objects.get(uri)) == CONTENT


@pytest.mark.parametrize("change", [-1, 1, 100_000])
def test_another_size_is_refused(urls: S3Urls, objects: S3ObjectStore, uri: str, change: int) -> None:
    url, _ = urls.sign_upload(uri, size=len(CONTENT), seconds=600)
    body = bytes(len(CONTENT) + change)
    assert call(url, "PUT", body, if_none_match="*")[0] == 403
    with pytest.raises(DispatcherUnavailableError):
        upload(url, {"if-none-match": "*", "content-length": str(len(body))}, body)
    assert asyncio.run(objects.head(uri)) is None


def test_the_address_opens_nothing_else(urls: S3Urls, objects: S3ObjectStore, uri: str) -> None:
    other = staging_uri(BUCKET, uuid4(), uuid4())
    asyncio.run(objects.put(other, b"theirs"))
    url, _ = urls.sign_upload(uri, size=6, seconds=600)
    elsewhere = url.replace(uri.removeprefix("s3:/"), other.removeprefix("s3:/"))
    assert elsewhere != url
    assert call(url, "PUT", b"sneaky")[0] == 403, "without the condition, which is signed"
    assert call(elsewhere, "PUT", b"sneaky", if_none_match="*")[0] == 403
    for method in ("GET", "HEAD", "DELETE", "POST"):
        assert call(url, method)[0] in (400, 403, 405, 501)
        assert call(elsewhere, method)[0] in (400, 403, 405, 501)
    copied = {"if_none_match": "*", "x_amz_copy_source": other.removeprefix("s3:/")}
    assert call(url, "PUT", b"", **copied)[0] == 403
    assert call(f"{url}&partNumber=1&uploadId=1", "PUT", b"sneaky", if_none_match="*")[0] in (400, 403, 404)
    assert asyncio.run(objects.get(other)) == b"theirs"
    assert asyncio.run(objects.head(uri)) is None


def test_the_address_of_a_bundle_reads_that_bundle(urls: S3Urls, objects: S3ObjectStore) -> None:
    org_id = uuid4()
    mine, theirs = content_uri(BUCKET, org_id, "a" * 64), content_uri(BUCKET, uuid4(), "b" * 64)
    for uri in (mine, theirs):
        asyncio.run(objects.put(uri, CONTENT))
    url = urls.sign_download(mine, seconds=600)
    assert call(url, "GET") == (200, CONTENT)
    assert call(url.replace(mine.removeprefix("s3:/"), theirs.removeprefix("s3:/")), "GET")[0] == 403
    assert call(url, "PUT", b"evil")[0] == 403
    assert call(url, "DELETE")[0] in (403, 405)
    assert asyncio.run(objects.get(mine)) == CONTENT


def test_the_log_of_a_run_is_replaced_while_it_runs_and_then_final(urls: S3Urls, objects: S3ObjectStore) -> None:
    final, running = log_uris(BUCKET, uuid4(), uuid4(), 1)
    address = urls.sign_replace(running, seconds=600)
    for content in (b"one", b"longer", b"2"):
        assert call(address, "PUT", content)[0] == 200
        assert asyncio.run(objects.get(running)) == content
    address = urls.sign_create(final, seconds=600)
    assert call(address, "PUT", b"without the condition")[0] == 403
    assert call(address, "PUT", b"first", if_none_match="*")[0] == 200
    assert call(address, "PUT", b"second", if_none_match="*")[0] == 412
    assert asyncio.run(objects.get(final)) == b"first"
    assert call(address, "GET")[0] == 403, "an address to write is none to read"
    assert call(urls.sign_replace(running, seconds=600), "DELETE")[0] == 403
