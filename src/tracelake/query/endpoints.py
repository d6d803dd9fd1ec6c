"""The endpoints of both listeners. No decision is made here."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec

from tracelake import __version__
from tracelake.http.router import Endpoint, HttpRequest, RawReply, answer
from tracelake.query.batch import BatchQueryFront
from tracelake.query.metrics import QueryMetrics
from tracelake.query.result_pieces import ResultPieces
from tracelake.query.service import QueryAnswer, QueryService
from tracelake.wire import platform, routes
from tracelake.wire.contract import JSON
from tracelake.wire.query import (
    MEDIA_TYPES,
    SUMMARY_HEADER,
    CancelQueryReply,
    QueryReply,
    QueryRequest,
    TaskQueryRequest,
)

_ENCODER = msgspec.json.Encoder()


@dataclass(frozen=True, slots=True)
class QueryEndpoints:
    service: QueryService
    batch: BatchQueryFront
    metrics: QueryMetrics
    check: Callable[[], Awaitable[dict[str, str]]]
    """Readiness by part: `ok` or `unavailable`."""
    pieces: ResultPieces | None = None
    """None: results are read by their addresses alone."""

    def endpoints(self) -> list[Endpoint]:
        service = self.service
        return [
            answer(routes.QUERY, self._query, ends_with_caller=True),
            answer(routes.QUERY_AS_TASK, self._query_as_task, ends_with_caller=True),
            answer(routes.SHOW_CATALOG, lambda r: service.catalog(r.user_claims), ends_with_caller=True),
            answer(routes.LIST_OWN_QUERIES, lambda r: self.batch.list_own(r.user_claims, r["limit"], r["cursor"])),
            answer(routes.SHOW_QUERY, lambda r: self.batch.show(r.user_claims, r["query_id"])),
            answer(routes.CANCEL_QUERY, self._cancel),
            *([] if self.pieces is None else _read_pieces(self.pieces)),
            answer(routes.HEALTHZ, self._healthz),
            answer(routes.READYZ, self._readyz),
            answer(routes.METRICS, self._metrics),
        ]

    async def _query(self, request: HttpRequest[QueryRequest]) -> QueryReply | RawReply:
        if request.body.mode == "batch":
            accepted = await self.batch.submit(request.user_claims, request.body)
            return RawReply(_ENCODER.encode(accepted), JSON, 202)
        return _reply(await self.service.query(request.user_claims, request.body), request.body.format)

    async def _cancel(self, request: HttpRequest[None]) -> CancelQueryReply:
        """An interactive query of the caller, if one of that id runs in this process; otherwise a batch query."""
        user, query_id = request.user_claims, request["query_id"]
        if self.service.runs(user, query_id):
            return await self.service.cancel(user, query_id)
        return await self.batch.cancel(user, query_id)

    async def _query_as_task(self, request: HttpRequest[TaskQueryRequest]) -> QueryReply | RawReply:
        return _reply(await self.service.query_as_task(request.task_claims, request.body), request.body.format)

    async def _healthz(self, _request: HttpRequest[None]) -> RawReply:
        return _health({})

    async def _readyz(self, _request: HttpRequest[None]) -> RawReply:
        return _health(await self.check())

    async def _metrics(self, _request: HttpRequest[None]) -> bytes:
        return self.metrics.render()


def _read_pieces(pieces: ResultPieces) -> list[Endpoint]:
    return [
        answer(routes.READ_RESULT, lambda r: pieces.read_batch(r.user_claims, r["query_id"], r["file"], r["offset"])),
        answer(routes.READ_EXPORT, lambda r: pieces.read_export(r.user_claims, r["export_id"], r["offset"])),
    ]


def _reply(answer: QueryAnswer, result_format: str) -> QueryReply | RawReply:
    if answer.body is None:
        return answer.reply
    summary = _to_ascii(_ENCODER.encode(answer.reply).decode())
    return RawReply(answer.body, MEDIA_TYPES[result_format], headers=((SUMMARY_HEADER.encode(), summary),))


def _to_ascii(text: str) -> bytes:
    """JSON in visible ASCII characters: names of columns may have any others, and a header may not."""
    units = text.encode("utf-16-be", "surrogatepass")
    codes = [int.from_bytes(units[index : index + 2], "big") for index in range(0, len(units), 2)]
    return "".join(chr(code) if 32 <= code < 127 else f"\\u{code:04x}" for code in codes).encode()


def _health(checks: dict[str, str]) -> RawReply:
    healthy = all(state == "ok" for state in checks.values())
    body = platform.Health(status="ok" if healthy else "unavailable", checks=checks, version=__version__)
    return RawReply(_ENCODER.encode(body), JSON, 200 if healthy else 503)
