"""Queries checked in a few limited processes, which orgs share in turns.

A text that costs too much ends its process and is refused; the next query gets a new one.
"""

import logging
from collections.abc import Mapping, Sequence

import msgspec

from tracelake.errors import TraceError
from tracelake.http.fair_slots import FairSlots
from tracelake.limited_processes.pool import (
    MEMORY_BYTES,
    ChildFailureError,
    LimitedProcesses,
    OverLimitError,
    ProcessLostError,
)
from tracelake.query.gate.batch import CheckedBatchQuery
from tracelake.query.gate.check import CheckedQuery, Relations
from tracelake.query.gate.child import (
    REPLIES,
    BatchCheckRequest,
    CheckedBatchReply,
    CheckedReply,
    CheckRequest,
    RefusedReply,
)
from tracelake.query.gate.parameters import QueryParameter
from tracelake.query.gate.text import MAX_LENGTH

logger = logging.getLogger(__name__)

SECONDS = 2.0
"""Processor time for one query. Queries that people write take milliseconds."""


class GateProcesses:
    def __init__(
        self, processes: int, *, waiting: int = 20, seconds: float = SECONDS, memory_bytes: int = MEMORY_BYTES
    ) -> None:
        self._seconds = seconds
        self._slots = FairSlots(processes, per_org=max(1, processes - 1), waiting=waiting, what="queries")
        self._processes = LimitedProcesses(
            "tracelake.query.gate.child",
            processes,
            seconds=seconds,
            memory_bytes=memory_bytes,
            niceness=0,  # every query waits for it, while engines use the processors
        )

    async def check(
        self, org: str, sql: str, parameters: Mapping[str, QueryParameter], relations: Relations
    ) -> CheckedQuery:
        """Raises TraceError."""
        if len(sql) > MAX_LENGTH:
            raise TraceError("query_too_complex", f"A query has at most {MAX_LENGTH:,} characters.")
        granted = {name: dict(columns) for name, columns in relations.items()}
        request = _encode(CheckRequest(sql, dict(parameters), granted))
        async with self._slots.slot(org):
            reply = await self._ask(request)
        assert isinstance(reply, CheckedReply)
        return reply.query

    async def check_batch(
        self, org: str, sql: str, parameters: Mapping[str, QueryParameter], relations: Sequence[str]
    ) -> CheckedBatchQuery:
        """The same for a batch query. Raises TraceError."""
        request = _encode(BatchCheckRequest(sql, dict(parameters), list(relations)))
        async with self._slots.slot(org):
            reply = await self._ask(request)
        assert isinstance(reply, CheckedBatchReply)
        return reply.query

    async def _ask(self, request: bytes) -> CheckedReply | CheckedBatchReply:
        try:
            body = await self._processes.ask(request)
        except OverLimitError:
            raise TraceError("query_too_costly", limit_seconds=self._seconds) from None
        except ProcessLostError as lost:
            logger.warning("a process that checks queries was lost", extra={"exit_status": lost.status})
            raise TraceError("query_gate_unavailable") from None
        except ChildFailureError as failure:
            # The traceback has lines of our code alone, and no text of the query.
            logger.error("a query could not be checked", extra={"reason": str(failure)})
            raise TraceError("internal") from None
        reply: CheckedReply | CheckedBatchReply | RefusedReply = REPLIES.decode(body)
        if isinstance(reply, RefusedReply):
            raise TraceError(reply.code, reply.message, **reply.details)
        return reply

    async def warm_up(self) -> None:
        await self._processes.warm_up()

    async def close(self) -> None:
        await self._processes.close()


def _encode(request: CheckRequest | BatchCheckRequest) -> bytes:
    try:
        return msgspec.msgpack.encode(request)
    except (UnicodeEncodeError, OverflowError):
        message = "The query or a parameter has half of a character, or an integer of more than 64 bits."
        raise TraceError("query_parameter", message + " Send large integers as texts.") from None
