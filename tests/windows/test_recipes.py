"""The recipes on a whole stack with Spark, over the recorded chain: every unit is compared with an independent DuckDB
query, before and after a unit of the chain is read again."""

import io
import json
from collections.abc import Iterator
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.feeds.support import FeedServer, reply
from tests.support.chain import RECORDING
from tests.support.postgres import run
from tests.support.real_stack import RealStack
from tests.windows.recipes import PRICES_URL, RECIPES, cell_text, recipe, shown_rows
from tracelake.adapters.s3.access import read_access
from tracelake.adapters.s3.object_store import S3ObjectStore
from tracelake.model.dag import UnitGrid
from tracelake.model.windows import Window, describe_window

pytestmark = [pytest.mark.system, pytest.mark.timeout(1500)]

LAST = 3_999
UNIT = 700
"""Blocks of a unit of the chain: no window begins or ends with one."""
HUSD, GRN = "5fbdb2315678afecb367f032d93f642f64180aa3", "e7f1725e7734ce288f8367e1bb143e90bb3f0512"
SWAP = "d78ad95fa46c994b6551d0da85fc275fe613ce37657fb8d5e3d130840159d822"
DAYS_BEFORE = 1
PRICES = {
    "2026-03-02": (("0.9991", 6), ("1.25", 18)),
    "2026-03-03": (("1.0004", 6), ("1.5", 18)),
    "2026-03-04": (("0.95", 6), ("0.75", 18)),
}
UNITS = """
    SELECT u.range_start, u.range_end, m.objects
    FROM datasets d JOIN dataset_units u ON u.dataset_uuid = d.dataset_uuid AND u.dataset_version = d.current_version
    JOIN manifests m USING (manifest_id) WHERE d.name = $1 ORDER BY 1"""
# Nothing is open: no task, no edge behind its events, no unit that the drain looks at now or when a task has ended.
UNSETTLED = """
    SELECT EXISTS (SELECT FROM tasks WHERE finished_at IS NULL)
        OR EXISTS (SELECT FROM edges WHERE position IS NOT NULL AND phase <> 'Parked')
        OR EXISTS (SELECT FROM pending_units WHERE due OR waits_for IS NOT NULL) AS unsettled"""
COUNTS = """
    SELECT replace(j.dag_name, 'recipe_', '') || '/' || j.name AS job, count(*) AS n
    FROM tasks t JOIN jobs j USING (job_id) GROUP BY 1"""

# What each dataset should hold for a unit from {start} to {end}: its columns in the order of their names in the query.
MOVES = "transfers t JOIN blocks b USING (block_number)"
IN_UNIT = "b.timestamp BETWEEN {start} AND {end}"
EXPECTED = {
    "hourly_token_flows": f"""
        SELECT to_timestamp({{start}}), lower(hex(t.token)), count(*), count(DISTINCT t.from_address), sum(t.amount_f64)
        FROM {MOVES} WHERE {IN_UNIT} GROUP BY t.token""",
    "active_addresses": f"""
        SELECT lower(hex(token)), count(DISTINCT address) FROM (
            SELECT t.token, unnest([t.from_address, t.to_address]) AS address FROM {MOVES} WHERE {IN_UNIT})
        WHERE hex(address) <> repeat('0', 40) GROUP BY token""",
    "top_holders": f"""
        SELECT row_number() OVER (ORDER BY balance DESC, holder), holder, balance FROM (
            SELECT lower(hex(holder)) AS holder, sum(amount) AS balance FROM (
                SELECT unnest([t.from_address, t.to_address]) AS holder,
                       unnest([-t.amount_string::HUGEINT, t.amount_string::HUGEINT]) AS amount
                FROM {MOVES} WHERE lower(hex(t.token)) = '{HUSD}' AND b.timestamp <= {{end}})
            WHERE hex(holder) <> repeat('0', 40) GROUP BY 1)
        QUALIFY row_number() OVER (ORDER BY balance DESC, holder) <= 10""",
    "new_addresses": """
        SELECT lower(hex(address)), min(block_number) FROM (
            SELECT unnest([from_address, to_address]) AS address, block_number FROM transfers)
        GROUP BY address HAVING min(block_number) BETWEEN {start} AND {end}""",
    "pool_volume": f"""
        SELECT lower(hex(address)), count(*), sum(word(data, 0) + word(data, 2)), sum(word(data, 1) + word(data, 3))
        FROM logs JOIN blocks b USING (block_number)
        WHERE lower(hex(topic0)) = '{SWAP}' AND {IN_UNIT} GROUP BY address""",
    "moving_average": f"""
        SELECT token, sum(n) / 7, count(*) FROM (
            SELECT lower(hex(t.token)) AS token, b.timestamp // 3600 AS hour, count(*) AS n
            FROM {MOVES} WHERE b.timestamp BETWEEN {{start}} - {DAYS_BEFORE} * 86400 AND {{end}} GROUP BY ALL)
        GROUP BY token""",
    "retention": f"""
        SELECT cohort, day({{start}}), count(*), count_if(list_contains(days, day({{start}}))) FROM (
            SELECT list(day(b.timestamp)) AS days, min(day(b.timestamp)) AS cohort
            FROM {MOVES} WHERE b.timestamp <= {{end}} AND t.standard = 'erc721' GROUP BY t.from_address)
        GROUP BY cohort""",
    "priced_volume": f"""
        SELECT token, usd, amount / pow(10, decimals), amount / pow(10, decimals) * usd::DOUBLE FROM (
            SELECT lower(hex(t.token)) AS token, sum(t.amount_string::HUGEINT)::DOUBLE AS amount
            FROM {MOVES} WHERE {IN_UNIT} AND lower(hex(t.token)) IN ('{HUSD}', '{GRN}') GROUP BY t.token)
        JOIN prices USING (token) WHERE prices.day = day({{start}})""",
}
DAY, HOUR = UnitGrid(by="time", grain="day"), UnitGrid(by="time", grain="hour")
GRIDS = {
    "hourly_token_flows": HOUR,
    "active_addresses": UnitGrid(by="time", grain="day", time_zone="Europe/Berlin"),
    "new_addresses": UnitGrid(by="blocks", size=1000),
}


class RecipeStack(RealStack):
    def tables(self, dataset: str) -> dict[Window, pa.Table]:
        """The rows of each unit of a dataset."""
        store = S3ObjectStore(read_access(self.home.object_store_file))

        async def read(objects: str) -> pa.Table:
            parts = []
            for file in json.loads(objects):
                body = await store.get(file["uri"], if_match=file["etag"])
                assert body is not None
                parts.append(pq.read_table(io.BytesIO(body)))
            return pa.concat_tables(parts)

        return {
            Window(row["range_start"], row["range_end"]): run(read(row["objects"])) for row in self.sql(UNITS, dataset)
        }

    def settle(self) -> None:
        self.wait_until(lambda: not self.sql(UNSETTLED)[0]["unsettled"], "all windows", timeout=1200)


def fit(name: str, text: str, prices_url: str) -> str:
    """The recipe for this chain and this test: units that fit no window, an average over two days, because it has
    only three whole ones, and prices of a server beside the test."""
    replacements = {
        "chain": ("config: {size: 1000}", f"config: {{size: {UNIT}}}"),
        "moving_average": ("lookback: 6", f"lookback: {DAYS_BEFORE}"),
        "priced_volume": (PRICES_URL, prices_url),
    }
    if name not in replacements:
        return text
    assert text.count(replacements[name][0]) == 1
    return text.replace(*replacements[name])


@pytest.fixture(scope="module")
def server() -> Iterator[FeedServer]:
    with FeedServer().running() as running:
        for day, prices in PRICES.items():
            rows = [
                {"token": token, "decimals": decimals, "usd": usd}
                for token, (usd, decimals) in zip((HUSD, GRN), prices, strict=True)
            ]
            running.on(f"/daily?date={day}", reply(json.dumps({"prices": rows})))
        yield running


@pytest.fixture(scope="module")
def stack(server: FeedServer) -> Iterator[RecipeStack]:
    settings = {
        "recorded_chain": str(RECORDING),
        "spark_master": "local[2]",
        "max_attempts": "2",
        "feed_hosts": f"default@127.0.0.1:{server.port}",
    }
    stack = RecipeStack(settings=settings)
    with stack.running():
        for name in RECIPES:
            stack.deploy(name, fit(name, recipe(name), f"{server.url}/daily"))
        stack.shell(f"trace trigger chain/backfill --range 0-{LAST}")
        stack.settle()
        yield stack


@pytest.fixture(scope="module")
def chain(stack: RecipeStack) -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    connection.sql("CREATE MACRO day(seconds) AS make_timestamp(seconds::BIGINT * 1000000)::DATE")
    for name in ("blocks", "transfers", "logs"):
        connection.register(name, pa.concat_tables(stack.tables(name).values()))
    # The i-th word of the data of a log, as a number; none of the chain's is larger.
    connection.sql("""
        CREATE MACRO word(data, i) AS ('0x' || hex(data)[(64 * i + 33)::BIGINT:(64 * i + 64)::BIGINT])::HUGEINT""")
    connection.sql("CREATE TABLE prices (day DATE, token TEXT, usd DECIMAL(20, 6), decimals INT)")
    for day, prices in PRICES.items():
        for token, (usd, decimals) in zip((HUSD, GRN), prices, strict=True):
            connection.execute("INSERT INTO prices VALUES (?, ?, ?, ?)", [day, token, usd, decimals])
    return connection


def compare(stack: RecipeStack, chain: duckdb.DuckDBPyConnection, dataset: str) -> None:
    ((first, last),) = chain.sql("SELECT min(timestamp), max(timestamp) FROM blocks").fetchall()
    units = stack.tables(dataset)
    for (start, end), table in units.items():
        rows = sorted(tuple(row.values()) for row in table.to_pylist())
        expected = sorted(chain.sql(EXPECTED[dataset].format(start=start, end=end)).fetchall())
        assert len(rows) == len(expected), (dataset, start)
        for row, expected_row in zip(rows, expected, strict=True):
            assert is_same(row, expected_row), (dataset, start, row, expected_row)
    grid = GRIDS.get(dataset, DAY)
    starts, ends = [start for start, _ in units], [end for _, end in units]
    assert starts[1:] == [end + 1 for end in ends[:-1]], stack.shell(f"trace why {dataset}", fine=(0, 1))
    if grid.by == "blocks":
        assert (starts[0], ends[-1]) == (0, LAST)
    else:
        assert starts[0] <= first, "it begins with the chain"
        assert ends[-1] < last <= ends[-1] + (ends[-1] - starts[-1] + 1), "and ends with the last window that is over"


def is_same(row: tuple[Any, ...], expected: tuple[Any, ...]) -> bool:
    return all(
        value == pytest.approx(other, rel=1e-9) if isinstance(value, float) else value == other
        for value, other in zip(row, expected, strict=True)
    )


@pytest.mark.parametrize("dataset", EXPECTED)
def test_each_unit_is_what_the_query_says(stack: RecipeStack, chain: duckdb.DuckDBPyConnection, dataset: str) -> None:
    compare(stack, chain, dataset)


def test_each_day_has_one_request(stack: RecipeStack, server: FeedServer) -> None:
    assert sorted(call.target for call in server.calls) == [f"/daily?date={day}" for day in PRICES]


def test_the_page_shows_rows_that_are_there(stack: RecipeStack) -> None:
    for shown in shown_rows():
        grid = GRIDS.get(shown.dataset, DAY)
        tables = {describe_window(grid, window): table for window, table in stack.tables(shown.dataset).items()}
        rows = [[cell_text(row[name]) for name in shown.columns] for row in tables[shown.unit].to_pylist()]
        for row in shown.rows:
            assert row in rows, (shown.dataset, rows[:5])


def test_a_rewrite_makes_each_unit_once(stack: RecipeStack, chain: duckdb.DuckDBPyConnection) -> None:
    """One unit of the chain is read again: every unit that is made from it is computed again, and none twice."""
    before = {row["job"]: row["n"] for row in stack.sql(COUNTS)}
    stack.shell(f"trace trigger chain/ingest --range {UNIT}-{2 * UNIT - 1}")
    stack.settle()
    after = {row["job"]: row["n"] for row in stack.sql(COUNTS)}
    ((start, end),) = chain.sql(
        f"SELECT min(timestamp), max(timestamp) FROM blocks WHERE block_number BETWEEN {UNIT} AND {2 * UNIT - 1}"
    ).fetchall()
    assert {job: number - before[job] for job, number in after.items() if number > before[job]} == {
        "chain/ingest": 1,
        "chain/decode": 1,
        "hourly_flows/flows": end // 3600 - start // 3600 + 1,
        "active_addresses/active": 2,  # it lies in the first two of three days
        "top_holders/balances": 3,
        "top_holders/top": 3,
        "new_addresses/newcomers": 4,
        "pool_volume/pools": 1,
        "pool_volume/swaps": 1,
        "pool_volume/volume": 3,
        "moving_average/average": 3,
        "retention/retention": 3,
        "priced_volume/volume": 2,
        "priced_volume/prices": 2,
        "priced_volume/value": 2,
    }
    for dataset in EXPECTED:
        compare(stack, chain, dataset)


def test_windows_are_shown_as_dates(stack: RecipeStack) -> None:
    """The unit of a task, of a dataset, and of what was read; and a date names a unit."""
    tasks = stack.trace("tasks --job recipe_top_holders/top")["tasks"]
    assert {task["window"] for task in tasks} == set(PRICES)
    assert "2026-03-03" in stack.shell("trace tasks --job recipe_priced_volume/prices")
    lineage = stack.shell("trace lineage top_holders --unit 2026-03-03")
    assert "1 unit" in lineage
    assert "from holder_balances 2026-03-03@" in lineage
    assert "2 units" in stack.shell("trace lineage top_holders --range 2026-03-03..2026-03-04")
    read = stack.trace("lineage moving_average --unit 2026-03-03")["units"][0]["read"]
    assert read[0]["window"].startswith("2026-03-02 00:00")
    assert "The window 2026-03-05 is not over" in stack.shell("trace why holder_balances")
    before = len(stack.tasks("recipe_top_holders", "top"))
    stack.shell("trace trigger recipe_top_holders/top --range 2026-03-04 --wait")
    assert len(stack.tasks("recipe_top_holders", "top")) == before + 1
    refusal = stack.shell("trace trigger recipe_top_holders/balances --range 2026-W10", fine=(1,))
    assert "expected a window like 2026-03-03, received 2026-W10" in refusal
