"""The only way out of a sandbox: an HTTP proxy that belongs to one attempt.

It forwards calls of this attempt to the task listener and to the Query Service, and requests for objects below the
attempt's prefixes. Each request is taken apart, checked, and written anew from its parts; a header that is not listed
stays behind. It has no credential of its own: what the sandbox does not send is not there.
"""

import re
from base64 import urlsafe_b64decode
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

import msgspec

from tracelake.runner.exchange import SandboxReply, SandboxRequest, refuse
from tracelake.runner.inside import HOST, PORTS
from tracelake.runner.object_paths import ObjectGrant
from tracelake.runner.upstream import EgressTarget, UpstreamError, UpstreamReply
from tracelake.wire.contract import HEADERS, Principal
from tracelake.wire.query import SUMMARY_HEADER

_CAPABILITY = HEADERS[Principal.TASK]
_CALL = re.compile(r"/v1/task/[a-z][a-z-]{0,40}")
_QUERY, _BATCH = "/v1/task/query", "/v1/task/batch"
_TASK_SECONDS, _QUERY_SECONDS, _OBJECT_SECONDS = 60.0, 330.0, 600.0
_OWN = tuple(f"{host}:{PORTS[1]}" for host in (HOST, "localhost"))
_SCHEME, _AUTHORITY_END = "http://", re.compile(r"[/?#]")
_TASK_REPLY = ("content-type", "retry-after", SUMMARY_HEADER)
_TO_STORE = re.compile(
    r"authorization|accept|accept-encoding|amz-sdk-[a-z-]+|content-encoding|content-md5|content-type|if-(none-)?match"
    r"|if-(un)?modified-since|range|user-agent|x-amz-(?!copy-source)[a-z0-9-]+"
)
_FROM_STORE = re.compile(r"accept-ranges|content-(encoding|range|type)|etag|last-modified|x-amz-[a-z0-9-]+")


class _TokenSubject(msgspec.Struct, frozen=True):
    task_id: UUID
    attempt: int


class _Fence(msgspec.Struct, frozen=True):
    task_id: UUID
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Destinations:
    """Where requests go. All of it is known before anything runs."""

    tasks: EgressTarget
    queries: EgressTarget | None
    objects: EgressTarget | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EgressProxy:
    task_id: UUID
    attempt: int
    grant: ObjectGrant
    destinations: Destinations
    count_refusal: Callable[[str], None]

    async def handle(self, request: SandboxRequest) -> SandboxReply:
        try:
            authority, path, query = self._take_apart(request)
            if path.startswith(("/v1/", "/internal/")):
                return await self._call(request, path, query)
            return await self._object(request, authority, path, query)
        except _Refusal as refusal:
            self.count_refusal(refusal.reason)
            return refuse(403, "egress_refused", f"this attempt may not send the request: {refusal.reason}")
        except UpstreamError:
            return refuse(503, "store_unavailable", "no reply; the same call can be repeated")

    def _take_apart(self, request: SandboxRequest) -> tuple[str, str, str]:
        """The authority, the path and the query."""
        target, host = request.target, request.header("host")
        if target.startswith(_SCHEME):  # as clients ask a proxy
            authority = _AUTHORITY_END.split(target.removeprefix(_SCHEME), maxsplit=1)[0]
            if host != authority:
                raise _Refusal("host")
            target = target[len(_SCHEME) + len(authority) :] or "/"
        objects = self.destinations.objects
        if host not in _OWN and (objects is None or host != objects.authority):
            raise _Refusal("host")
        if not target.startswith("/") or target.startswith("//") or "#" in target:
            raise _Refusal("path")
        path, _, query = target.partition("?")
        assert host is not None
        return host, path, query

    async def _call(self, request: SandboxRequest, path: str, query: str) -> SandboxReply:
        if query or not _CALL.fullmatch(path) or path == _BATCH:
            raise _Refusal("path")
        if request.method != "POST":
            raise _Refusal("method")
        token = request.header(_CAPABILITY)
        if token is None or self._is_foreign(_decode_subject(token)):
            raise _Refusal("token")
        try:
            fence = msgspec.json.decode(request.body, type=_Fence)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise _Refusal("body") from None
        if self._is_foreign(fence):
            raise _Refusal("task")
        upstream = self.destinations.queries if path == _QUERY else self.destinations.tasks
        if upstream is None:
            raise UpstreamError("no Query Service")
        headers = [("host", upstream.authority), ("content-type", "application/json"), (_CAPABILITY, token)]
        seconds = _QUERY_SECONDS if path == _QUERY else _TASK_SECONDS
        reply = await upstream.request("POST", path, headers, request.body, seconds=seconds)
        return _forward(reply, [item for item in reply.headers if item[0] in _TASK_REPLY])

    async def _object(self, request: SandboxRequest, authority: str, path: str, query: str) -> SandboxReply:
        objects = self.destinations.objects
        if objects is None:
            raise _Refusal("path")
        problem = self.grant.problem(request.method, path, query)
        if problem is not None:
            raise _Refusal(problem)
        if any(name.startswith("x-amz-copy-source") for name, _ in request.headers):
            raise _Refusal("copy")
        headers = [("host", authority)]  # a part of what is signed
        headers += [(name, value) for name, value in request.headers if _TO_STORE.fullmatch(name)]
        target = f"{path}?{query}" if query else path
        reply = await objects.request(request.method, target, headers, request.body, seconds=_OBJECT_SECONDS)
        return _forward(reply, [item for item in reply.headers if _FROM_STORE.fullmatch(item[0])])

    def _is_foreign(self, subject: "_TokenSubject | _Fence") -> bool:
        return (subject.task_id, subject.attempt) != (self.task_id, self.attempt)


class _Refusal(Exception):  # noqa: N818 - a verdict
    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def _decode_subject(token: str) -> _TokenSubject:
    """Whose token it claims to be. The services check the signature; here a foreign one is not let out."""
    try:
        payload = token.split(".")[1]
        return msgspec.json.decode(urlsafe_b64decode(payload + "=" * (-len(payload) % 4)), type=_TokenSubject)
    except (IndexError, ValueError, msgspec.MsgspecError, RecursionError):
        raise _Refusal("token") from None


def _forward(reply: UpstreamReply, headers: list[tuple[str, str]]) -> SandboxReply:
    return SandboxReply(status=reply.status, headers=headers, length=reply.length, stream=reply.body)
