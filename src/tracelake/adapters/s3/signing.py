"""Addresses that open one object, for one thing and for a while, to whoever has them: no key is needed to use one.

AWS Signature Version 4, in the query. An address that creates an object has the condition signed with it: without
`If-None-Match: *` the store refuses the call, and with it the store replaces nothing. Where the machine's own identity
is used, only the client knows its keys, and it signs no conditions: whoever has such an address may write there again.
"""

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Literal
from urllib.parse import quote, urlsplit

import obstore

from tracelake.adapters.s3.access import S3Access, StorePatience
from tracelake.adapters.s3.object_store import open_bucket
from tracelake.model.prefixes import parse_uri

_ALGORITHM = "AWS4-HMAC-SHA256"
_CREATE = {"if-none-match": "*"}


def sign_urls(
    access: S3Access, patience: StorePatience, uris: Sequence[str], *, create: bool, seconds: int
) -> list[str]:
    """One for each object, in their order: to read it, or to create it."""
    places = [_parse(uri) for uri in uris]
    if access.access_key is None or access.secret_key is None:
        method: Literal["PUT", "GET"] = "PUT" if create else "GET"
        buckets = {bucket: open_bucket(access, bucket, patience) for bucket, _ in places}
        return [obstore.sign(buckets[bucket], method, key, timedelta(seconds=seconds)) for bucket, key in places]
    signer = _Signer(access, access.access_key, access.secret_key, seconds)
    return [
        signer.sign("PUT" if create else "GET", f"/{bucket}/{key}", _CREATE if create else {}) for bucket, key in places
    ]


class S3Urls:
    """The ObjectUrls port. Where the machine's own identity is used, no condition is signed: the size of an upload is
    then checked when it is finalized."""

    def __init__(self, access: S3Access, patience: StorePatience) -> None:
        self._access = access
        self._patience = patience

    def sign_upload(self, uri: str, *, size: int, seconds: int) -> tuple[str, Mapping[str, str]]:
        access, (bucket, key) = self._access, _parse(uri)
        headers = {**_CREATE, "content-length": str(size)}
        if access.access_key is None or access.secret_key is None:
            return sign_urls(access, self._patience, [uri], create=True, seconds=seconds)[0], headers
        signer = _Signer(access, access.access_key, access.secret_key, seconds)
        return signer.sign("PUT", f"/{bucket}/{key}", headers), headers

    def sign_replace(self, uri: str, *, seconds: int) -> str:
        access, (bucket, key) = self._access, _parse(uri)
        if access.access_key is None or access.secret_key is None:
            return sign_urls(access, self._patience, [uri], create=True, seconds=seconds)[0]
        return _Signer(access, access.access_key, access.secret_key, seconds).sign("PUT", f"/{bucket}/{key}", {})

    def sign_create(self, uri: str, *, seconds: int) -> str:
        return sign_urls(self._access, self._patience, [uri], create=True, seconds=seconds)[0]

    def sign_download(self, uri: str, *, seconds: int) -> str:
        return sign_urls(self._access, self._patience, [uri], create=False, seconds=seconds)[0]


class _Signer:
    """All that does not depend on the object is computed once."""

    def __init__(self, access: S3Access, access_key: str, secret_key: str, seconds: int) -> None:
        self._endpoint = (access.endpoint or f"https://s3.{access.region}.amazonaws.com").rstrip("/")
        self._host = urlsplit(self._endpoint).netloc
        self._time = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        scope = (self._time[:8], access.region, "s3", "aws4_request")
        self._scope = "/".join(scope)
        self._key = b"AWS4" + secret_key.encode()
        for part in scope:
            self._key = hmac.digest(self._key, part.encode(), "sha256")
        self._query = {
            "X-Amz-Algorithm": _ALGORITHM,
            "X-Amz-Credential": f"{access_key}/{self._scope}",
            "X-Amz-Date": self._time,
            "X-Amz-Expires": str(seconds),
        }
        if access.session_token is not None:
            self._query["X-Amz-Security-Token"] = access.session_token

    def sign(self, method: str, path: str, headers: dict[str, str]) -> str:
        """`headers`: those that the call must have, with names in small letters."""
        headers = {"host": self._host, **headers}
        names = ";".join(sorted(headers))
        query = "&".join(
            f"{name}={quote(value, safe='')}"
            for name, value in sorted({**self._query, "X-Amz-SignedHeaders": names}.items())
        )
        path = quote(path, safe="/-_.~")
        lines = [f"{name}:{headers[name]}" for name in sorted(headers)]
        request = "\n".join([method, path, query, *lines, "", names, "UNSIGNED-PAYLOAD"])
        digest = hashlib.sha256(request.encode()).hexdigest()
        text = "\n".join([_ALGORITHM, self._time, self._scope, digest])
        signature = hmac.new(self._key, text.encode(), "sha256").hexdigest()
        return f"{self._endpoint}{path}?{query}&X-Amz-Signature={signature}"


def _parse(uri: str) -> tuple[str, str]:
    parsed = parse_uri(uri)
    if parsed is None or uri.endswith("/"):
        raise ValueError("not a canonical object address")
    return parsed
