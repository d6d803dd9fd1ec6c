"""Files and rows of a table as one relation: one type of each column, exactly, whatever either side has."""

from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.query.engine.conftest import Engine
from tracelake.errors import TraceError
from tracelake.query.engine.exact_casts import is_exact
from tracelake.query.engine.requests import EngineColumn, Relation

LARGEST = 2**64 - 1
COLUMNS = (
    EngineColumn("block_number", "BIGINT"),
    EngineColumn("gas_used", "DECIMAL(20,0)"),
    EngineColumn("hash", "BLOB"),
    EngineColumn("amount", "BIGNUM"),
)
TYPES = [pa.int64(), pa.decimal128(20, 0), pa.binary(), pa.string()]


def file_rows(*numbers: int) -> pa.Table:
    """As an operator writes them."""
    return pa.table(
        {
            "block_number": pa.array(numbers, pa.uint32()),
            "gas_used": pa.array([LARGEST] * len(numbers), pa.uint64()),
            "hash": pa.array([b"f"] * len(numbers), pa.binary()),
            "amount": pa.array([str(2**200)] * len(numbers), pa.string()),
        }
    )


def table_rows(*numbers: int) -> pa.Table:
    """As Postgres sends them."""
    return pa.table(
        {
            "block_number": pa.array(numbers, pa.int64()),
            "gas_used": pa.array([Decimal(LARGEST)] * len(numbers), pa.decimal128(20, 0)),
            "hash": pa.array([b"t"] * len(numbers), pa.binary()),
            "amount": pa.array([str(2**200)] * len(numbers), pa.string()),
        }
    )


def store(directory: Path, files: list[pa.Table], rows: list[pa.Table], **parts: Any) -> Relation:
    parquet, arrow = [], []
    for number, table in enumerate(files):
        parquet.append(directory / f"{number}.parquet")
        pq.write_table(table, parquet[-1])
    for number, table in enumerate(rows):
        arrow.append(directory / f"{number}.arrow")
        with pa.ipc.new_file(arrow[-1], table.schema) as writer:
            writer.write_table(table)
    for path in (*parquet, *arrow):
        path.chmod(0o444)
    options: dict[str, Any] = {"columns": COLUMNS, "live": True} | parts
    return Relation(files=tuple(map(str, parquet)), rows=tuple(map(str, arrow)), **options)


@pytest.mark.parametrize(
    ("files", "rows", "numbers"),
    [
        ([file_rows(1, 2), file_rows(3)], [table_rows(4, 5)], [1, 2, 3, 4, 5]),
        ([file_rows(1, 2)], [], [1, 2]),
        ([], [table_rows(4)], [4]),
        ([file_rows(1)], [table_rows()], [1]),
        ([], [], []),
    ],
    ids=["both", "files", "table", "empty_table", "nothing"],
)
def test_types_are_those_of_the_table(
    engine: Engine, tmp_path: Path, files: list[pa.Table], rows: list[pa.Table], numbers: list[int]
) -> None:
    relations = {"blocks": store(tmp_path, files, rows)}
    table, _ = engine.ask("SELECT * FROM blocks ORDER BY block_number", relations=relations)
    assert table.schema.types == TYPES
    assert table["block_number"].to_pylist() == numbers
    assert set(table["gas_used"].to_pylist()) <= {Decimal(LARGEST)}
    assert set(table["amount"].to_pylist()) <= {str(2**200)}
    total = engine.value("SELECT sum(gas_used) FROM blocks", relations=relations)
    assert total == (LARGEST * len(numbers) if numbers else None)


def test_files_may_differ_and_lack_columns(engine: Engine, tmp_path: Path) -> None:
    """The dataset got a column, and another operator wrote wider integers."""
    early = file_rows(1).drop_columns(["hash"])
    wide = file_rows(2).set_column(0, "block_number", pa.array([2], pa.int64()))
    files = [early, wide, file_rows(3).append_column("more", pa.array(["x"]))]
    relations = {"blocks": store(tmp_path, files, [table_rows(4)])}
    rows = engine.rows("SELECT block_number, hash, gas_used::VARCHAR FROM blocks ORDER BY 1", relations=relations)
    assert rows == [(1, None, str(LARGEST)), (2, b"f", str(LARGEST)), (3, b"f", str(LARGEST)), (4, b"t", str(LARGEST))]


def test_units_and_where_select_rows_of_files_alone(engine: Engine, tmp_path: Path) -> None:
    """Those of the table were selected when they were read."""
    files = [file_rows(1, 2, 3), file_rows(4, 5).drop_columns(["hash"])]

    def numbers(name: str, **parts: Any) -> list[int]:
        (tmp_path / name).mkdir()
        relations = {"blocks": store(tmp_path / name, files, [table_rows(9)], **parts)}
        return [row[0] for row in engine.rows("SELECT block_number FROM blocks ORDER BY 1", relations=relations)]

    assert numbers("range", blocks=((2, 4),)) == [2, 3, 4, 9]
    assert numbers("value", where={"hash": "0x66"}) == [1, 2, 3, 9]
    assert numbers("null", where={"hash": ["0x66", None]}) == [1, 2, 3, 4, 5, 9]
    assert numbers("other", where={"hash": "0x00"}) == [9]


@pytest.mark.parametrize(
    ("column", "values", "code"),
    [
        ("gas_used", pa.array([1.5]), "query_type_unsupported"),
        ("gas_used", pa.array([Decimal("1.5")], pa.decimal128(20, 1)), "query_type_unsupported"),
        ("gas_used", pa.array([10**70], pa.decimal256(76, 0)), "query_type_unsupported"),
        ("hash", pa.array(["0x01"]), "query_type_unsupported"),
        ("block_number", pa.array([2**63], pa.uint64()), "query_value_invalid"),
        ("amount", pa.array(["1.5"]), "query_value_invalid"),
        ("amount", pa.array(["x"]), "query_value_invalid"),
    ],
)
def test_a_value_that_does_not_fit_is_refused(
    engine: Engine, tmp_path: Path, column: str, values: pa.Array, code: str
) -> None:
    table = file_rows(1)
    table = table.set_column(table.column_names.index(column), column, values)
    relations = {"blocks": store(tmp_path, [table], [table_rows(2)])}
    with pytest.raises(TraceError, match=code):
        engine.ask("SELECT * FROM blocks", relations=relations)


@pytest.mark.parametrize(
    ("source", "target", "exact"),
    [
        ("UINTEGER", "BIGINT", True),
        ("UBIGINT", "DECIMAL(20,0)", True),
        ("UBIGINT", "BIGNUM", True),
        ("DECIMAL(9,0)", "BIGINT", True),
        ("DECIMAL(9,2)", "DECIMAL(20,4)", True),
        ("FLOAT", "DOUBLE", True),
        ("TIMESTAMP", "TIMESTAMP WITH TIME ZONE", True),
        ("BIGINT", "DOUBLE", False),
        ("DOUBLE", "FLOAT", False),
        ("DOUBLE", "DECIMAL(20,0)", False),
        ("DOUBLE", "BIGNUM", False),
        ("DECIMAL(9,2)", "BIGINT", False),
        ("DECIMAL(9,2)", "DECIMAL(20,1)", False),
        ("DECIMAL(9,0)", "BIGNUM", False),
        ("TIMESTAMP_NS", "TIMESTAMP WITH TIME ZONE", False),
        ("VARCHAR", "BLOB", False),
    ],
)
def test_casts_that_round_are_not_exact(source: str, target: str, exact: bool) -> None:
    assert is_exact(source, target) is exact
