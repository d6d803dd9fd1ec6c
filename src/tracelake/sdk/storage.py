"""Scoped storage: whole objects of the object store, with credentials of the attempt and AWS Signature Version 4."""

import hashlib
import hmac
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlsplit

from tracelake.sdk.errors import ArgumentError, CallError
from tracelake.sdk.http import HttpAnswer, HttpExchange, exchange_patiently

_ALGORITHM = "AWS4-HMAC-SHA256"
_RENEW_SECONDS = 300
"""Credentials with less life than this are not used any more."""


class ScopedStorage:
    def __init__(
        self,
        ask: Callable[[str], Any],
        exchange: HttpExchange,
        endpoint: str | None,
        clock: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        """`ask` calls /v1/task/credentials for one location; `endpoint` takes the place of the one in its reply."""
        self._ask = ask
        self._exchange = exchange
        self._endpoint = endpoint
        self._clock = clock
        self._sleep = sleep
        self._sets: list[dict[str, Any]] = []

    def get(self, location: str) -> bytes:
        return self._call("GET", location, b"").body

    def put(self, location: str, data: bytes) -> None:
        self._call("PUT", location, data)

    def _call(self, method: str, location: str, body: bytes) -> HttpAnswer:
        bucket, key = split_location(location)
        keys = self._find(method, location)
        path = f"/{bucket}/{quote(key, safe='/-_.~')}"
        url = f"{keys['endpoint'].rstrip('/')}{path}"
        host = urlsplit(url).netloc

        def sign() -> dict[str, str]:
            return self._sign(method, host, path, body, keys)

        answer = exchange_patiently(self._exchange, sign, method, url, body, self._sleep)
        if answer.status not in (200, 204):
            code = "object_not_found" if answer.status == 404 else "object_store_refused"
            raise CallError(answer.status, code, f"{method} of an object was answered with status {answer.status}.")
        return answer

    def _find(self, method: str, location: str) -> dict[str, Any]:
        """The set of credentials whose prefix contains the location. Prefixes are directories and end in a slash."""
        limit = self._clock() + _RENEW_SECONDS
        self._sets = [keys for keys in self._sets if keys["end"] > limit]
        if not any(_opens(keys, method, location) for keys in self._sets):
            reply = self._ask(location)
            region = reply["region"]
            endpoint = self._endpoint or reply.get("endpoint") or f"https://s3.{region}.amazonaws.com"
            for keys in reply["credentials"]:
                end = datetime.fromisoformat(keys["expires_at"].replace("Z", "+00:00")).timestamp()
                self._sets.append({**keys, "end": end, "region": region, "endpoint": endpoint})
        for keys in self._sets:
            if _opens(keys, method, location):
                return keys
        raise CallError(403, "prefix_forbidden", "The task may not write this location.")

    def _sign(self, method: str, host: str, path: str, body: bytes, keys: Mapping[str, Any]) -> dict[str, str]:
        moment = datetime.fromtimestamp(self._clock(), UTC).strftime("%Y%m%dT%H%M%SZ")
        scope = (moment[:8], keys["region"], "s3", "aws4_request")
        headers = {
            "host": host,
            "x-amz-content-sha256": hashlib.sha256(body).hexdigest(),
            "x-amz-date": moment,
            "x-amz-security-token": keys["session_token"],
        }
        names = ";".join(sorted(headers))
        lines = [f"{name}:{headers[name]}" for name in sorted(headers)]
        request = "\n".join([method, path, "", *lines, "", names, headers["x-amz-content-sha256"]])
        text = "\n".join([_ALGORITHM, moment, "/".join(scope), hashlib.sha256(request.encode()).hexdigest()])
        key = f"AWS4{keys['secret_access_key']}".encode()
        for part in scope:
            key = hmac.digest(key, part.encode(), "sha256")
        signature = hmac.new(key, text.encode(), "sha256").hexdigest()
        credential = f"{keys['access_key_id']}/{'/'.join(scope)}"
        headers["authorization"] = f"{_ALGORITHM} Credential={credential}, SignedHeaders={names}, Signature={signature}"
        return headers


def _opens(keys: Mapping[str, Any], method: str, location: str) -> bool:
    prefixes = keys["write_prefixes"] if method == "PUT" else [*keys["write_prefixes"], *keys["read_prefixes"]]
    return any(location.startswith(prefix) for prefix in prefixes)


def split_location(location: str) -> tuple[str, str]:
    """Bucket and key. The Dispatcher and the store check the rest."""
    bucket, _, key = location.removeprefix("s3://").partition("/")
    if not location.startswith("s3://") or not bucket or {"", ".", ".."} & {*key.split("/")}:
        raise ArgumentError(f"expected an address like s3://bucket/key, received {location!r}")
    return bucket, key
