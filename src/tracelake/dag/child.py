"""A process that reads documents for its parent: `python -m tracelake.dag.child SECONDS MEMORY_BYTES NICENESS`.

Documents are untrusted and expensive to read; `limited_processes` has the limits. Messages in both directions are
MessagePack: a request, then its reply.
"""

import sys
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from tracelake.catalogue import CATALOGUE, read_config
from tracelake.dag.places import located
from tracelake.dag.problems import DagInvalidError
from tracelake.dag.reader import TypedDag, read_typed_dag
from tracelake.dag.surroundings import Surroundings
from tracelake.errors import TraceError
from tracelake.limited_processes.child import limit_and_serve
from tracelake.model.dag import Problem


class ReadRequest(msgspec.Struct, tag="read"):
    text: bytes
    surroundings: Surroundings


class LocateRequest(msgspec.Struct, tag="locate"):
    text: bytes
    problems: list[Problem]


class ConfigRequest(msgspec.Struct, tag="config"):
    operator: str
    config: dict[str, Any]


class DagReply(msgspec.Struct, tag="dag"):
    dag: TypedDag


class ProblemsReply(msgspec.Struct, tag="problems"):
    """The problems of an invalid document, or the given ones with their positions."""

    problems: list[Problem]


class InvalidConfigReply(msgspec.Struct, tag="invalid"):
    """The details of a `job_invalid` error."""

    message: str
    details: dict[str, Any]


class DoneReply(msgspec.Struct, tag="done"):
    pass


DocumentRequest = ReadRequest | LocateRequest | ConfigRequest
DocumentReply = DagReply | ProblemsReply | InvalidConfigReply | DoneReply


def _plain(value: object) -> object:
    if isinstance(value, Mapping):  # such as an immutable one
        return dict(value)
    raise NotImplementedError(type(value).__name__)


ENCODER = msgspec.msgpack.Encoder(enc_hook=_plain)
REPLIES = msgspec.msgpack.Decoder(DocumentReply)
_REQUESTS = msgspec.msgpack.Decoder(DocumentRequest)


def answer(request: DocumentRequest) -> DocumentReply:
    try:
        if isinstance(request, ReadRequest):
            return DagReply(read_typed_dag(request.text, request.surroundings))
        if isinstance(request, LocateRequest):
            return ProblemsReply(located(request.text, request.problems))
        read_config(request.operator, request.config)
        return DoneReply()
    except DagInvalidError as error:
        return ProblemsReply(error.problems)
    except TraceError as error:
        return InvalidConfigReply(error.message, error.details)


def answer_bytes(body: bytes) -> bytes:
    return ENCODER.encode(answer(_REQUESTS.decode(body)))


def prepare() -> Callable[[bytes], bytes]:
    import tracelake.catalogue.sql.gate  # noqa: F401 - now, so that no document waits for it

    CATALOGUE.plugins  # noqa: B018 - the same
    return answer_bytes


if __name__ == "__main__":
    limit_and_serve(sys.argv[1:], prepare)
