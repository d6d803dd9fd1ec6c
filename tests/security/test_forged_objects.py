"""An object that was replaced beneath S3, with the same size and the same ETag, is refused by whoever reads it.

Only the owner of the store's keys can do that: the test has them.
"""

import asyncio
import hashlib
import http.client
import json
import ssl
import time
import tomllib
from pathlib import Path
from uuid import uuid4

import jwt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.security.conftest import RunningStore
from tracelake.adapters.s3.access import ASKING
from tracelake.adapters.s3.object_store import S3ObjectStore
from tracelake.adapters.s3.transfer import S3Transfer
from tracelake.errors import TraceError
from tracelake.model.dag import Column, ColumnType, Schema
from tracelake.ports import ContentMismatchError, ObjectMeta
from tracelake.rows.reader import BadBatchError, BatchReader
from tracelake.sink.parse import parse_batch
from tracelake.spark.reader import Selection, _fetch_function
from tracelake.stack.dataset_rows import read_files
from tracelake.stack.seaweedfs import EmbeddedObjectStore
from tracelake.storage.file_cache import FileCache
from tracelake.wire.buffers import BufferBatch, Producer
from tracelake.wire.task_calls import DataFile


def _forge(store: EmbeddedObjectStore, uri: str, body: bytes) -> None:
    """Replace the bytes that a volume keeps of an object; what the filer knows of it stays."""
    security = tomllib.loads((store.config_dir / ".seaweedfs/security.toml").read_text())
    signing = security["jwt"]
    path = f"/buckets/{uri.removeprefix('s3://')}"
    token = _token(signing["filer_signing"]["read"]["key"], {})
    entry = json.loads(_call(store, store.ports.filer, "GET", f"{path}?metadata=true", token))
    (chunk,) = entry["chunks"]
    fid = chunk["file_id"]
    token = _token(signing["signing"]["key"], {"fid": fid})
    form = b'--x\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\n' + body + b"\r\n--x--\r\n"
    _call(store, store.ports.volume, "POST", f"/{fid}", token, form)


def _token(key: str, claims: dict[str, str]) -> str:
    return jwt.encode({"exp": int(time.time()) + 60, **claims}, key, algorithm="HS256")


def _call(
    store: EmbeddedObjectStore, port: int, method: str, path: str, token: str, body: bytes | None = None
) -> bytes:
    inner = store.config_dir / ".seaweedfs"
    context = ssl.create_default_context(cafile=str(inner / "ca.pem"))
    context.load_cert_chain(inner / "inner.pem", inner / "inner.key")
    connection = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=10)
    headers = {"Authorization": f"BEARER {token}", "Content-Type": "multipart/form-data; boundary=x"}
    connection.request(method, path, body, headers)
    answer = connection.getresponse()
    content = answer.read()
    assert answer.status < 300, content
    return content


def _parquet(path: Path, number: int) -> bytes:
    pq.write_table(pa.table({"block_number": pa.array([number] * 1000, pa.int64())}), path, compression=None)
    return path.read_bytes()


@pytest.fixture
def forged(running: RunningStore, tmp_path: Path) -> ObjectMeta:
    """The pin of a file as it was committed; the store has another one, whole and readable, in its place."""
    store = running[0]
    own, other = _parquet(tmp_path / "own", 1), _parquet(tmp_path / "other", 2)
    assert len(own) == len(other)
    assert own != other
    uri = f"s3://bucket-one/datasets/{uuid4()}/x.parquet"
    meta = S3Transfer(store.access(), ASKING).upload(tmp_path / "own", uri)
    _forge(store, uri, other)
    objects = S3ObjectStore(store.access())
    assert asyncio.run(objects.head(uri)) == ObjectMeta(uri, meta.size, meta.etag), "nobody could tell by these"
    assert asyncio.run(objects.get(uri, if_match=meta.etag)) == other
    return meta


def test_spark_refuses_it(running: RunningStore, forged: ObjectMeta, tmp_path: Path) -> None:
    cache = FileCache(tmp_path / "cache", S3Transfer(running[0].access(), ASKING))
    for _ in range(2):  # what was refused is not kept either
        with pytest.raises(ContentMismatchError):
            cache.link([forged], tmp_path / "task")
    assert [*(tmp_path / "cache").iterdir(), *(tmp_path / "task").iterdir()] == []


def test_an_executor_refuses_it(running: RunningStore, forged: ObjectMeta, tmp_path: Path) -> None:
    first = (forged, pq.read_schema(tmp_path / "own"))
    fetch = _fetch_function(S3Transfer(running[0].access(), ASKING), "blocks", first, Selection(), None)
    row = {"uri": forged.uri, "size": forged.size, "etag": forged.etag, "sha256": forged.sha256}
    with pytest.raises(ContentMismatchError):
        list(fetch(iter([pa.RecordBatch.from_pylist([row])])))


def test_trace_read_refuses_it(running: RunningStore, forged: ObjectMeta) -> None:
    file = DataFile(uri=forged.uri, size=forged.size, etag=forged.etag, sha256=forged.sha256)
    with pytest.raises(TraceError) as refusal:
        list(read_files(running[0].access(), [file], None))
    assert refusal.value.code == "content_mismatch"
    assert "s3://" not in str(refusal.value)


def test_a_sink_refuses_it(running: RunningStore) -> None:
    store = running[0]
    objects = S3ObjectStore(store.access())
    own, other = b'{"key":1}\n', b'{"key":2}\n'
    uri = f"s3://bucket-one/buffers/{uuid4()}.jsonl"
    meta = asyncio.run(objects.put(uri, own))
    _forge(store, uri, other)
    data = asyncio.run(objects.get(uri, if_match=meta.etag))
    assert data == other
    batch = BufferBatch(
        publish_id=uuid4(),
        publish_seq=1,
        org_id=uuid4(),
        dataset_uuid=uuid4(),
        dataset_version=uuid4(),
        batch_uri=uri,
        size_bytes=len(own),
        etag=meta.etag,
        sha256=hashlib.sha256(own).hexdigest(),
        content_type="application/jsonl",
        producer=Producer(task_id=uuid4(), attempt=1),
    )
    schema = Schema(columns=(Column(name="key", type=ColumnType.INT64, nullable=False),), unique=("key",))
    with pytest.raises(BadBatchError) as refusal:
        parse_batch(BatchReader(schema), batch, data)
    assert refusal.value.code == "content_mismatch"
