"""The same blocks read by cryo: names, types and values of every column, field by field.

Runs where cryo has an environment of its own (it brings dependencies that do not go with ours): the one that
`make setup-peers` makes, or whose Python `TRACE_CRYO_PYTHON` names.

    make setup-peers && .venv/bin/python -m pytest tests/spark/evm/test_cryo.py
"""

import os
import subprocess
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.spark.evm.support import pool_of
from tests.support.chain import serve_chain
from tracelake.spark.evm.chunk import stretches
from tracelake.spark.evm.tables import SCHEMAS

MADE = Path(__file__).parents[3] / ".venv-peers" / "bin" / "python"
PYTHON = os.environ.get("TRACE_CRYO_PYTHON") or (str(MADE) if MADE.exists() else None)
BLOCKS = 600
ORDER = {
    "blocks": ["block_number"],
    "transactions": ["block_number", "transaction_index"],
    "logs": ["block_number", "log_index"],
}
SCRIPT = """
import sys, cryo
url, blocks, folder = sys.argv[1:]
for table, extra in (("blocks", ["parent_hash"]), ("transactions", []), ("logs", [])):
    options = {"include_columns": extra} if extra else {}
    read = cryo.collect(table, blocks=["0:" + blocks], rpc=url, hex=False, output_format="polars", **options)
    read.write_parquet(folder + "/" + table + ".parquet")
"""


@pytest.mark.skipif(PYTHON is None, reason="cryo is not installed: make setup-peers")
def test_cryo_reads_the_same(tmp_path: Path) -> None:
    assert PYTHON is not None
    with serve_chain(BLOCKS) as chain:
        subprocess.run([PYTHON, "-c", SCRIPT, chain.url, str(BLOCKS), str(tmp_path)], check=True, capture_output=True)
        pool = pool_of(chain)
        read = list(stretches(pool, 0, BLOCKS - 1, list(SCHEMAS)))
        pool.close()
    for table, schema in SCHEMAS.items():
        ours = pa.concat_tables([stretch.tables[table] for stretch in read])
        theirs = pq.read_table(tmp_path / f"{table}.parquet").sort_by([(name, "ascending") for name in ORDER[table]])
        assert theirs.column_names == schema.names
        for name in schema.names:
            kind = theirs.schema.field(name).type
            assert schema.field(name).type in (kind, _small(kind)), name
            assert ours[name].to_pylist() == theirs[name].to_pylist(), name


def _small(kind: pa.DataType) -> pa.DataType:
    """polars writes the large variants of Arrow's types; in the file they are the same."""
    return {pa.large_binary(): pa.binary(), pa.large_string(): pa.string()}.get(kind, kind)
