"""Commits batches of one dataset: fetches, parses, stages and merges each, or refuses it with a reason.

Every step may be repeated: batches that are in the table already are found there. A refused batch does not hold up the
others. This process loads small batches itself, and Spark loads large ones.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Protocol, TypeVar

import pyarrow as pa

from tracelake.rows.reader import BadBatchError, BatchReader
from tracelake.sink.fetch import Artifacts, fetch_batch
from tracelake.sink.outcomes import Commit, CommitResult, Loaded, OutdatedError, Refusal
from tracelake.sink.parse import parse_batch
from tracelake.sink.retrying import Retrying, StoppedError
from tracelake.sink.store import TableStore
from tracelake.sink.store_pool import StorePool
from tracelake.storage.data_connection import RefusedRowsError, StoreAwayError
from tracelake.wire.buffers import BufferBatch, BufferedDataset

logger = logging.getLogger(__name__)

T = TypeVar("T")

_FETCHES_AT_ONCE = 8
_DIRECT_BYTES = 32 * 2**20
"""The most bytes of batches that the sink itself parses at once: parsed rows take many times that."""


class LargeBatches(Protocol):
    """Loads batches into a staging table in parallel; blocks."""

    def load(
        self, dataset: BufferedDataset, staging: str, batches: Sequence[BufferBatch]
    ) -> list[Loaded | Refusal]: ...


class BufferCommitter:
    """Commits the batches of one dataset under its current schema."""

    def __init__(
        self,
        dataset: BufferedDataset,
        *,
        objects: Artifacts,
        stores: StorePool,
        retrying: Retrying,
        large: LargeBatches | None,
        large_bytes: int,
        on_signal: Callable[[str], None],
    ) -> None:
        self.dataset = dataset
        self._reader = BatchReader(dataset.schema)
        self._objects = objects
        self._stores = stores
        self._retrying = retrying
        self._large = large
        self._large_bytes = large_bytes
        self._signal = on_signal
        self._sure = False

    async def commit(self, batches: Sequence[BufferBatch], *, sure: bool = False) -> CommitResult:
        """Batches that are in the table already are not loaded again. Raises OutdatedError if the table has a newer
        schema, unless the caller is `sure` that the Dispatcher declares none."""
        self._sure = sure
        earlier = await self.find(batches)
        done = {publish_id for commit in earlier for publish_id in commit.publish_ids}
        fresh = [batch for batch in batches if batch.publish_id not in done]
        if not fresh:
            return CommitResult(earlier, [])
        if self._large is not None and sum(batch.size_bytes for batch in fresh) >= self._large_bytes:
            result = await self._commit_by_spark(self._large, fresh)
        else:
            result = await self._commit_in_portions(fresh)
        commit_seqs = {commit.commit_seq for commit in result.commits}
        return result + CommitResult([commit for commit in earlier if commit.commit_seq not in commit_seqs], [])

    async def find(self, batches: Sequence[BufferBatch]) -> list[Commit]:
        """The commits of those batches that are in the table already. Creates or migrates the table first."""
        return await self._run(lambda store: store.find(self.dataset, batches))

    async def _run(self, work: Callable[[TableStore], T]) -> T:
        def with_table(store: TableStore) -> T:
            store.follow(self.dataset)  # the database may have moved to one with an older table
            return work(store)

        return await self._retrying.until_done(lambda: self._stores.run(with_table))

    # -- by this process itself: fetch, parse, stage and merge

    async def _commit_in_portions(self, batches: Sequence[BufferBatch]) -> CommitResult:
        """Commits a limited amount at once, since all of it is held in memory."""
        result = CommitResult([], [])
        for portion in _portions(batches):
            result += await self._commit_directly(portion)
        return result

    async def _commit_directly(self, batches: Sequence[BufferBatch]) -> CommitResult:
        fetching = asyncio.Semaphore(_FETCHES_AT_ONCE)

        async def read(batch: BufferBatch) -> tuple[Loaded, pa.RecordBatch] | Refusal:
            async with fetching:
                data = await self._retrying.until_done(lambda: fetch_batch(self._objects, batch))
            try:
                rows = await asyncio.to_thread(parse_batch, self._reader, batch, data)
            except BadBatchError as error:
                return Refusal(batch, error)
            return Loaded(batch, rows.num_rows), rows

        outcomes = await asyncio.gather(*map(read, batches))
        self._signal("fetched")
        readable = [item for item in outcomes if not isinstance(item, Refusal)]
        refusals = [item for item in outcomes if isinstance(item, Refusal)]
        if not readable:
            return CommitResult([], refusals)

        def write(store: TableStore) -> list[Commit]:
            loaded, rows = [item[0] for item in readable], [item[1] for item in readable]
            return store.commit_direct(self.dataset, loaded, rows, sure=self._sure)

        self._signal("committing")
        try:
            commits = await self._run(write)
        except RefusedRowsError as error:
            if len(readable) == 1:
                return CommitResult(
                    [], [*refusals, Refusal(readable[0][0].batch, BadBatchError("rows_refused", str(error)))]
                )
            # The database refuses one of them: commit each on its own.
            result = CommitResult([], refusals)
            for loaded, _ in readable:
                result += await self._commit_directly([loaded.batch])
            return result
        self._signal("committed")
        return CommitResult(commits, refusals)

    # -- by Spark, whose executors fetch, parse and stage

    async def _commit_by_spark(self, large: LargeBatches, batches: Sequence[BufferBatch]) -> CommitResult:
        staging = await self._run(lambda store: store.open_staging(self.dataset))
        self._signal("staging")
        try:
            outcomes = await self._stores.load(partial(large.load, self.dataset, staging, batches))
            readable = [item for item in outcomes if isinstance(item, Loaded)]
            refusals = [item for item in outcomes if isinstance(item, Refusal)]
            if not readable:
                return CommitResult([], refusals)
            self._signal("committing")
            commits = await self._run(
                lambda store: store.commit_staged(self.dataset, staging, readable, sure=self._sure)
            )
            self._signal("committed")
            return CommitResult(commits, refusals)
        except (StoppedError, OutdatedError):
            raise
        except Exception as error:
            # Spark may fail, the database may refuse a batch, or the staging table may be lost. The direct way waits
            # for services that are away, and finds the batch to blame.
            logger.warning("loaded directly instead", exc_info=error, extra={"dataset": self.dataset.name})
            return await self._commit_in_portions(batches)
        finally:
            await self._drop(staging)

    async def _drop(self, staging: str) -> None:
        try:
            await self._stores.run(lambda store: store.drop_staging(staging))
        except StoreAwayError:
            logger.warning("a staging table stays for a day", extra={"table": staging})


def _portions(batches: Sequence[BufferBatch]) -> Iterator[list[BufferBatch]]:
    portion: list[BufferBatch] = []
    size = 0
    for batch in batches:
        if portion and size + batch.size_bytes > _DIRECT_BYTES:
            yield portion
            portion, size = [], 0
        portion.append(batch)
        size += batch.size_bytes
    if portion:
        yield portion
