"""evm_ingest: a range of blocks from JSON-RPC to `blocks`, `transactions` and `logs`.

Spark's tasks read chunks of the range by themselves and write the files; the driver gets rows of the manifest. It looks
whether the chunks are of one chain (each begins where the one before it ends), which goes on in the table of a live
dataset, and commits, or fails for another attempt with nothing committed.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from tracelake.catalogue.context import CanceledError, NonRetryableError, OperatorResult
from tracelake.catalogue.evm import EvmIngestConfig
from tracelake.ports import ObjectMeta
from tracelake.spark.evm import endpoints
from tracelake.spark.evm.block_times import unit_times
from tracelake.spark.evm.chain_rules import ChainRules
from tracelake.spark.evm.chunk import MANIFEST_DDL, SKIPPED, Chunks
from tracelake.spark.evm.errors import BeyondHeadError, IngestError, NoEndpointError, RpcError
from tracelake.spark.evm.http import HttpOptions
from tracelake.spark.evm.log_filter import LogSelection
from tracelake.spark.evm.node import RpcOptions
from tracelake.spark.evm.node_pool import RpcPool, head_of
from tracelake.spark.evm.read_options import ReadOptions
from tracelake.spark.evm.table_joints import check_joints
from tracelake.spark.evm.tables import schema_of
from tracelake.spark.sizes import session_for_small
from tracelake.spark.work import SparkWork
from tracelake.spark.writer import WrittenFile

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MOST_PARTITIONS = 10_000
_MOST_CHUNKS = 8
"""A Spark task has a price of its own: each reads several chunks where there are more of them than cores."""
_LAST_BLOCK = 2**32 - 1
_HEAD = HttpOptions(connect_seconds=5.0, answer_seconds=5.0)
"""The number of the newest block is a short answer, and nobody is heard while it is waited for."""


def run(work: SparkWork) -> OperatorResult:
    config = work.context.config
    assert isinstance(config, EvmIngestConfig)
    first, last = work.blocks
    if first > last or last > _LAST_BLOCK:
        raise NonRetryableError(f"blocks {first} to {last} are no range that can be read")
    outputs: dict[str, int] = {table: index for index, table in enumerate(config.tables) if work.has_output(index)}
    chunks = _chunks(work, config, outputs, first, last)
    _check_head(work, chunks, config)
    work.stop_if_canceled()
    work.context.progress(f"reading blocks {first} to {last} in {chunks.count} chunks")
    parts = chunks.parts or chunks.count
    # All the work is done in Python: there is nothing to generate code for.
    frame = session_for_small(work.session).range(0, parts, 1, parts)
    rows = frame.mapInArrow(chunks, MANIFEST_DDL).collect()
    work.stop_if_canceled()
    _check_rows(rows, chunks)
    rows.sort(key=lambda row: row.first)
    if "blocks" in outputs:
        check_joints(work, outputs["blocks"], {first - 1: rows[0].first_parent, last: rows[-1].last_hash})
    for table, index in outputs.items():
        files = [
            WrittenFile(ObjectMeta(row.uri, row["size"], row.etag, row.sha256), row["rows"])
            for row in rows
            if row.table == table
        ]
        work.seal_output(index, files, schema_of(table, chunks.reading.optional(table)))
    work.times = unit_times((row.first_time, row.last_time) for row in rows)
    return work.result()


def _chunks(work: SparkWork, config: EvmIngestConfig, outputs: dict[str, int], first: int, last: int) -> Chunks:
    try:
        endpoint_set = endpoints.resolve(work.context.org, config.rpc)
    except NoEndpointError as error:
        raise NonRetryableError(f"{error.kind}: {error}") from None
    size = min(config.blocks_per_chunk, last - first + 1)
    count = -(-(last - first + 1) // size)
    at_once = _at_once(work.session, count)
    options = RpcOptions(
        chain_id=config.chain_id,
        batch_size=config.batch_size,
        deadline_seconds=config.retry_seconds,
        requests_per_second=_share(config.max_requests_per_second, at_once),
        calls_per_second=_share(config.max_calls_per_second, at_once),
    )
    targets = {table: work.target(index) for table, index in outputs.items()}
    parts = min(count, _MOST_PARTITIONS, max(at_once, -(-count // _MOST_CHUNKS)))
    columns: dict[str, Sequence[str]] = {table: config.optional_columns(table) for table in config.tables}
    criteria = config.filter
    log_filter = None if criteria is None else LogSelection.of(criteria.addresses, criteria.topic_choices())
    all_blocks = criteria is not None and criteria.blocks == "all"
    reading = ReadOptions.of(
        columns,
        ChainRules.of(config.preset),
        log_filter,
        all_blocks=all_blocks,
        verify_roots=config.verify == "roots",
    )
    return Chunks(endpoint_set, options, targets, first, last, size, parts, reading)


def _share(pace: float | None, at_once: int) -> float | None:
    return None if pace is None else pace / at_once


def _at_once(session: "SparkSession", count: int) -> int:
    """How many chunks are read at a time."""
    try:
        cores = session.sparkContext.defaultParallelism
    except Exception:  # over Spark Connect nobody says it
        cores = count_cores(session)
    return max(1, min(count, cores))


def count_cores(session: "SparkSession") -> int:
    """Spark cuts a range into as many parts as it has cores, if it is not told otherwise."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    return session.range(_MOST_PARTITIONS).select(F.spark_partition_id()).distinct().count()


def _check_head(work: SparkWork, chunks: Chunks, config: EvmIngestConfig) -> None:
    def sleep(seconds: float) -> None:
        if work.context.cancel.wait(seconds):
            raise CanceledError

    # Spark does nothing yet that could be stopped: whoever is cancelled must hear of it here.
    options = replace(chunks.options, http=_HEAD)
    pool = RpcPool(chunks.endpoints, options, sleep=sleep)
    try:
        head = head_of(pool)
        if chunks.last + config.confirmations > head:
            raise BeyondHeadError(
                f"block {chunks.last} with {config.confirmations} confirmations is not there yet: the newest block is"
                f" {head}"
            )
    except RpcError as error:
        work.stop_if_canceled()
        if not error.retryable:
            raise NonRetryableError(f"{error.kind}: {error}") from None
        raise IngestError(error.kind, f"blocks {chunks.first} to {chunks.last}: {error}") from None
    except NonRetryableError as error:
        raise NonRetryableError(f"{getattr(error, 'kind', 'failed')}: {error}") from None
    finally:
        pool.close()


def _check_rows(rows: Sequence[Any], chunks: Chunks) -> None:
    """Every chunk is there, and each begins where the one before it ends."""
    failed = sorted(
        (row for row in rows if row.kind is not None), key=lambda row: (row.retryable, row.kind == SKIPPED, row.first)
    )
    if failed:
        worst = failed[0]
        if not worst.retryable:
            raise NonRetryableError(f"{worst.kind}: {worst.message}")
        raise IngestError(worst.kind, f"blocks {worst.first} to {worst.last}: {worst.message}")
    by_first = {row.first: row for row in rows}
    expected_ranges = [chunks.range_of(number) for number in range(chunks.count)]
    if [(row.first, row.last) for row in (by_first[first] for first in sorted(by_first))] != expected_ranges:
        raise IngestError("chunks_missing", "Spark did not return every chunk")
    for before, after in pairwise(by_first[first] for first, _ in expected_ranges):
        if after.first_parent != before.last_hash:
            raise IngestError(
                "reorganised",
                f"block {after.first} is not the child of the block {before.last} that was read: the chain was"
                " reorganised meanwhile; another attempt reads it as it is then",
            )
