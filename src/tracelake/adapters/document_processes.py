"""Documents read in processes of their own, with limits; see `limited_processes`.

Reading changes nothing, so a document whose process was lost may be read again.
"""

import logging
from collections.abc import Sequence
from typing import Any

from tracelake.dag import DagInvalidError, Surroundings, TypedDag
from tracelake.dag.child import (
    ENCODER,
    REPLIES,
    ConfigRequest,
    DagReply,
    DocumentReply,
    DocumentRequest,
    InvalidConfigReply,
    LocateRequest,
    ProblemsReply,
    ReadRequest,
)
from tracelake.errors import TraceError
from tracelake.limited_processes.pool import (
    MEMORY_BYTES,
    ChildFailureError,
    LimitedProcesses,
    OverLimitError,
    ProcessLostError,
)
from tracelake.model.dag import Problem

logger = logging.getLogger(__name__)


class DocumentProcesses:
    """At most so many at a time; more wait, in the order in which they came."""

    def __init__(self, processes: int, *, seconds: float, memory_bytes: int = MEMORY_BYTES) -> None:
        self._seconds = seconds
        self._processes = LimitedProcesses("tracelake.dag.child", processes, seconds=seconds, memory_bytes=memory_bytes)

    async def read(self, text: bytes, surroundings: Surroundings) -> TypedDag:
        """Raises DagInvalidError."""
        reply = await self._ask(ReadRequest(text, surroundings))
        if isinstance(reply, ProblemsReply):
            raise DagInvalidError(reply.problems)
        assert isinstance(reply, DagReply)
        return reply.dag

    async def locate(self, text: bytes, problems: Sequence[Problem]) -> list[Problem]:
        """The same problems with their places in the text."""
        reply = await self._ask(LocateRequest(text, list(problems)))
        assert isinstance(reply, ProblemsReply)
        return reply.problems

    async def check_config(self, operator: str, config: dict[str, Any]) -> None:
        """Raises TraceError."""
        await self._ask(ConfigRequest(operator, config))

    async def warm_up(self) -> None:
        await self._processes.warm_up()

    async def close(self) -> None:
        await self._processes.close()

    async def _ask(self, request: DocumentRequest) -> DocumentReply:
        try:
            body = await self._processes.ask(ENCODER.encode(request))
        except OverLimitError:
            raise TraceError("document_too_costly", limit_seconds=self._seconds) from None
        except ProcessLostError as lost:
            logger.warning("a process that reads documents was lost", extra={"exit_status": lost.status})
            raise TraceError("document_reader_unavailable") from None
        except ChildFailureError as failure:
            logger.error("a document could not be read", extra={"reason": str(failure)})
            raise TraceError("internal") from None
        reply: DocumentReply = REPLIES.decode(body)
        if isinstance(reply, InvalidConfigReply):
            raise TraceError("job_invalid", reply.message, **reply.details)
        return reply
