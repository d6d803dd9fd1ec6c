"""Archives inspected in processes of their own, with limits; see `limited_processes`.

Inspection changes nothing, so an archive whose process was lost may be inspected again.
"""

import logging

from tracelake.bundles.child import REPLIES, InspectionReply, InspectionRequest, encode_request
from tracelake.errors import TraceError
from tracelake.limited_processes.pool import (
    MEMORY_BYTES,
    ChildFailureError,
    LimitedProcesses,
    OverLimitError,
    ProcessLostError,
)

logger = logging.getLogger(__name__)


class BundleProcesses:
    """At most so many at a time; more wait, in the order in which they came."""

    def __init__(self, processes: int, *, seconds: float, memory_bytes: int = MEMORY_BYTES) -> None:
        self._processes = LimitedProcesses(
            "tracelake.bundles.child", processes, seconds=seconds, memory_bytes=memory_bytes
        )
        self._seconds = seconds

    async def inspect(self, request: InspectionRequest, archive: bytes) -> InspectionReply:
        try:
            return REPLIES.decode(await self._processes.ask(encode_request(request), archive))
        except OverLimitError:
            message = f"expected an archive that is inspected within {self._seconds:g} seconds of processor time"
            return InspectionReply(code="too_costly", message=message)
        except ProcessLostError as lost:
            logger.warning("a process that inspects bundles was lost", extra={"exit_status": lost.status})
            raise TraceError("bundle_inspector_unavailable") from None
        except ChildFailureError as failure:
            logger.error("a bundle could not be inspected", extra={"reason": str(failure)})
            raise TraceError("internal") from None

    async def close(self) -> None:
        await self._processes.close()
