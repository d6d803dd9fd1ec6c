"""The requests of S3 that functions send, answered from memory: whole objects, ranges, listings, uploads in parts.

The way out has checked that the address lies below a prefix of the task. Here the keys of the request must be those
that the function was given; signatures are not computed again.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote
from xml.sax.saxutils import escape

from tracelake.model.ids import new_id
from tracelake.runner.upstream import UpstreamReply
from tracelake.udf_test.local_upstream import NoteRefusal, RefusedRequest, yield_once
from tracelake.udf_test.memory_objects import MemoryFullError, MemoryObjects, describe
from tracelake.wire.task_calls import ScopedCredentials

_RANGE = re.compile(r"bytes=(\d+)-(\d*)")
_MOST_KEYS = 1000
_MOST_UPLOADS = 100
_TIME = "2000-01-01T00:00:00.000Z"
_REASONS = {
    "AccessDenied": "the request is not signed with the keys of /v1/task/credentials",
    "NoSuchKey": "there is no such object",
    "NoSuchUpload": "there is no such upload in parts",
    "PreconditionFailed": "the object exists already",
    "InvalidRange": "the object is shorter than the range",
    "InvalidRequest": "the body is not what its headers say",
    "EntityTooLarge": "the test keeps at most 256 MiB of objects in memory: write less",
}
_STATUS = {
    "AccessDenied": 403,
    "NoSuchKey": 404,
    "NoSuchUpload": 404,
    "PreconditionFailed": 412,
    "InvalidRange": 416,
    "InvalidRequest": 400,
    "EntityTooLarge": 413,
}


class _StoreRefusal(Exception):  # noqa: N818 - a verdict
    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


@dataclass(eq=False, kw_only=True)
class ObjectUpstream:
    """The object store of one run."""

    objects: MemoryObjects
    keys: ScopedCredentials
    note_refusal: NoteRefusal
    authority: str = "objects"
    _uploads: dict[str, tuple[str, dict[int, bytes]]] = field(default_factory=dict)

    async def request(
        self, method: str, target: str, headers: Sequence[tuple[str, str]], body: bytes, *, seconds: float
    ) -> UpstreamReply:
        del seconds  # nothing waits
        path, _, query = target.partition("?")
        parameters = dict(parse_qsl(query, keep_blank_values=True))
        try:
            self._check_keys(dict(headers), parameters)
            return self._answer(method, "s3:/" + unquote(path), parameters, dict(headers), body)
        except MemoryFullError:
            refusal = _StoreRefusal("EntityTooLarge")
        except _StoreRefusal as error:
            refusal = error
        status = _STATUS[refusal.code]
        if status != 404:
            reason = _REASONS[refusal.code]
            self.note_refusal(
                RefusedRequest(method=method, target=path, status=status, code=refusal.code, message=reason)
            )
        text = f"<Error><Code>{refusal.code}</Code><Message>{_REASONS[refusal.code]}</Message></Error>"
        return _reply(status, b"" if method == "HEAD" else _xml(text), [("content-type", "application/xml")])

    def _check_keys(self, headers: Mapping[str, str], parameters: Mapping[str, str]) -> None:
        signature = headers.get("authorization", "") or f"Credential={parameters.get('X-Amz-Credential', '')}"
        token = headers.get("x-amz-security-token") or parameters.get("X-Amz-Security-Token")
        if f"Credential={self.keys.access_key_id}/" not in signature or token != self.keys.session_token:
            raise _StoreRefusal("AccessDenied")

    def _answer(
        self, method: str, uri: str, parameters: Mapping[str, str], headers: Mapping[str, str], body: bytes
    ) -> UpstreamReply:
        upload = parameters.get("uploadId")
        match method:
            case "GET" | "HEAD" if "prefix" in parameters and uri.count("/") <= 3:
                return self._list(uri.rstrip("/"), parameters)
            case "GET" | "HEAD":
                return self._get(method, uri, headers)
            case "PUT" if upload is not None:
                return self._put_part(uri, upload, int(parameters.get("partNumber", "0")), _decode(headers, body))
            case "PUT":
                return self._put(uri, headers, _decode(headers, body))
            case "POST" if upload is not None:
                return self._finish(uri, upload)
            case "POST":
                return self._begin(uri)
        self._uploads.pop(upload or "", None)
        return _reply(204, b"")

    def _get(self, method: str, uri: str, headers: Mapping[str, str]) -> UpstreamReply:
        data = self.objects.get(uri)
        if data is None:
            raise _StoreRefusal("NoSuchKey")
        names = [("etag", describe(uri, data).etag), ("accept-ranges", "bytes")]
        names.append(("content-type", "application/octet-stream"))
        match = _RANGE.fullmatch(headers.get("range", ""))
        if match is None:
            return _reply(200, b"" if method == "HEAD" else data, names, len(data))
        start, end = int(match[1]), min(int(match[2] or len(data)), len(data) - 1)
        if start >= len(data) or end < start:
            raise _StoreRefusal("InvalidRange")
        names.append(("content-range", f"bytes {start}-{end}/{len(data)}"))
        part = data[start : end + 1]
        return _reply(206, b"" if method == "HEAD" else part, names, len(part))

    def _put(self, uri: str, headers: Mapping[str, str], data: bytes) -> UpstreamReply:
        if headers.get("if-none-match") == "*" and self.objects.get(uri) is not None:
            raise _StoreRefusal("PreconditionFailed")
        return _reply(200, b"", [("etag", self.objects.put(uri, data).etag)])

    def _list(self, bucket: str, parameters: Mapping[str, str]) -> UpstreamReply:
        prefix, delimiter = parameters["prefix"], parameters.get("delimiter", "")
        after = max(parameters.get("continuation-token", ""), parameters.get("start-after", ""))
        contents, common, last, more = list[str](), dict[str, None](), "", False
        for item in self.objects.list_below(f"{bucket}/{prefix}"):
            key = item.uri.removeprefix(f"{bucket}/")
            if key <= after:
                continue
            if len(contents) + len(common) == _MOST_KEYS:
                more = True
                break
            last = key
            head, slash, _ = key[len(prefix) :].partition(delimiter) if delimiter else (key, "", "")
            if slash:
                common[prefix + head + slash] = None
                continue
            contents.append(
                f"<Contents><Key>{escape(key)}</Key><LastModified>{_TIME}</LastModified>"
                f"<ETag>{escape(item.etag)}</ETag><Size>{item.size}</Size></Contents>"
            )
        parts = [*contents, *(f"<CommonPrefixes><Prefix>{escape(item)}</Prefix></CommonPrefixes>" for item in common)]
        if more:
            parts.append(f"<NextContinuationToken>{escape(last)}</NextContinuationToken>")
        text = f"<IsTruncated>{'true' if more else 'false'}</IsTruncated><KeyCount>{len(contents)}</KeyCount>"
        text = f"<ListBucketResult><Prefix>{escape(prefix)}</Prefix>{text}{''.join(parts)}</ListBucketResult>"
        return _reply(200, _xml(text), [("content-type", "application/xml")])

    # Uploads in parts

    def _begin(self, uri: str) -> UpstreamReply:
        if len(self._uploads) >= _MOST_UPLOADS:
            raise _StoreRefusal("EntityTooLarge")
        upload = new_id().hex
        self._uploads[upload] = (uri, {})
        text = f"<InitiateMultipartUploadResult><UploadId>{upload}</UploadId></InitiateMultipartUploadResult>"
        return _reply(200, _xml(text), [("content-type", "application/xml")])

    def _put_part(self, uri: str, upload: str, number: int, data: bytes) -> UpstreamReply:
        parts = self._find_parts(uri, upload)
        pending_bytes = sum(len(part) for _, pieces in self._uploads.values() for part in pieces.values())
        if not self.objects.has_room(pending_bytes + len(data)):
            raise _StoreRefusal("EntityTooLarge")
        parts[number] = data
        return _reply(200, b"", [("etag", describe(uri, data).etag)])

    def _finish(self, uri: str, upload: str) -> UpstreamReply:
        parts = self._find_parts(uri, upload)
        del self._uploads[upload]
        etag = self.objects.put(uri, b"".join(data for _, data in sorted(parts.items()))).etag
        text = f"<CompleteMultipartUploadResult><ETag>{escape(etag)}</ETag></CompleteMultipartUploadResult>"
        return _reply(200, _xml(text), [("content-type", "application/xml")])

    def _find_parts(self, uri: str, upload: str) -> dict[int, bytes]:
        owner, parts = self._uploads.get(upload, ("", {}))
        if owner != uri:
            raise _StoreRefusal("NoSuchUpload")
        return parts


def _decode(headers: Mapping[str, str], body: bytes) -> bytes:
    """The object of a body; tools of AWS send it in chunks with signatures or checksums between them."""
    if not headers.get("x-amz-content-sha256", "").startswith("STREAMING-"):
        return body
    data, rest = bytearray(), body
    while True:
        head, line_end, rest = rest.partition(b"\r\n")
        try:
            size = int(head.partition(b";")[0], 16)
        except ValueError:
            raise _StoreRefusal("InvalidRequest") from None
        if not line_end or size < 0 or len(rest) < size:
            raise _StoreRefusal("InvalidRequest")
        if size == 0:
            return bytes(data)
        data += rest[:size]
        rest = rest[size:].removeprefix(b"\r\n")


def _xml(text: str) -> bytes:
    return f'<?xml version="1.0" encoding="UTF-8"?>{text}'.encode()


def _reply(
    status: int, body: bytes, headers: Sequence[tuple[str, str]] = (), length: int | None = None
) -> UpstreamReply:
    size = len(body) if length is None else length
    return UpstreamReply(status=status, headers=tuple(headers), length=size, body=yield_once(body))
