"""What one Spark task does: read a chunk of blocks, write a file of each table, say what was written.

Requests of a chunk overlap, a few at a time; what has arrived is written in the order of the blocks and let go, so
memory follows from the size of a stretch and not from that of the chunk. How many blocks a stretch has follows from how
much the ones before it held.

What fails is told as a row (`kind`, `message`), not raised: Spark would wrap it in pages of Java. If the chain changed
while the chunk was read, the chunk is read again.
"""

import gc
import threading
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from tracelake.catalogue.context import NonRetryableError
from tracelake.spark.evm.answer_checks import check_follows
from tracelake.spark.evm.endpoints import RpcEndpoint
from tracelake.spark.evm.errors import ReorganisedError, RpcError
from tracelake.spark.evm.fetch import Stretch, fetch
from tracelake.spark.evm.log_fetch import fetch_logs
from tracelake.spark.evm.node import RpcOptions
from tracelake.spark.evm.node_pool import RpcPool
from tracelake.spark.evm.read_options import USUAL, ReadOptions
from tracelake.spark.evm.tables import schema_of
from tracelake.spark.python_gc import settle
from tracelake.spark.writer import PartWriter, Target

STREAMS = 3
_STRETCH_BYTES = 4 * 1024 * 1024
_FIRST_BLOCKS, _MOST_BLOCKS = 8, 100
"""Of a stretch: while nobody knows how large blocks are, and at most."""
_FIRST_LOG_BLOCKS, _MOST_LOG_BLOCKS = 2_000, 10_000
"""The same where only some logs are read."""
_READINGS = 3
_KEPT_POOLS = 4
SKIPPED = "skipped"

_failed: deque[str] = deque(maxlen=100)
"""Prefixes of attempts of which a chunk failed in this process: waiting for the nodes again and again helps nobody."""

MANIFEST = pa.schema(
    [
        ("table", pa.string()),
        ("first", pa.int64()),
        ("last", pa.int64()),
        ("first_parent", pa.string()),
        ("last_hash", pa.string()),
        ("first_time", pa.int64()),
        ("last_time", pa.int64()),
        ("uri", pa.string()),
        ("size", pa.int64()),
        ("etag", pa.string()),
        ("sha256", pa.string()),
        ("rows", pa.int64()),
        ("kind", pa.string()),
        ("message", pa.string()),
        ("retryable", pa.bool_()),
    ]
)
MANIFEST_DDL = (
    "table string, first long, last long, first_parent string, last_hash string, first_time long, last_time long,"
    " uri string, size long, etag string, sha256 string, rows long, kind string, message string, retryable boolean"
)


@dataclass(frozen=True, slots=True)
class Chunks:
    """What Spark carries to its tasks: how chunk number n is read, and where it goes."""

    endpoints: tuple[RpcEndpoint, ...]
    options: RpcOptions
    targets: Mapping[str, Target]
    """By table."""
    first: int
    last: int
    size: int
    parts: int | None = None
    """How many Spark tasks share the chunks, each with every so manieth of them; None: one each."""
    reading: ReadOptions = USUAL

    @property
    def count(self) -> int:
        return -(-(self.last - self.first + 1) // self.size)

    def range_of(self, number: int) -> tuple[int, int]:
        first = self.first + number * self.size
        return first, min(self.last, first + self.size - 1)

    def numbers_of(self, part: int) -> range:
        """Chunks that lie side by side are alike, so that none gets all the heavy ones."""
        return range(part, self.count, self.parts or self.count)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle()
        for batch in batches:
            for number in (n for part in batch.column(0).to_pylist() for n in self.numbers_of(part)):
                yield pa.RecordBatch.from_pylist(self._rows(*self.range_of(number)), schema=MANIFEST)

    def _rows(self, first: int, last: int) -> list[dict[str, object]]:
        attempt = ",".join(target.prefix for target in self.targets.values())
        if attempt in _failed:
            skipped = {"kind": SKIPPED, "message": "another chunk failed before", "retryable": True}
            return [{"first": first, "last": last, **skipped}]
        try:
            return self._written(first, last)
        except (RpcError, NonRetryableError) as error:
            _failed.append(attempt)
            retryable = isinstance(error, RpcError) and error.retryable
            skipped = {"kind": getattr(error, "kind", "failed"), "message": str(error), "retryable": retryable}
            return [{"first": first, "last": last, **skipped}]

    def _written(self, first: int, last: int) -> list[dict[str, object]]:
        pool = shared_pool(self.endpoints, self.options)
        for reading in range(_READINGS):
            writers = {
                table: PartWriter(target, schema_of(table, self.reading.optional(table)))
                for table, target in self.targets.items()
            }
            try:
                with _uncollected():
                    ends = read_chunk(pool, first, last, writers, self.reading)
                return [
                    {
                        "table": table,
                        "first": first,
                        "last": last,
                        **ends._asdict(),
                        "uri": file.meta.uri,
                        "size": file.meta.size,
                        "etag": file.meta.etag,
                        "sha256": file.meta.sha256,
                        "rows": file.rows,
                    }
                    for table, file in ((table, writer.upload(first, last)) for table, writer in writers.items())
                ]
            except ReorganisedError:
                if reading + 1 == _READINGS:
                    raise
            finally:
                for writer in writers.values():
                    writer.discard()
        raise AssertionError("unreachable")


@contextmanager
def _uncollected() -> Iterator[None]:
    """What is read has no cycles, and looking for them again and again among so many objects takes its time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class ChunkEnds(NamedTuple):
    """What joins a chunk to others: the first block's parent, the last block, and the times of both; 0 for none."""

    first_parent: str
    last_hash: str
    first_time: int
    last_time: int


def read_chunk(
    pool: RpcPool, first: int, last: int, writers: Mapping[str, PartWriter], options: ReadOptions = USUAL
) -> ChunkEnds:
    ends, previous = None, None
    for stretch in stretches(pool, first, last, writers.keys(), options):
        check_follows(stretch.numbers[0], stretch.first_parent, previous, ReorganisedError)
        first_parent = stretch.first_parent if ends is None else ends.first_parent
        start_time = stretch.first_time if ends is None else ends.first_time or stretch.first_time
        previous = stretch.last_hash
        ends = ChunkEnds(first_parent, previous, start_time, stretch.last_time)
        for table, writer in writers.items():
            if stretch.tables[table].num_rows:
                writer.write(stretch.tables[table])
    assert ends is not None
    return ends


def stretches(
    pool: RpcPool, first: int, last: int, tables: Collection[str], options: ReadOptions = USUAL
) -> Iterator[Stretch]:
    """In the order of the blocks, `STREAMS` of them on their way at a time."""
    is_filtered = options.filter is not None
    size = _FIRST_LOG_BLOCKS if is_filtered else min(pool.options.batch_size, _FIRST_BLOCKS)
    most = _MOST_LOG_BLOCKS if is_filtered else _MOST_BLOCKS
    read, following = fetch_logs if is_filtered else fetch, first
    coming: deque[Future[Stretch]] = deque()
    stop = threading.Event()
    with ThreadPoolExecutor(STREAMS, thread_name_prefix="rpc") as threads:
        try:
            while following <= last or coming:
                while following <= last and len(coming) < STREAMS:
                    numbers = range(following, min(last, following + size - 1) + 1)
                    coming.append(threads.submit(read, pool, numbers, tables, stop, options))
                    following = numbers[-1] + 1
                stretch = coming.popleft().result()
                bytes_per_block = sum(table.nbytes for table in stretch.tables.values()) / len(stretch.numbers)
                size = max(1, min(most, int(_STRETCH_BYTES / max(1.0, bytes_per_block))))
                yield stretch
        finally:
            stop.set()  # after a failure the others are not waited for longer than their requests take
            for one in coming:
                one.cancel()


_pools: dict[tuple[tuple[RpcEndpoint, ...], RpcOptions], RpcPool] = {}
_pools_lock = threading.Lock()


def shared_pool(endpoints: tuple[RpcEndpoint, ...], options: RpcOptions) -> RpcPool:
    """Spark's Python processes run one task after another: connections, and what is known of nodes, are kept."""
    with _pools_lock:
        pool = _pools.pop((endpoints, options), None) or RpcPool(endpoints, options)
        _pools[endpoints, options] = pool
        if len(_pools) > _KEPT_POOLS:
            _pools.pop(next(iter(_pools)))
    pool.forgive()
    return pool
