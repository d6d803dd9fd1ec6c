"""Small units have settings of their own, and a query is looked at once: rows and refusals stay what they were."""

import random
from collections.abc import Iterator
from decimal import Decimal
from itertools import pairwise
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.spark.sql.tables import BLOCKS, TRANSFERS
from tests.spark.support import BUCKET, Bench, plain_name
from tracelake.catalogue.context import NonRetryableError
from tracelake.ports import ObjectMeta
from tracelake.spark import sizes
from tracelake.spark.operators import spark_sql
from tracelake.spark.plan_gate import PassedQueries, check_analysed
from tracelake.spark.sizes import file_ranges, session_for_small

QUERIES = [
    "SELECT *, n * 2 AS twice, price / 3 AS third, -x AS y, upper(word) AS u FROM facts WHERE n > 3 OR n IS NULL",
    "SELECT word, count(*) AS n, sum(price) AS total, avg(price) AS mean, count(DISTINCT n) AS kinds, max(x) AS x"
    " FROM facts GROUP BY word",
    "SELECT k, rank() OVER (PARTITION BY word ORDER BY price DESC, k) AS place, lag(n) OVER (ORDER BY k) AS before,"
    " sum(price) OVER (PARTITION BY n ORDER BY k ROWS BETWEEN 2 PRECEDING AND CURRENT ROW) AS some FROM facts",
    "SELECT f.k, o.k AS other, f.price + o.price AS both FROM facts f JOIN others o ON f.n = o.n",
    "SELECT f.k, o.word FROM facts f LEFT JOIN others o ON f.n <=> o.n AND f.price > o.price",
    "SELECT f.k AS one, o.k AS other FROM facts f FULL JOIN others o ON f.word = o.word AND f.n = o.n",
    "SELECT k FROM facts WHERE n NOT IN (SELECT n FROM others WHERE n > 4)",
    "SELECT k FROM facts f WHERE EXISTS (SELECT 1 FROM others o WHERE o.n = f.n AND o.price < f.price)",
    "SELECT word, n, grouping_id() AS g, sum(price) AS total FROM facts GROUP BY CUBE (word, n)",
    "SELECT n FROM facts INTERSECT SELECT n FROM others UNION ALL SELECT n FROM others EXCEPT SELECT 3 AS n",
    "SELECT k, part FROM facts LATERAL VIEW explode(split(word, '')) p AS part",
    "WITH top AS (SELECT *, row_number() OVER (PARTITION BY word ORDER BY price DESC, k) AS place FROM facts)"
    " SELECT t.k, o.k AS other FROM top t JOIN others o ON o.n = t.n WHERE t.place <= 2",
    "SELECT x, count(*) AS n FROM facts GROUP BY x",
    "SELECT transform(array(n, k), e -> coalesce(e, 0) + 1) AS a, named_struct('p', price, 'w', word) AS s FROM facts",
    "SELECT CAST(timestamp_seconds(k) AS STRING) AS t, date_trunc('hour', timestamp_seconds(k * 1000)) AS h FROM facts",
]


def made(seed: int, rows: int) -> list[tuple[Any, ...]]:
    choose = random.Random(seed)
    odd = [float("nan"), 0.0, -0.0, float("inf"), None]
    return [
        (
            key,
            choose.choice([None, *range(9)]),
            choose.choice([None, "", "a", "bb", "ü"]),
            choose.choice([None, Decimal(choose.randint(-(10**20), 10**20)).scaleb(-6)]),
            choose.choice([*odd, float(choose.randint(-3, 3))]),
        )
        for key in range(rows)
    ]


@pytest.fixture(scope="module")
def sides(spark: SparkSession) -> Iterator[tuple[SparkSession, SparkSession]]:
    """Small and large, each with the same rows."""
    small = session_for_small(spark)
    for session, parts in ((small, 1), (spark, 3)):
        session.conf.set("spark.sql.ansi.enabled", "true")
        for name, seed, rows in (("facts", 1, 200), ("others", 2, 60)):
            frame = session.createDataFrame(
                made(seed, rows), "k int, n int, word string, price decimal(30,6), x double"
            )
            frame.repartition(parts).createOrReplaceTempView(name)
    yield small, spark
    for session in (small, spark):
        for name in ("facts", "others"):
            session.catalog.dropTempView(name)


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: query[:60])
def test_both_sizes_give_the_same_rows(sides: tuple[SparkSession, SparkSession], query: str) -> None:
    one, other = (sorted(str(row) for row in session.sql(query).collect()) for session in sides)
    assert one == other
    assert one, "there is something to compare"


def test_small_units_are_planned_for_one_task(sides: tuple[SparkSession, SparkSession]) -> None:
    small, large = (session.sql(QUERIES[3])._jdf.queryExecution().executedPlan().toString() for session in sides)
    assert "AdaptiveSparkPlan" not in small
    assert "*(" not in small, "nothing is compiled"
    assert "AdaptiveSparkPlan" in large


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Texts that Spark's own gate looked at."""
    seen: list[str] = []

    def look(frame: Any, views: Any) -> Any:
        seen.append("look")
        return check_analysed(frame, views)

    monkeypatch.setattr(spark_sql, "check_analysed", look)
    monkeypatch.setattr(spark_sql, "_passed", PassedQueries())
    return seen


def run(bench: Bench, query: str, *tables: pa.Table, blocks: tuple[int, int] = (0, 10)) -> None:
    bench.inputs.clear()
    for name, table in zip(("transfers", "blocks"), tables, strict=True):
        bench.add_input(name, table)
    bench.outputs = ["out"]
    bench.run("spark_sql", spark_sql.run, {"query": query}, blocks=blocks)


def test_a_query_is_looked_at_once_for_the_same_columns(bench: Bench, looks: list[str]) -> None:
    query = "SELECT t.amount FROM transfers t NATURAL JOIN blocks b WHERE t.amount > ${start}"
    run(bench, query, TRANSFERS, BLOCKS)
    run(bench, query, TRANSFERS.slice(1), BLOCKS, blocks=(1, 5))
    assert bench.table().num_rows == 3
    assert len(looks) == 1
    run(bench, query + " + 0", TRANSFERS, BLOCKS)
    assert len(looks) == 2
    # With these columns, the same text joins everything with everything.
    apart = BLOCKS.rename_columns(["number", *BLOCKS.column_names[1:]])
    with pytest.raises(NonRetryableError, match="without an equality"):
        run(bench, query, TRANSFERS, apart)
    with pytest.raises(NonRetryableError, match="without an equality"):
        run(bench, query, TRANSFERS, apart)
    assert len(looks) == 4, "what is refused is looked at again"


# --- large units whose rows stay where they are

MEGA = 2**20


@pytest.fixture
def large(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Three files of ten blocks each, with a row in every other block, and none that is small."""
    monkeypatch.setattr(sizes, "SMALL_BYTES", 0)
    monkeypatch.setattr(sizes, "_LEAST_BYTES", 1)
    monkeypatch.setattr(sizes, "BYTES_PER_FILE", 1)
    monkeypatch.setattr(sizes, "MOST_FILES", 4)
    bench.outputs = ["out"]
    return bench


def add_files(bench: Bench, *numbers: list[int]) -> None:
    files = []
    for index, blocks in enumerate(numbers):
        path = bench.root / "input.parquet"
        keys = [None if number % 7 == 0 else number // 3 for number in blocks]
        pq.write_table(pa.table({"block_number": blocks, "key": pa.array(keys, pa.int64())}), path)
        name = f"rows_{10 * index}_{10 * index + 9}.{uuid4().hex[:16]}.parquet"
        files.append(bench.transfer.upload(path, f"{BUCKET}rows/{uuid4()}/{name}"))
    bench.inputs = [("rows", files, None)]


def write(bench: Bench, query: str, **config: Any) -> list[tuple[str, list[int]]]:
    bench.run("spark_sql", spark_sql.run, {"query": query, **config}, blocks=(0, 29))
    return [(plain_name(path), pq.read_table(path)["block_number"].to_pylist()) for path in bench.files()]


def test_rows_that_stay_in_order_are_written_file_by_file(large: Bench) -> None:
    add_files(large, [0, 2, 4, 4], [10, 12], [28, 28])
    ours = write(large, "SELECT block_number, key + 1 AS next FROM rows WHERE block_number <> 2")
    assert ours == [("out_0_9.parquet", [0, 4, 4]), ("out_10_19.parquet", [10, 12]), ("out_20_29.parquet", [28, 28])]
    assert large.names() == ["_SUCCESS", "out_0_9.parquet", "out_10_19.parquet", "out_20_29.parquet"]
    ours = write(large, "SELECT * FROM rows", order_by=["block_number", "key"])
    assert [name for name, _ in ours] == ["out_0_9.parquet", "out_10_19.parquet", "out_20_29.parquet"]
    assert write(large, "SELECT * FROM rows WHERE block_number > 50") == [("out_0_29.parquet", [])]


@pytest.mark.parametrize(
    ("blocks", "query"),
    [
        (([0, 2], [10, 12], [28]), "SELECT 29 - block_number AS block_number FROM rows"),
        (([0, 2], [10, 12], [28]), "SELECT block_number + 1 AS block_number FROM rows"),
        (([8, 2], [10, 12], [28]), "SELECT block_number FROM rows"),
        (([2, 10], [8, 12], [28]), "SELECT block_number FROM rows"),
        (([2], [28], [12]), "SELECT block_number FROM rows"),
        # Larger files come first: two of these are read by one Spark task, in order, and the third by another.
        (([2] * 100_000, [5], [8] * 500), "SELECT block_number FROM rows"),
        (([5] * 30_000 + [4] * 90_000, [12], [28]), "SELECT block_number FROM rows"),  # more is to come when it is seen
    ],
)
def test_rows_that_move_are_sorted_and_share_no_block(large: Bench, blocks: Any, query: str) -> None:
    add_files(large, *blocks)
    ours = sorted(numbers for _, numbers in write(large, query))
    there = sorted(number for numbers in blocks for number in numbers)
    expected = {"29 -": lambda n: 29 - n, "block_number + 1": lambda n: n + 1}
    change = next((made for text, made in expected.items() if text in query), lambda n: n)
    assert [number for numbers in ours for number in numbers] == sorted(map(change, there))
    assert all(one[-1] < other[0] for one, other in pairwise(ours))


@pytest.mark.parametrize(
    "query", ["SELECT * FROM rows", "SELECT * FROM rows WHERE block_number IN (SELECT block_number FROM rows)"]
)
@pytest.mark.parametrize("size", ["large", "small"])
def test_rows_that_agree_in_unique_columns(
    large: Bench, monkeypatch: pytest.MonkeyPatch, query: str, size: str
) -> None:
    """In one file, in two of them, or in none: each is found, while they are written."""
    if size == "small":
        monkeypatch.setattr(sizes, "SMALL_BYTES", MEGA)
    add_files(large, [1, 3, 6], [11, 12], [22])
    found = sorted(number for _, numbers in write(large, query, unique=["key"]) for number in numbers)
    assert found == [1, 3, 6, 11, 12, 22]
    # 7 and 28 have no key: to `unique` these agree; 0 and 2 have the key 0; 10 and 11 the key 3
    for blocks, key in (
        (([1, 7], [12], [28]), "null"),
        (([1, 2], [12], [22]), "0"),
        (([1], [10, 11], [22]), "3"),
    ):
        add_files(large, *blocks)
        with pytest.raises(NonRetryableError, match="two rows of the result have the same key") as refused:
            write(large, query, unique=["key"])
        assert str(refused.value).endswith(f"which `unique` forbids, for example key = {key}")
        assert large.last is not None
        assert large.last.written == {}
        assert len(write(large, query, unique=["key", "block_number"])) > 0


def test_unique_columns_of_every_type_and_of_no_rows(large: Bench) -> None:
    add_files(large, [1, 3], [12], [22])
    kinds = (
        "CAST(key AS DECIMAL(38, 2)) AS a, X'00' AS b, timestamp_seconds(key) AS c, array(key) AS d,"
        " named_struct('x', key) AS e, CAST(key AS DOUBLE) AS f, CAST(key AS STRING) AS g, date_from_unix_date(1) AS h"
    )
    unique = list("abcdefgh")
    assert len(write(large, f"SELECT block_number, {kinds} FROM rows", unique=unique)) == 3
    write(large, f"SELECT block_number, {kinds} FROM rows WHERE key > 100", unique=unique)
    with pytest.raises(NonRetryableError) as refused:
        write(large, f"SELECT {kinds} FROM rows WHERE key = 0 UNION ALL SELECT {kinds} FROM rows", unique=unique)
    example = "a = 0.00, b = 0x00, c = 1970-01-01 00:00:00, d = [0], e = {0}, f = 0.0, g = 0, h = 1970-01-02"
    assert str(refused.value).endswith(f"for example {example}")


@pytest.mark.parametrize(
    ("names", "ranges"),
    [
        (("a_0_9", "a_10_19"), ((5, 9), (10, 14))),
        (("a_10_19", "a_0_9", "a_30_39"), ((5, 9), (10, 14))),
        (("a_0_9", "a_9_19"), ()),
        (("a_0_9", "other"), ()),
    ],
)
def test_which_blocks_files_hold(names: tuple[str, ...], ranges: Any) -> None:
    files = [ObjectMeta(f"s3://bucket/{name}.parquet", 10 * MEGA, "e") for name in names]
    assert file_ranges(files, 5, 14, 2) == ranges
    assert file_ranges(files, None, None, 2) == ()


def test_files_that_spark_cuts_and_files_that_are_many() -> None:
    def files(*megabytes: float) -> list[ObjectMeta]:
        each = enumerate(megabytes)
        return [ObjectMeta(f"s3://b/a_{n}_{n}.parquet", round(size * MEGA), "e") for n, size in each]

    assert len(file_ranges(files(60, 60, 60), 0, 9, 2)) == 3
    assert file_ranges(files(200, 200), 0, 9, 2) == ()
    assert file_ranges(files(100, 1, 1), 0, 9, 2) == ()
    assert file_ranges(files(*([0.5] * 50)), 0, 99, 2) == ()
    assert len(file_ranges(files(*([3.5] * 8)), 0, 9, 2)) == 8
