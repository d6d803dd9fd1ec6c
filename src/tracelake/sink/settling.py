"""Batches of one dataset: each into the table, or refused with a reason; by the way that fits their size.

Whatever is done here may be done again: what is in the table already is found there. One that is refused does not keep
others out.
"""

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

import pyarrow as pa

from tracelake.rows.reader import BadBatchError, BatchReader
from tracelake.sink.patience import Patience, StoppedError
from tracelake.sink.store import (
    Commit,
    Loaded,
    OutdatedError,
    RefusedRowsError,
    StagingLostError,
    StoreAwayError,
    TableStore,
)
from tracelake.wire.buffers import BufferBatch, BufferedDataset

logger = logging.getLogger(__name__)

T = TypeVar("T")

_FETCHES_AT_ONCE = 8
_LOADS_AT_ONCE = 2
_DIRECT_BYTES = 32 * 2**20
"""Of batches that are read at once by the sink itself: rows take many times of it while they are read."""


class Artifacts(Protocol):
    """The part of an object store that a sink uses."""

    async def get(self, uri: str, *, if_match: str | None = None) -> bytes | None: ...


class LargeBatches(Protocol):
    """Loads batches into a staging table by many hands; blocks."""

    def load(
        self, dataset: BufferedDataset, staging: str, batches: Sequence[BufferBatch]
    ) -> "list[Loaded | Refusal]": ...


@dataclass(frozen=True, slots=True)
class Refusal:
    """A batch that cannot be taken."""

    batch: BufferBatch
    error: BadBatchError


@dataclass(frozen=True, slots=True)
class Settled:
    commits: list[Commit]
    refusals: list[Refusal]

    def __add__(self, other: "Settled") -> "Settled":
        return Settled(self.commits + other.commits, self.refusals + other.refusals)


class Stores:
    """A few connections to Postgres data for any number of datasets, and the threads that block on them or on Spark:
    who only reads a batch does not wait for one of those."""

    def __init__(self, dsn: Callable[[], str], limit: int = 4) -> None:
        self._dsn = dsn
        self._free: list[TableStore] = []
        self._places = asyncio.Semaphore(limit)
        self._threads = ThreadPoolExecutor(limit, thread_name_prefix="tables")
        self._loading = ThreadPoolExecutor(_LOADS_AT_ONCE, thread_name_prefix="loading")

    @asynccontextmanager
    async def one(self) -> AsyncIterator[TableStore]:
        async with self._places:
            store = self._free.pop() if self._free else self._open()
            try:
                yield store
            except (OutdatedError, RefusedRowsError, StagingLostError):
                self._free.append(store)
                raise
            except Exception:
                store.close()  # it may be somewhere else by now: the next one asks again
                raise
            # After a cancel a thread may still be at it: it is nobody's any more.
            self._free.append(store)

    def _open(self) -> TableStore:
        return TableStore(self._dsn())

    async def run(self, work: Callable[[TableStore], T]) -> T:
        async with self.one() as store:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work, store)

    async def load(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._loading, work)

    def close(self) -> None:
        for store in self._free:
            store.close()
        self._free.clear()
        self._threads.shutdown(wait=False)
        self._loading.shutdown(wait=False)


class Settler:
    """Of one dataset as it is declared now."""

    def __init__(
        self,
        dataset: BufferedDataset,
        *,
        objects: Artifacts,
        stores: Stores,
        patience: Patience,
        large: LargeBatches | None,
        large_bytes: int,
        on_signal: Callable[[str], None],
    ) -> None:
        self.dataset = dataset
        self._reader = BatchReader(dataset.schema)
        self._objects = objects
        self._stores = stores
        self._patience = patience
        self._large = large
        self._large_bytes = large_bytes
        self._signal = on_signal
        self._sure = False

    async def settle(self, batches: Sequence[BufferBatch], *, sure: bool = False) -> Settled:
        """Those that were in the table before are found and not loaded again. Raises OutdatedError if the table has
        followed a newer schema, unless the caller is sure that nobody knows it."""
        self._sure = sure
        known = await self.find(batches)
        done = {publish_id for commit in known for publish_id in commit.publish_ids}
        fresh = [batch for batch in batches if batch.publish_id not in done]
        if not fresh:
            return Settled(known, [])
        if self._large is not None and sum(batch.size_bytes for batch in fresh) >= self._large_bytes:
            settled = await self._by_many(self._large, fresh)
        else:
            settled = await self._in_portions(fresh)
        seen = {commit.commit_seq for commit in settled.commits}
        return settled + Settled([commit for commit in known if commit.commit_seq not in seen], [])

    async def find(self, batches: Sequence[BufferBatch]) -> list[Commit]:
        """The commits by which some of them are in the table already. The table is made first, or changed."""
        return await self._run(lambda store: store.find(self.dataset, batches))

    async def _run(self, work: Callable[[TableStore], T]) -> T:
        def with_table(store: TableStore) -> T:
            store.follow(self.dataset)  # where it is now it may be an older one
            return work(store)

        return await self._patience.until_done(lambda: self._stores.run(with_table))

    # -- by this process itself

    async def _in_portions(self, batches: Sequence[BufferBatch]) -> Settled:
        """No more than so much at once: all of it is held in memory."""
        settled = Settled([], [])
        for portion in _portions(batches):
            settled += await self._directly(portion)
        return settled

    async def _directly(self, batches: Sequence[BufferBatch]) -> Settled:
        fetching = asyncio.Semaphore(_FETCHES_AT_ONCE)

        async def read(batch: BufferBatch) -> tuple[Loaded, pa.RecordBatch] | Refusal:
            async with fetching:
                data = await self._patience.until_done(lambda: self._objects.get(batch.batch_uri, if_match=batch.etag))
            try:
                rows = await asyncio.to_thread(read_batch, self._reader, batch, data)
            except BadBatchError as error:
                return Refusal(batch, error)
            return Loaded(batch, rows.num_rows), rows

        found = await asyncio.gather(*map(read, batches))
        self._signal("fetched")
        good = [item for item in found if not isinstance(item, Refusal)]
        refusals = [item for item in found if isinstance(item, Refusal)]
        if not good:
            return Settled([], refusals)

        def commit(store: TableStore) -> list[Commit]:
            loaded, rows = [item[0] for item in good], [item[1] for item in good]
            return store.commit_direct(self.dataset, loaded, rows, sure=self._sure)

        self._signal("committing")
        try:
            commits = await self._run(commit)
        except RefusedRowsError as error:
            if len(good) == 1:
                return Settled([], [*refusals, Refusal(good[0][0].batch, BadBatchError("rows_refused", str(error)))])
            # One of them is refused by the database itself: the others are not to suffer.
            settled = Settled([], refusals)
            for loaded, _ in good:
                settled += await self._directly([loaded.batch])
            return settled
        self._signal("committed")
        return Settled(commits, refusals)

    # -- by many hands

    async def _by_many(self, large: LargeBatches, batches: Sequence[BufferBatch]) -> Settled:
        staging = await self._run(lambda store: store.open_staging(self.dataset))
        self._signal("staging")
        try:
            found = await self._stores.load(partial(large.load, self.dataset, staging, batches))
            good = [item for item in found if isinstance(item, Loaded)]
            refusals = [item for item in found if isinstance(item, Refusal)]
            if not good:
                return Settled([], refusals)
            self._signal("committing")
            commits = await self._run(lambda store: store.commit_staged(self.dataset, staging, good, sure=self._sure))
            self._signal("committed")
            return Settled(commits, refusals)
        except (StoppedError, OutdatedError):
            raise
        except Exception as error:
            # Spark has troubles of its own, one batch may be refused by the database, what was staged may be gone. The
            # direct way waits for what is away, and finds the one that is to blame.
            logger.warning("loaded directly instead", exc_info=error, extra={"dataset": self.dataset.name})
            return await self._in_portions(batches)
        finally:
            await self._drop(staging)

    async def _drop(self, staging: str) -> None:
        try:
            await self._stores.run(lambda store: store.drop_staging(staging))
        except StoreAwayError:
            logger.warning("a staging table stays for a day", extra={"table": staging})


def read_batch(reader: BatchReader, batch: BufferBatch, data: bytes | None) -> pa.RecordBatch:
    """The rows of a batch whose bytes are these: the same judgement wherever it is done."""
    if data is None:
        raise BadBatchError("artifact_changed", "the artifact is gone, or not what was published")
    if len(data) != batch.size_bytes:
        reason = f"the artifact has {len(data)} bytes, and {batch.size_bytes} were published"
        raise BadBatchError("artifact_changed", reason)
    if batch.sha256 not in (None, hashlib.sha256(data).hexdigest()):
        reason = "the artifact does not have the SHA-256 that was published: somebody has changed it in the store"
        raise BadBatchError("content_mismatch", reason)
    try:
        return reader.read(data, publish_seq=batch.publish_seq, org_id=batch.org_id, record_count=batch.record_count)
    except (BadBatchError, MemoryError):
        raise
    except Exception as error:
        # A mistake of ours. It is kept as a dead letter, and can be replayed when the mistake is mended.
        logger.exception("the reader failed at a batch", extra={"publish_id": str(batch.publish_id)})
        raise BadBatchError("reader_failed", f"the sink failed at reading it ({type(error).__name__})") from error


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
