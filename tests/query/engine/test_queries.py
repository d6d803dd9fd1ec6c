"""Queries get their relations, exactly; results are exact, bounded, and exported in full."""

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.query.engine.conftest import Engine, relation_of, store
from tracelake.errors import TraceError
from tracelake.query.engine.requests import (
    MIB,
    EngineColumn,
    EngineLimits,
    EngineParameter,
    EngineQuery,
    FileFormat,
    Relation,
)
from tracelake.query.engine.results import TYPE_KEY
from tracelake.query.engine.server import _prepare

LARGEST = 2**256 - 1
TRANSFERS = pa.table(
    {
        "block_number": pa.array([1, 2, 3, 4], pa.uint32()),
        "token": pa.array([b"\x00\xaa", b"\xbb", b"\xbb", None], pa.binary()),
        "amount_string": pa.array([str(LARGEST), str(LARGEST), "1", None]),
        "amount_f64": pa.array([1.0, 2.0, 3.0, None]),
        "kind": pa.array(["move", "it's", "burn", None]),
    }
)


@pytest.fixture
def transfers(tmp_path: Path) -> Relation:
    return store(tmp_path / "transfers", TRANSFERS)


def test_reads_files_of_two_formats(engine: Engine, transfers: Relation, tmp_path: Path) -> None:
    for name, opener in (("file", pa.ipc.new_file), ("stream", pa.ipc.new_stream)):
        with opener(tmp_path / name, TRANSFERS.schema) as writer:
            writer.write_table(TRANSFERS)
    relations = {
        "transfers": transfers,
        "file": relation_of(tmp_path / "file", format=FileFormat.ARROW),
        "stream": relation_of(tmp_path / "stream", format=FileFormat.ARROW),
    }
    sql = """
        SELECT t.block_number, f.kind, s.token
        FROM transfers t JOIN file f USING (block_number) JOIN stream s USING (block_number) ORDER BY 1 DESC
    """
    assert engine.rows(sql, relations=relations) == [
        (4, None, None),
        (3, "burn", b"\xbb"),
        (2, "it's", b"\xbb"),
        (1, "move", b"\x00\xaa"),
    ]


@pytest.mark.parametrize(
    ("parts", "blocks"),
    [
        ({"blocks": ((2, 3),)}, [2, 3]),
        ({"blocks": ((1, 1), (3, 4))}, [1, 3, 4]),
        ({"blocks": ((1, 1), (4, 9)), "where": {"kind": ["it's", None]}}, [4]),
        ({"blocks": ()}, []),
        ({"where": {"kind": "it's"}}, [2]),
        ({"where": {"kind": ["move", None]}}, [1, 4]),
        ({"where": {"kind": None}}, [4]),
        ({"where": {"kind": []}}, []),
        ({"where": {"token": "0x00aa"}}, [1]),
        ({"where": {"token": ["0x00aa", "0xbb"]}, "blocks": ((1, 2),)}, [1, 2]),
        ({"where": {"block_number": [1, 4]}}, [1, 4]),
        ({"where": {"amount_f64": 2.0}}, [2]),
        ({"where": {"kind": "x') OR true --"}}, []),
    ],
)
def test_applies_the_unit_and_where(
    engine: Engine, transfers: Relation, parts: dict[str, Any], blocks: list[int]
) -> None:
    relation = Relation(files=transfers.files, **parts)
    rows = engine.rows("SELECT block_number FROM transfers ORDER BY 1", relations={"transfers": relation})
    assert [row[0] for row in rows] == blocks


def test_shows_declared_columns_alone(engine: Engine, transfers: Relation) -> None:
    columns = (EngineColumn("amount_string", "BIGNUM"), EngineColumn("block_number", "BIGINT"))
    relations = {'odd "name"': Relation(files=transfers.files, columns=columns)}
    table, _ = engine.ask('SELECT * FROM "odd ""name""" ORDER BY block_number LIMIT 1', relations=relations)
    assert table.to_pylist() == [{"amount_string": str(LARGEST), "block_number": 1}]
    with pytest.raises(TraceError, match="query_failed"):
        engine.ask('SELECT kind FROM "odd ""name"""', relations=relations)


@pytest.mark.parametrize("threads", [1, 2])
def test_recursion_over_files_ends(engine: Engine, transfers: Relation, threads: int) -> None:
    """DuckDB reads the files of each step in other threads: without any, it would wait for ever."""
    sql = """
        WITH RECURSIVE chain(n) AS (
            SELECT block_number FROM transfers WHERE block_number = 1
            UNION ALL SELECT t.block_number FROM chain c JOIN transfers t ON t.block_number = c.n + 1)
        SELECT max(n) FROM chain
    """
    limits = EngineLimits(threads=threads, deadline_seconds=30)
    assert engine.value(sql, relations={"transfers": transfers}, limits=limits) == 4


def test_relation_without_files_is_empty(engine: Engine) -> None:
    relation = Relation(files=(), columns=(EngineColumn("a", "BLOB"), EngineColumn("b", "DECIMAL(38,2)")))
    table, report = engine.ask("SELECT a, b FROM nothing", relations={"nothing": relation})
    assert (table.num_rows, report.rows) == (0, 0)
    assert table.schema.types == [pa.binary(), pa.decimal128(38, 2)]


def test_wide_integers_are_exact(engine: Engine, transfers: Relation) -> None:
    columns = (EngineColumn("amount_string", "BIGNUM"),)
    relations = {"transfers": Relation(files=transfers.files, columns=columns)}
    table, _ = engine.ask("SELECT sum(amount_string) AS total FROM transfers", relations=relations)
    assert table.column("total").to_pylist() == [str(2 * LARGEST + 1)]
    assert table.schema.field("total").metadata == {TYPE_KEY: b"BIGNUM"}
    assert engine.value("SELECT sum(i) FROM range(10) t(i)") == Decimal(45)
    assert engine.value("SELECT 340282366920938463463374607431768211455::UHUGEINT") == str(2**128 - 1)
    assert engine.value(f"SELECT [{{'a b': '{LARGEST}'::BIGNUM}}]") == [{"a b": str(LARGEST)}]
    assert engine.value("SELECT map {'k': 5::BIGNUM}") == [("k", "5")]


def test_wide_decimals_are_refused(engine: Engine, tmp_path: Path) -> None:
    """DuckDB would read them as doubles."""
    relation = store(tmp_path / "wide", pa.table({"a": pa.array([10**70], pa.decimal256(76, 0))}))
    with pytest.raises(TraceError, match="query_type_unsupported"):
        engine.ask("SELECT 1", relations={"wide": relation})


def test_types_of_results(engine: Engine) -> None:
    row = engine.rows(
        """SELECT 1.50::DECIMAL(38,2), 'ab'::BLOB, TIMESTAMPTZ '2026-01-02 03:04:05+02',
                  uuid '00000000-0000-0000-0000-000000000001', 'x'::ENUM('x'), '101'::BIT,
                  '{"a":1}'::JSON, NULL, 1 AS a, 2 AS a, '12:00:00+02'::TIMETZ"""
    )[0]
    assert row[:3] == (Decimal("1.50"), b"ab", datetime(2026, 1, 2, 1, 4, 5, tzinfo=UTC))
    assert row[3:] == ("00000000-0000-0000-0000-000000000001", "x", "101", '{"a":1}', None, 1, 2, "12:00:00+02")


@pytest.mark.parametrize(
    ("parameter", "text", "kind"),
    [
        (EngineParameter("BIGINT", "5"), "5", "BIGINT"),
        (EngineParameter("BIGNUM", str(LARGEST)), str(LARGEST), "BIGNUM"),
        (EngineParameter("DECIMAL(38,2)", "1.50"), "1.50", "DECIMAL(38,2)"),
        (EngineParameter("VARCHAR", "x' OR 1=1 --"), "x' OR 1=1 --", "VARCHAR"),
        (EngineParameter("BLOB", "00ff"), "\\x00\\xFF", "BLOB"),
        (EngineParameter("BOOLEAN", "true"), "true", "BOOLEAN"),
        (EngineParameter("DATE", "2026-01-02"), "2026-01-02", "DATE"),
        (EngineParameter("TIMESTAMPTZ", "2026-01-02T03:04:05Z"), "2026-01-02 03:04:05+00", "TIMESTAMP WITH TIME ZONE"),
        (EngineParameter("BIGINT", None), None, '"NULL"'),
    ],
    ids=str,
)
def test_parameters_are_typed_values(engine: Engine, parameter: EngineParameter, text: str | None, kind: str) -> None:
    row = engine.rows("SELECT $p::VARCHAR, typeof($p)", parameters={"p": parameter})[0]
    assert row == (text, kind)


def test_result_is_cut_at_its_limits(engine: Engine) -> None:
    sql = "SELECT i, repeat('x', 100) AS s FROM range(100_000) t(i) ORDER BY i"
    table, report = engine.ask(sql, limits=EngineLimits(result_rows=777))
    assert (table.num_rows, report.truncated) == (777, True)
    assert table.column("i").to_pylist() == list(range(777))
    table, report = engine.ask(sql, limits=EngineLimits(result_rows=100_000, result_bytes=MIB))
    assert report.truncated
    assert 1000 < table.num_rows < 12_000
    assert report.bytes <= MIB + 65536
    _, report = engine.ask("SELECT 1", limits=EngineLimits(result_rows=1))
    assert not report.truncated


@pytest.mark.parametrize("limit", [None, 1, 10])
def test_names_are_unique_with_and_without_a_limit(engine: Engine, limit: int | None) -> None:
    sql = 'SELECT 1 AS x, 2 AS x, 3 AS X_1, 4 AS "x y", 5::BIGNUM AS x ORDER BY 1;'
    table, _ = engine.ask(sql, limit=limit)
    assert table.schema.names == ["x", "x_1", "X_1_1", "x y", "x_2"]
    assert [column[0].as_py() for column in table.columns] == [1, 2, 3, 4, "5"]


def test_a_limit_keeps_the_order_and_takes_parameters(engine: Engine) -> None:
    sql = "SELECT i FROM range(100000) t(i) WHERE i >= CAST($p AS BIGINT) ORDER BY i DESC LIMIT 50 -- the end"
    table, _ = engine.ask(sql, limit=3, parameters={"p": EngineParameter("BIGINT", "99998")})
    assert table.column("i").to_pylist() == [99_999, 99_998]


def test_integers_of_more_than_38_digits_are_no_decimals(engine: Engine) -> None:
    for text in (str(10**38 - 1), str(-(10**38) + 1)):
        assert engine.value(f"SELECT '{text}'::HUGEINT") == Decimal(text)
        assert engine.value(f"SELECT [{{'a': '{text}'::HUGEINT}}]") == [{"a": Decimal(text)}]
    for text in (str(2**127 - 1), str(-(2**127)), str(10**38)):
        with pytest.raises(TraceError, match="query_value_invalid"):
            engine.ask(f"SELECT ['{text}'::HUGEINT]")
        assert engine.value(f"SELECT '{text}'::HUGEINT::BIGNUM") == text


def test_exports_keep_the_order(engine: Engine, tmp_path: Path) -> None:
    path = tmp_path / "export.parquet"
    sql = "SELECT i, i % 7 AS k FROM range(60_000) t(i) ORDER BY k DESC, i"
    table, _ = engine.ask(sql, limits=EngineLimits(result_rows=5, export_bytes=10 * MIB), export=str(path))
    expected = sorted(((i % 7, i) for i in range(60_000)), key=lambda row: (-row[0], row[1]))
    exported = pq.read_table(path)
    assert list(zip(exported["k"].to_pylist(), exported["i"].to_pylist(), strict=True)) == expected
    assert table.equals(exported.slice(0, 5).replace_schema_metadata(table.schema.metadata))


def test_a_result_at_its_border_is_whole(engine: Engine) -> None:
    for rows, truncated in ((9_999, False), (10_000, False), (10_001, True)):
        table, report = engine.ask(f"SELECT i FROM range({rows}) t(i)")
        assert (table.num_rows, report.truncated) == (min(rows, 10_000), truncated)
    limits = EngineLimits(result_rows=100_000, result_bytes=8192 * 8 + 8192 // 8)  # of one batch
    for rows, truncated in ((8192, False), (8193, True)):
        _, report = engine.ask(f"SELECT i FROM range({rows}) t(i)", limits=limits)
        assert (report.rows, report.truncated) == (8192, truncated)


def test_exports_all_rows(engine: Engine, tmp_path: Path) -> None:
    path = tmp_path / "export.parquet"
    sql = "SELECT i, i::BIGNUM AS n FROM range(50_000) t(i)"
    limits = EngineLimits(result_rows=10, export_bytes=10 * MIB)
    table, report = engine.ask(sql, limits=limits, export=str(path))
    assert (table.num_rows, report.truncated, report.exported_rows) == (10, True, 50_000)
    assert pq.read_table(path).num_rows == 50_000
    assert path.stat().st_mode & 0o777 == 0o600


def test_an_export_has_few_row_groups_and_is_empty_if_the_stream_has_all_rows(engine: Engine, tmp_path: Path) -> None:
    large, small = tmp_path / "large.parquet", tmp_path / "small.parquet"
    sql = "SELECT i FROM range(300_000) t(i)"
    limits = EngineLimits(result_rows=10, export_bytes=10 * MIB)
    engine.ask(sql, limits=limits, export=str(large))
    assert pq.ParquetFile(large).num_row_groups <= 3
    assert pq.read_table(large)["i"].to_pylist() == list(range(300_000))
    _, report = engine.ask("SELECT 1", limits=limits, export=str(small))
    assert (report.rows, report.exported_rows, small.stat().st_size) == (1, 0, 0)


def test_files_in_a_directory_are_visible_by_one_mount(engine: Engine, tmp_path: Path) -> None:
    directory = tmp_path / "inputs"
    for place in (directory, directory / "files"):
        place.mkdir()
        place.chmod(0o755)
    files = [directory / "files" / f"{number}.parquet" for number in range(300)]
    for number, path in enumerate(files):
        store(path, pa.table({"n": [number]}))
    relation = Relation(files=tuple(map(str, files)))
    assert engine.rows("SELECT count(*), sum(n) FROM r", relations={"r": relation}, directory=str(directory)) == [
        (300, sum(range(300)))
    ]
    query = EngineQuery(sql="SELECT 1", relations={"r": relation}, directory=str(directory))
    spec, inner = _prepare(query)
    assert [(mount.source, mount.target, mount.writable) for mount in spec.mounts] == [(str(directory), "/in", False)]
    assert inner.relations["r"].files[0] == "/in/files/0.parquet"
    with pytest.raises(ValueError, match="not in its directory"):
        _prepare(EngineQuery(sql="SELECT 1", relations={"r": relation}, directory=str(tmp_path / "other")))


def test_processes_that_share_a_database_have_random_numbers_of_their_own(engine: Engine) -> None:
    numbers = {engine.rows("SELECT random(), gen_random_uuid()")[0] for _ in range(3)}
    assert len(numbers) == 3


def test_a_query_leaves_nothing_in_the_database_that_the_next_one_starts_from(
    engine: Engine, transfers: Relation
) -> None:
    assert engine.value("SELECT count(*) FROM r", relations={"r": transfers}) == 4
    with pytest.raises(TraceError, match="query_failed"):
        engine.rows("SELECT * FROM r")


def test_export_is_bounded_and_removed(engine: Engine, tmp_path: Path) -> None:
    path = tmp_path / "export.parquet"
    limits = EngineLimits(export_bytes=100_000)
    with pytest.raises(TraceError, match="query_export_too_large"):
        engine.ask("SELECT gen_random_uuid()::VARCHAR FROM range(500_000)", limits=limits, export=str(path))
    assert not path.exists()
    path.write_text("exists")
    with pytest.raises(FileExistsError):
        engine.ask("SELECT 1", export=str(path))
    assert path.read_text() == "exists"


@pytest.mark.parametrize(
    ("sql", "code"),
    [
        ("SELECT 1 // 0", "query_division_by_zero"),
        ("SELECT 'x'::INTEGER", "query_value_invalid"),
        ("SELECT 9223372036854775807 + 1", "query_value_invalid"),
        ("SELECT * FROM other", "query_failed"),
        ("SELECT", "query_failed"),
        ("SELECT * FROM read_text('/in/../etc/passwd')", "query_failed"),
        ("SELECT * FROM read_csv('/etc/passwd')", "query_failed"),
        ("COPY (SELECT 1) TO '/tmp/x'", "query_failed"),
        ("SET threads = 8", "query_value_invalid"),
        ("ATTACH '/tmp/x.db'", "query_failed"),
        ("INSTALL httpfs", "query_failed"),
    ],
)
def test_failures_have_codes_without_engine_text(engine: Engine, sql: str, code: str) -> None:
    with pytest.raises(TraceError) as caught:
        engine.ask(sql)
    assert caught.value.code in (code, "query_failed")
    assert caught.value.message == caught.value.kind.message
    assert caught.value.details == {}


def test_types_cannot_smuggle_sql() -> None:
    for text in ("INT); DROP", "INT' ", "", "1", "INT;"):
        with pytest.raises(ValueError, match="not the name of a type"):
            EngineColumn("a", text)
        with pytest.raises(ValueError, match="not the name of a type"):
            EngineQuery(sql="SELECT 1", parameters={"p": EngineParameter(text, "1")})
