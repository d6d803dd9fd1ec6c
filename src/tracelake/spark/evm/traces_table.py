"""From checked traces to the Arrow table `traces`."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from tracelake.spark.evm.columns import BadHexError, binary, numbers, words
from tracelake.spark.evm.packed import AnyBlock
from tracelake.spark.evm.tables import copied_column, schema_of
from tracelake.spark.evm.texts import Texts
from tracelake.spark.evm.traces_reading import PlacedTraces

_HASH, _ADDRESS = 32, 20


def traces_table(
    blocks: Sequence[AnyBlock], traces: Sequence[PlacedTraces], chain_id: int, optional: Sequence[str] = ()
) -> pa.Table:
    """`traces`: of each block."""
    rows = [placed.traces for placed in traces]
    counts = np.array([len(of_block) for of_block in rows], np.int64)
    columns = {name: Texts.concat([of_block.columns[name] for of_block in rows]) for name in _HEX}
    places, owners = _owners(traces)
    values, decimals, floats = words("value", columns["value"])
    block_numbers = numbers("block_number", [block.number for block in blocks], "uint32")
    per_row = pa.array(np.repeat(np.arange(len(blocks)), counts))
    starts = np.cumsum(counts) - counts
    return pa.Table.from_arrays(
        [
            block_numbers.take(per_row),
            pa.array(places, pa.uint32()),
            owners,
            pa.array((np.arange(int(counts.sum())) - np.repeat(starts, counts)).astype(np.uint32)),
            pa.array([address for of_block in rows for address in of_block.addresses], pa.list_(pa.int64())),
            pa.array([count for of_block in rows for count in of_block.subtraces], pa.uint32()),
            _named("trace_type", [kind for of_block in rows for kind in of_block.types]),
            _named("call_type", [kind for of_block in rows for kind in of_block.call_types]),
            _named("reward_type", [kind for of_block in rows for kind in of_block.reward_types]),
            binary("from_address", columns["from_"], _ADDRESS),
            binary("to_address", columns["to"], _ADDRESS),
            values,
            decimals,
            floats,
            numbers("gas", columns["gas"], "uint64", saturate=True),
            numbers("gas_used", columns["gas_used"], "uint64"),
            binary("input", columns["input"]),
            binary("output", columns["output"]),
            pa.array([error for of_block in rows for error in of_block.errors], pa.string()),
            pa.array([flag for of_block in rows for flag in of_block.successes], pa.bool_()),
            pa.array(np.full(int(counts.sum()), chain_id, np.uint64)),
            *(copied_column(name, blocks, counts) for name in optional),
        ],
        schema=schema_of("traces", optional),
    )


_HEX = ("from_", "to", "value", "gas", "gas_used", "input", "output")
_LONGEST_NAME = 40


def _named(column: str, names: Sequence[str | None]) -> pa.Array:
    """Short words of the node's own, each of them held once."""
    if any(len(name) > _LONGEST_NAME for name in set(names) if name is not None):
        raise BadHexError(column)
    return pa.array(names, pa.string())


def _owners(traces: Sequence[PlacedTraces]) -> tuple[list[int | None], pa.Array]:
    """Of each row: the place of its transaction, and its hash; null for rewards."""
    places: list[int | None] = []
    owners: list[int | None] = []
    hashes: list[str] = []
    for placed in traces:
        for place, count in zip(placed.places, placed.traces.counts, strict=True):
            places += [place] * count
            owners += [len(hashes) + place] * count
        rest = len(placed.traces) - sum(placed.traces.counts)
        places += [None] * rest
        owners += [None] * rest
        hashes += placed.hashes
    return places, binary("transaction_hash", hashes, _HASH).take(pa.array(owners, pa.int64()))
