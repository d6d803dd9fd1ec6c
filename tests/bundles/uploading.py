"""Uploads of bundles against a Dispatcher of a test, whose object store is a directory."""

import hashlib
from typing import Any

from tests.api.support import User
from tests.bundles.archives import RawEntry, make_zip
from tests.support.dispatcher import Reply
from tracelake.dispatcher.bundles.rows import staging_uri

ARCHIVE = make_zip(RawEntry(name=b"trace.py"), RawEntry(name=b"lib/data.txt", content=b"data"))


def bundle_request(archive: bytes = ARCHIVE, **changes: Any) -> dict[str, Any]:
    digest = hashlib.sha256(archive).hexdigest()
    return {"sha256": digest, "language": "python", "entrypoint": "trace.handler"} | changes


def stage(user: User, archive: bytes = ARCHIVE, *, size: int | None = None) -> str:
    """Open an upload and do what whoever has its address does."""
    reply = user.call("POST", "/v1/udf/bundles", {"size_bytes": size or len(archive)})
    assert reply.status == 200, reply
    bundle_id: str = reply.body["bundle_id"]
    send(user, bundle_id, archive)
    return bundle_id


def send(user: User, bundle_id: str, archive: bytes) -> None:
    harness = user.harness
    (row,) = harness.sql("SELECT org_id FROM orgs WHERE name = $1", user.org)
    uri = staging_uri(harness.config.bundle_bucket, row["org_id"], bundle_id)  # type: ignore[arg-type]
    harness.run(harness.objects.put(uri, archive))


def finalize(user: User, bundle_id: str, archive: bytes = ARCHIVE, **changes: Any) -> Reply:
    return user.call("POST", f"/v1/udf/bundles/{bundle_id}/finalize", bundle_request(archive, **changes))


def push(user: User, archive: bytes = ARCHIVE, **changes: Any) -> str:
    """A bundle that is ready."""
    bundle_id = stage(user, archive)
    reply = finalize(user, bundle_id, archive, **changes)
    assert (reply.status, reply.body.get("status")) == (200, "ready"), reply
    return bundle_id
