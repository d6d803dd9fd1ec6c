"""Canonical addresses in the object store: the one place that decides what an object address or a prefix is.

The canonical form of a prefix is `s3://bucket/prefix/`. Anything else is rejected, never repaired: two spellings of one
place are how a check and the thing it guards come to disagree. A prefix is a directory, so `a/b/` contains `a/b/c` and
never `a/bc`.

Text that is canonical can be used as it is: in the pattern of a policy it has no wildcard and no variable, in the path
of a request no escape and no dot segment, and no store spells it in another way.
"""

import re
import unicodedata
from dataclasses import dataclass

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_MAX_KEY_BYTES = 1024  # as in S3
_FORBIDDEN = re.compile(r"[*?\\%\x00-\x1f\x7f-\x9f]")
_VARIABLE = "${"
"""Begins a variable in the patterns of IAM policies, which would stand for other text than its own."""


def parse_uri(uri: str) -> tuple[str, str] | None:
    """`(bucket, key)` of a canonical `s3://bucket/key` address, or None."""
    if not uri.startswith("s3://") or _FORBIDDEN.search(uri) or not unicodedata.is_normalized("NFC", uri):
        return None
    bucket, slash, key = uri[5:].partition("/")
    if not slash or not _BUCKET.fullmatch(bucket) or ".." in bucket:
        return None
    try:
        if len(key.encode()) > _MAX_KEY_BYTES:
            return None
    except UnicodeEncodeError:
        return None
    segments = key.removesuffix("/").split("/")
    if any(segment in ("", ".", "..") for segment in segments):
        return None
    return bucket, key


def is_canonical_prefix(prefix: str) -> bool:
    return prefix.endswith("/") and _VARIABLE not in prefix and parse_uri(prefix) is not None


def lies_under(uri: str, prefix: str) -> bool:
    """Whether a canonical object address lies below a canonical prefix."""
    return uri.startswith(prefix) and not uri.endswith("/") and parse_uri(uri) is not None


@dataclass(frozen=True, slots=True, order=True)
class Prefix:
    """A canonical prefix. `parse` is the way to make one."""

    bucket: str
    key: str
    """Ends in a slash."""

    @classmethod
    def parse(cls, text: str) -> "Prefix":
        """Raises ValueError for anything that is not canonical."""
        place = parse_uri(text) if is_canonical_prefix(text) else None
        if place is None:
            raise ValueError("not a canonical prefix: expected s3://bucket/prefix/")
        return cls(*place)

    @property
    def uri(self) -> str:
        return f"s3://{self.bucket}/{self.key}"

    def contains(self, uri: str) -> bool:
        """Whether an address, of an object or of a prefix, is canonical and is this prefix or lies below it."""
        return uri.startswith(self.uri) and parse_uri(uri) is not None
