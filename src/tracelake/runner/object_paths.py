"""Which requests to the object store an attempt may send: those for objects below the prefixes of its token.

The store checks signatures and policies by itself. This is the second lock: it also holds for credentials that were not
made for this attempt.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote_to_bytes

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_QUERY = re.compile(r"[A-Za-z0-9._~%&=/+:,-]{0,8000}")
_LISTING = frozenset(
    ("list-type", "prefix", "delimiter", "max-keys", "continuation-token", "start-after", "encoding-type")
)
_OBJECT = frozenset(("uploads", "uploadId", "partNumber", "max-parts", "part-number-marker", "x-id"))
_SIGNED = re.compile(r"X-Amz-[A-Za-z0-9-]{1,40}|response-[a-z-]{1,40}")
_METHODS = frozenset(("GET", "HEAD", "PUT", "POST", "DELETE"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectGrant:
    """Prefixes of the form `s3://bucket/prefix/`."""

    read: Sequence[str]
    write: Sequence[str]
    """May be read as well."""

    def problem(self, method: str, path: str, query: str) -> str | None:
        """Why the request is not allowed; None: it is."""
        if method not in _METHODS:
            return "method"
        bucket, _, raw_key = path.removeprefix("/").partition("/")
        if not path.startswith("/") or not _BUCKET.fullmatch(bucket):
            return "path"
        if not _QUERY.fullmatch(query) or _ESCAPE.search(query):
            return "parameter"
        parameters = parse_qsl(query, keep_blank_values=True)
        names = [name for name, _ in parameters]
        if len(set(names)) != len(names):
            return "parameter"
        own = [name for name in names if not _SIGNED.fullmatch(name)]
        if not raw_key:
            return self._listing_problem(method, bucket, own, dict(parameters).get("prefix", ""))
        key = _decode_key(raw_key)
        if key is None:
            return "path"
        if not set(own) <= _OBJECT:
            return "parameter"
        if method == "DELETE" and "uploadId" not in own:
            return "method"  # a task may give up an upload; objects stay
        if method == "POST" and not {"uploads", "uploadId"} & set(own):
            return "method"
        prefixes = (*self.read, *self.write) if method in ("GET", "HEAD") else self.write
        return None if _is_below(f"s3://{bucket}/{key}", prefixes) else "prefix"

    def _listing_problem(self, method: str, bucket: str, names: Sequence[str], prefix: str) -> str | None:
        if method not in ("GET", "HEAD"):
            return "method"
        if not set(names) <= _LISTING or "prefix" not in names:
            return "parameter"
        if _decode_key(prefix.replace("%", "%25").rstrip("/") or "/") is None:
            return "path"
        return None if _is_below(f"s3://{bucket}/{prefix}", (*self.read, *self.write)) else "prefix"


def _decode_key(raw: str) -> str | None:
    """The key that the store will see, if there is no doubt about it."""
    if _ESCAPE.search(raw):
        return None
    try:
        key = unquote_to_bytes(raw).decode("utf-8")
    except UnicodeDecodeError:
        return None
    segments = key.split("/")
    unclear = any(segment in ("", ".", "..") for segment in segments) or any(
        character in "\\%*?#" or ord(character) < 32 or ord(character) == 127 for character in key
    )
    return None if unclear else key


def _is_below(uri: str, prefixes: Sequence[str]) -> bool:
    return any(prefix.endswith("/") and uri.startswith(prefix) for prefix in prefixes)
