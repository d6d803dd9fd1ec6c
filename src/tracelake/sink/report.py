"""Reports to the Dispatcher which batches are in the table, and which are refused."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Protocol
from uuid import UUID

import msgspec

from tracelake.errors import TraceError
from tracelake.sink.outcomes import Commit, CommitResult, Refusal
from tracelake.sink.retrying import Retrying
from tracelake.wire.buffers import (
    BufferCommittedReply,
    BufferCommittedRequest,
    BufferedDataset,
    BufferOpenReply,
    BufferOpenRequest,
    BufferRejectedReply,
    BufferRejectedRequest,
    BuffersReply,
    GoneCommits,
    TablesDroppedReply,
    TablesDroppedRequest,
    TablesMeasuredReply,
    TablesMeasuredRequest,
)

logger = logging.getLogger(__name__)


class SinkCalls(Protocol):
    async def buffers(self) -> BuffersReply: ...
    async def buffer_open(self, request: BufferOpenRequest) -> BufferOpenReply: ...
    async def buffer_committed(self, request: BufferCommittedRequest) -> BufferCommittedReply: ...
    async def buffer_rejected(self, request: BufferRejectedRequest) -> BufferRejectedReply: ...
    async def tables_dropped(self, request: TablesDroppedRequest) -> TablesDroppedReply: ...
    async def tables_measured(self, request: TablesMeasuredRequest) -> TablesMeasuredReply: ...


class SinkReporter:
    """Reports on the batches of one dataset."""

    def __init__(
        self, dataset: BufferedDataset, calls: SinkCalls, retrying: Retrying, on_signal: Callable[[str], None]
    ) -> None:
        self._dataset = dataset
        self._calls = calls
        self._retrying = retrying
        self._signal = on_signal

    async def report(self, result: CommitResult) -> set[UUID]:
        """Returns the batches that the Dispatcher has recorded; the others must not be acknowledged."""
        reported: set[UUID] = set()
        for commit in result.commits:
            if await self._is_heard(self.announce(commit)):
                reported.update(commit.publish_ids)
        for refusal in result.refusals:
            if await self._is_heard(self.reject(refusal)):
                reported.add(refusal.batch.publish_id)
        return reported

    async def _is_heard(self, call: Awaitable[None]) -> bool:
        try:
            await call
        except TraceError as refusal:
            self.log_refusal(refusal)
            return False
        return True

    def log_refusal(self, refusal: TraceError) -> None:
        # Not acknowledged: it comes back.
        logger.error("the Dispatcher refuses", extra={"dataset": self._dataset.name, "code": refusal.code})

    async def announce(self, commit: Commit) -> None:
        request = BufferCommittedRequest(
            dataset_uuid=self._dataset.dataset_uuid,
            commit_seq=commit.commit_seq,
            publish_ids=list(commit.publish_ids),
            table_bytes=commit.table_bytes,
            dropped=sorted(commit.dropped),
            hidden=commit.hidden,
            gone=[GoneCommits(first=first, last=last) for first, last in commit.gone],
        )
        try:
            await self._retrying.until_done(lambda: self._calls.buffer_committed(request))
        except TraceError as refusal:
            if refusal.code != "commit_conflict":
                raise
            # One of them was committed long ago: the table's record of it is deleted, the Dispatcher's is not. Report
            # the others one by one.
            if len(commit.publish_ids) > 1:
                for publish_id in commit.publish_ids:
                    dropped = commit.dropped & {publish_id}
                    await self.announce(replace(commit, publish_ids=(publish_id,), dropped=dropped))
        self._signal("announced")

    async def reject(self, refusal: Refusal) -> None:
        error = refusal.error
        request = BufferRejectedRequest(
            publish_id=refusal.batch.publish_id,
            code=error.code,
            reason=_storable(error.reason),
            line=error.line,
            excerpt=_storable(error.excerpt),
        )
        await self._retrying.until_done(lambda: self._calls.buffer_rejected(request))
        logger.warning(
            "a batch cannot be taken",
            extra={
                "dataset": self._dataset.name,
                "publish_id": str(refusal.batch.publish_id),
                "code": error.code,
                "line": error.line,
            },
        )
        self._signal("rejected")

    async def find_open(self, publish_ids: Sequence[UUID]) -> BufferOpenReply:
        """The batches that still wait for a sink; the others are committed, or dead letters."""
        request = BufferOpenRequest(publish_ids=list(publish_ids))
        return await self._retrying.until_done(lambda: self._calls.buffer_open(request))

    async def find_newer(self, dataset: BufferedDataset) -> BufferedDataset | None:
        """The Dispatcher's declaration of the dataset; None if it is the same."""
        for listed in (await self._retrying.until_done(self._calls.buffers)).datasets:
            declared = msgspec.structs.replace(listed, backlog=None)
            if declared.dataset_uuid == dataset.dataset_uuid and declared != dataset:
                return declared
        return None


def _storable(text: str) -> str:
    """Escapes NUL characters of quoted rows, which Postgres cannot store, and limits the length."""
    return text.replace("\x00", "\\x00")[:1000]
