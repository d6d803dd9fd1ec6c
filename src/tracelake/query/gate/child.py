"""A process that checks queries for its parent: `python -m tracelake.query.gate.child SECONDS MEMORY_BYTES NICENESS`.

Parsing and binding a hostile text may take long or crash; `limited_processes` has the limits. Messages in both
directions are MessagePack. The process has no file, no credential and no row of any dataset: only names and types.
"""

import sys
from collections.abc import Callable
from typing import Any

import msgspec

from tracelake.errors import TraceError
from tracelake.limited_processes.child import limit_and_serve
from tracelake.query.gate.batch import CheckedBatchQuery, check_batch_query
from tracelake.query.gate.check import CheckedQuery, QueryGate
from tracelake.query.gate.parameters import QueryParameter


class CheckRequest(msgspec.Struct, frozen=True, tag="check"):
    sql: str
    parameters: dict[str, QueryParameter]
    relations: dict[str, dict[str, str]]


class BatchCheckRequest(msgspec.Struct, frozen=True, tag="check_batch"):
    sql: str
    parameters: dict[str, QueryParameter]
    relations: list[str]


class CheckedReply(msgspec.Struct, tag="checked", frozen=True):
    query: CheckedQuery


class RefusedReply(msgspec.Struct, tag="refused", frozen=True):
    """The parts of a TraceError."""

    code: str
    message: str
    details: dict[str, Any]


class CheckedBatchReply(msgspec.Struct, tag="checked_batch", frozen=True):
    query: CheckedBatchQuery


REPLIES = msgspec.msgpack.Decoder(CheckedReply | CheckedBatchReply | RefusedReply)
_REQUESTS = msgspec.msgpack.Decoder(CheckRequest | BatchCheckRequest)


def prepare() -> Callable[[bytes], bytes]:
    gate = QueryGate()
    gate.check("SELECT 1", {}, {})  # loads what the first query would wait for

    def answer(body: bytes) -> bytes:
        request = _REQUESTS.decode(body)
        try:
            if isinstance(request, BatchCheckRequest):
                query = check_batch_query(request.sql, request.parameters, request.relations)
                return msgspec.msgpack.encode(CheckedBatchReply(query))
            return msgspec.msgpack.encode(CheckedReply(gate.check(request.sql, request.parameters, request.relations)))
        except TraceError as error:
            return msgspec.msgpack.encode(RefusedReply(error.code, error.message, error.details))

    return answer


if __name__ == "__main__":
    limit_and_serve(sys.argv[1:], prepare)
