"""The recipes on a whole stack with Spark, over the recorded chain: every unit is compared with an independent DuckDB
query. One unit of the chain was read twice: the first time from a node that lacked transactions of each block."""

import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from benchmarks.support.models_recipes import (
    CHAIN_TABLES,
    PRICES,
    PRICES_PATH,
    QUERIES,
    RECIPES,
    prepare_connection,
    prices_replies,
)

from tests.feeds.support import FeedServer, reply
from tests.support.chain import serve_chain
from tests.support.postgres import run
from tests.support.real_stack import RealStack
from tests.windows.recipe_variants import (
    ANNOUNCED_LATE,
    HOURLY_AVERAGE,
    HOURLY_AVERAGE_QUERY,
    MORE_LOGS,
    NOT_ANNOUNCED,
    UNCOUNTED_SWAPS,
    fit_recipe_to_test,
    hourly_average,
)
from tests.windows.recipes import cell_text, shown_rows
from tracelake.adapters.s3.access import read_access
from tracelake.adapters.s3.object_store import S3ObjectStore
from tracelake.model.dag import UnitGrid
from tracelake.model.windows import Window, describe_window

pytestmark = [pytest.mark.system, pytest.mark.timeout(1500)]

UNIT = 730
"""Blocks of a unit of the chain. Some begin with an hour: the hour before is none of their business."""
LAST = 3 * UNIT - 1
"""Two whole days, and a few blocks of the third: each hour is a task, so more of them cost more than they show."""
DAYS = list(PRICES)[:2]
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

DAY, HOUR = UnitGrid(by="time", grain="day"), UnitGrid(by="time", grain="hour")
COMPARED = QUERIES | {HOURLY_AVERAGE: HOURLY_AVERAGE_QUERY}
GRIDS = {
    HOURLY_AVERAGE: HOUR,
    "hourly_token_flows": HOUR,
    "active_addresses": UnitGrid(by="time", grain="day", time_zone="Europe/Berlin"),
    "new_addresses": UnitGrid(by="blocks", size=1000),
}


PAGE = Path(__file__).parents[2] / "docs" / "operators" / "token_metadata.md"
(TOKENS_DOCUMENT,) = re.findall(r"^```yaml\n(name: .*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)


class RecipeStack(RealStack):
    first_tables: dict[str, dict[Window, pa.Table]]
    """Of the compared datasets, before the unit was read again."""
    reread: dict[str, int]
    """By job: its tasks since the unit was read again."""

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

    def count_tasks(self) -> dict[str, int]:
        return {row["job"]: row["n"] for row in self.sql(COUNTS)}

    def settle(self) -> None:
        self.wait_until(lambda: not self.sql(UNSETTLED)[0]["unsettled"], "all windows", timeout=1200)


@pytest.fixture(scope="module")
def server() -> Iterator[FeedServer]:
    with FeedServer().running() as running:
        for target, body in prices_replies().items():
            running.on(target, reply(body))
        yield running


@pytest.fixture(scope="module")
def stack(server: FeedServer) -> Iterator[RecipeStack]:
    settings = {"spark_master": "local[2]", "max_attempts": "2", "feed_hosts": f"default@127.0.0.1:{server.port}"}
    stack = RecipeStack(settings=settings)
    with serve_chain(LAST + 1) as node, stack.running():
        stack.home.rpc_file.write_text(f'default = "{node.url}"\n')
        node.reorganise(UNIT, changed=UNIT)
        for name in RECIPES:
            if name == "pool_volume":
                stack.deploy("more_logs", MORE_LOGS)
            stack.deploy(name, fit_recipe_to_test(name, f"{server.url}{PRICES_PATH}", UNIT))
        stack.deploy(HOURLY_AVERAGE, hourly_average())
        stack.deploy("tokens", TOKENS_DOCUMENT)
        stack.shell(f"trace trigger chain/backfill --range 0-{LAST}")
        stack.settle()
        stack.first_tables = {dataset: stack.tables(dataset) for dataset in COMPARED}
        before = stack.count_tasks()
        node.restore()
        stack.shell(f"trace trigger chain/ingest --range {UNIT}-{2 * UNIT - 1}")
        stack.settle()
        stack.reread = {job: number - before[job] for job, number in stack.count_tasks().items()}
        yield stack


@pytest.fixture(scope="module")
def chain(stack: RecipeStack) -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    prepare_connection(connection)
    for name in CHAIN_TABLES:
        dataset = "more_logs" if name == "logs" else name
        connection.register(name, pa.concat_tables(stack.tables(dataset).values()))
    return connection


def compare(stack: RecipeStack, chain: duckdb.DuckDBPyConnection, dataset: str) -> None:
    ((first, last),) = chain.sql("SELECT min(timestamp), max(timestamp) FROM blocks").fetchall()
    units = stack.tables(dataset)
    expected_units: dict[int, list[tuple[Any, ...]]] = {}
    for unit_start, *values in chain.sql(COMPARED[dataset]).fetchall():
        expected_units.setdefault(unit_start, []).append(tuple(values))
    for (start, _), table in units.items():
        rows = sorted_rows(table)
        expected = sorted(expected_units.get(start, []))
        assert len(rows) == len(expected), (dataset, start)
        for row, expected_row in zip(rows, expected, strict=True):
            assert is_same(row, expected_row), (dataset, start, row, expected_row)
    grid = GRIDS.get(dataset, DAY)
    starts, ends = [start for start, _ in units], [end for _, end in units]
    assert starts[1:] == [end + 1 for end in ends[:-1]], stack.shell(f"trace why {dataset}", fine=(0, 1))
    if grid.by == "blocks":
        assert (starts[0], ends[-1]) == (0, (LAST + 1) // 1000 * 1000 - 1)
    else:
        assert starts[0] <= first, "it begins with the chain"
        assert ends[-1] < last <= ends[-1] + (ends[-1] - starts[-1] + 1), "and ends with the last window that is over"


def sorted_rows(table: pa.Table) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in table.to_pylist())


def is_same(row: tuple[Any, ...], expected: tuple[Any, ...]) -> bool:
    return all(
        value == pytest.approx(other, rel=1e-9) if isinstance(value, float) else value == other
        for value, other in zip(row, expected, strict=True)
    )


@pytest.mark.parametrize("dataset", COMPARED)
def test_each_unit_is_what_the_query_says(stack: RecipeStack, chain: duckdb.DuckDBPyConnection, dataset: str) -> None:
    compare(stack, chain, dataset)


def test_some_swaps_are_of_no_pool_that_the_chain_has_announced(
    stack: RecipeStack, chain: duckdb.DuckDBPyConnection
) -> None:
    uncounted = dict(chain.sql(UNCOUNTED_SWAPS).fetchall())
    assert uncounted.keys() == {ANNOUNCED_LATE, NOT_ANNOUNCED}
    assert 0 < uncounted[ANNOUNCED_LATE] < uncounted[NOT_ANNOUNCED]
    pools = [row["pool"] for table in stack.tables("pool_volume").values() for row in table.to_pylist()]
    assert ANNOUNCED_LATE in pools
    assert NOT_ANNOUNCED not in pools


def test_averages_are_of_seven_hours_and_of_fewer_in_the_first_six(stack: RecipeStack) -> None:
    numbers = [set(table["days"].to_pylist()) for table in stack.tables(HOURLY_AVERAGE).values()]
    assert numbers[:6] == [{1}, {2}, {3}, {4}, {5}, {6}]
    assert {7} in numbers


def check_tokens(stack: RecipeStack) -> None:
    """Each is in the unit in which it occurs first, and in no other; amounts of later units find it there."""
    starts = range(0, LAST + 1, UNIT)
    first_blocks: dict[bytes, int] = {}
    for table in stack.tables("transfers").values():
        for token, number in zip(table["token"].to_pylist(), table["block_number"].to_pylist(), strict=True):
            first_blocks[token] = min(number, first_blocks.get(token, number))
    units = {window.start: table.to_pylist() for window, table in stack.tables("tokens").items()}
    assert list(units) == list(starts)
    for start, rows in units.items():
        expected = {token for token, number in first_blocks.items() if start <= number < start + UNIT}
        assert {row["token"] for row in rows} == expected
        assert [first_blocks[row["token"]] for row in rows] == [row["block_number"] for row in rows]
        assert {row["read_at_block"] for row in rows} <= {start + UNIT - 1}
    symbols = {row["symbol"]: row["decimals"] for rows in units.values() for row in rows}
    assert symbols == {"HUSD": 6, "GRN": 18, "BND": 24, "RELIC": None, None: None}
    amounts = {window.start: table for window, table in stack.tables("token_amounts").items()}
    assert list(amounts) == list(starts)
    assert all(table.num_rows for table in amounts.values())


def test_each_token_is_looked_up_once(stack: RecipeStack) -> None:
    check_tokens(stack)


def test_each_task_of_a_day_has_one_request(stack: RecipeStack, server: FeedServer) -> None:
    targets = [call.target for call in server.calls]
    assert {day: targets.count(f"{PRICES_PATH}?date={day}") for day in DAYS} == dict.fromkeys(DAYS, 2)
    assert len(targets) == 2 * len(DAYS)


def test_the_page_shows_rows_that_are_there(stack: RecipeStack) -> None:
    for shown in shown_rows():
        grid = GRIDS.get(shown.dataset, DAY)
        tables = {describe_window(grid, window): table for window, table in stack.tables(shown.dataset).items()}
        rows = [[cell_text(row[name]) for name in shown.columns] for row in tables[shown.unit].to_pylist()]
        for row in shown.rows:
            assert row in rows, (shown.dataset, rows[:5])


def test_a_rewrite_makes_each_unit_once(stack: RecipeStack, chain: duckdb.DuckDBPyConnection) -> None:
    """Every unit that is made from the unit is computed again, and none twice."""
    ((start, end),) = chain.sql(
        f"SELECT min(timestamp), max(timestamp) FROM blocks WHERE block_number BETWEEN {UNIT} AND {2 * UNIT - 1}"
    ).fetchall()
    ((last,),) = chain.sql("SELECT max(timestamp) FROM blocks").fetchall()
    assert {job: number for job, number in stack.reread.items() if number} == {
        "chain/ingest": 1,
        "chain/decode": 1,
        "hourly_flows/flows": end // 3600 - start // 3600 + 1,
        "hourly_average/average": min(end // 3600 + 6, last // 3600 - 1) - start // 3600 + 1,
        "more_logs/more": 1,
        "active_addresses/active": 2,  # it lies in both days
        "top_holders/balances": 2,
        "top_holders/top": 2,
        "new_addresses/newcomers": 2,
        "pool_volume/pools": 1,
        "pool_volume/swaps": 1,
        "pool_volume/volume": 2,
        "moving_average/average": 2,
        "retention/retention": 2,
        "priced_volume/volume": 2,
        "priced_volume/prices": 2,
        "priced_volume/value": 2,
        "tokens/lookup": 2,
        "tokens/amounts": 2,
    }


@pytest.mark.parametrize("dataset", COMPARED)
def test_a_rewrite_changes_rows(stack: RecipeStack, dataset: str) -> None:
    """So rows of before would not pass the comparison with the query."""
    tables = stack.tables(dataset)
    assert tables.keys() == stack.first_tables[dataset].keys()
    assert any(
        sorted_rows(table) != sorted_rows(stack.first_tables[dataset][window]) for window, table in tables.items()
    )


def test_windows_are_shown_as_dates(stack: RecipeStack) -> None:
    """The unit of a task, of a dataset, and of what was read; and a date names a unit."""
    tasks = stack.trace("tasks --job recipe_top_holders/top")["tasks"]
    assert {task["window"] for task in tasks} == set(DAYS)
    assert "2026-03-03" in stack.shell("trace tasks --job recipe_priced_volume/prices")
    lineage = stack.shell("trace lineage top_holders --unit 2026-03-03")
    assert "1 unit" in lineage
    assert "from holder_balances 2026-03-03@" in lineage
    assert "2 units" in stack.shell("trace lineage top_holders --range 2026-03-02..2026-03-03")
    read = stack.trace("lineage moving_average --unit 2026-03-03")["units"][0]["read"]
    assert read[0]["window"].startswith("2026-03-02 00:00")
    assert "The window 2026-03-04 is not over" in " ".join(stack.shell("trace why holder_balances").split())
    before = len(stack.tasks("recipe_top_holders", "top"))
    stack.shell("trace trigger recipe_top_holders/top --range 2026-03-03 --wait")
    assert len(stack.tasks("recipe_top_holders", "top")) == before + 1
    refusal = stack.shell("trace trigger recipe_top_holders/balances --range 2026-W10", fine=(1,))
    assert "expected a window like 2026-03-03, received 2026-W10" in refusal
