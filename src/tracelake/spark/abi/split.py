"""Each log of a batch to where it belongs: decoded, undecodable, or of another event. None is lost on the way."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tracelake.spark.abi.logs import EventTable, judge_batch, rejected
from tracelake.spark.abi.tokens import TransferTable

DECODED, LEFT = 0, 1
MATCHES = "trace_matches"
"""A column that says whether a log is of one of the events at all; where it is missing, every log is."""


@dataclass(frozen=True, slots=True)
class LogSplit:
    """What `write_split` asks: batches come sorted by block and log, and what is made of them is sorted so too."""

    table: EventTable | TransferTable
    order: tuple[str, ...]

    def __call__(self, batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        others = None
        if MATCHES in batch.schema.names:
            flags = batch.column(MATCHES).to_numpy(zero_copy_only=False)
            batch = batch.drop_columns([MATCHES])
            others = batch.take(pa.array(np.flatnonzero(~flags)))
            batch = batch.take(pa.array(np.flatnonzero(flags)))
        groups, verdict, _ = judge_batch(batch, self.table.all_decoders)
        good = sum(len(group.judged.good) for group in groups)
        rejects = rejected(batch, verdict)
        if good + rejects.num_rows != batch.num_rows:
            raise RuntimeError(
                f"of {batch.num_rows} logs {good} were decoded and {rejects.num_rows} not: some are missing"
            )
        decoded = list(self.table.decoded(batch, groups))
        if decoded:
            yield DECODED, self._sorted(decoded)
        if others is not None and others.num_rows:
            reasons = [pa.repeat(pa.scalar(text), others.num_rows) for text in ("other_event", "")]
            others = pa.RecordBatch.from_arrays([*others.columns, *reasons], names=rejects.schema.names)
            rejects = self._sorted([rejects, others], self.order[:2])
        yield LEFT, rejects

    def _sorted(self, batches: list[pa.RecordBatch], order: tuple[str, ...] | None = None) -> pa.RecordBatch:
        if len(batches) == 1:
            return batches[0]
        table = pa.Table.from_batches(batches).sort_by([(name, "ascending") for name in order or self.order])
        return table.combine_chunks().to_batches()[0]
