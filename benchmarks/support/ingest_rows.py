"""Whether two directories hold the same tables: as many rows, the same columns, the same blocks and places."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

_PLACES = {
    "blocks": ["block_number", "block_hash", "parent_hash"],
    "transactions": ["block_number", "transaction_index", "transaction_hash"],
    "logs": ["block_number", "log_index", "transaction_hash"],
}


def compare(ours: Path, cryo: Path) -> str:
    """What both have; raises if they differ. Every value is compared by tests/spark/evm/test_cryo.py."""
    told = []
    for table, places in _PLACES.items():
        left = _read([path for path in ours.rglob("*.parquet") if path.name.startswith(f"{table}_")], places)
        right = _read(list(cryo.rglob(f"*__{table}__*.parquet")), places)
        if left[0] != right[0]:
            raise RuntimeError(f"other columns of {table}: {left[0]} and {right[0]}")
        if not left[1].equals(right[1]):
            raise RuntimeError(f"other rows of {table}: {left[1].num_rows} and {right[1].num_rows}")
        told.append(f"{left[1].num_rows:,} {table} of {len(left[0])} columns")
    return ", ".join(told)


def _read(paths: list[Path], places: list[str]) -> tuple[list[str], pa.Table]:
    names = pq.read_schema(paths[0]).names
    tables = [pq.read_table(path, columns=places) for path in paths]
    plain = pa.schema([(name, pa.int64() if name.endswith(("number", "index")) else pa.binary()) for name in places])
    whole = pa.concat_tables([table.select(places).cast(plain) for table in tables])
    return names, whole.sort_by([(name, "ascending") for name in places[:2]]).combine_chunks()
