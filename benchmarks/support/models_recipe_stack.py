"""The recipes on a stack over the recorded chain, beside DuckDB that computes all of them anew from the same files."""

import asyncio
import json
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import asyncpg
import duckdb
import msgspec

from benchmarks.support.ingest_chain import RECORDING
from benchmarks.support.models_recipes import (
    CHAIN_TABLES,
    PRICES_PATH,
    QUERIES,
    RECIPES,
    fit_recipe,
    prepare_connection,
    prices_replies,
)
from benchmarks.support.options import say
from benchmarks.support.stack import BenchStack
from benchmarks.support.stats import interleave, ratio
from tracelake.adapters.s3.access import read_access
from tracelake.adapters.s3.object_store import S3ObjectStore
from tracelake.client.stack import LocalStack
from tracelake.client.user import UserClient
from tracelake.settings.home import Home
from tracelake.wire import routes
from tracelake.wire.jobs import BlockRange, TriggerRequest

_SECONDS = 1200.0
_LOOK_SECONDS = 0.02
_UNSETTLED = """
    SELECT EXISTS (SELECT FROM tasks WHERE finished_at IS NULL)
        OR EXISTS (SELECT FROM edges WHERE position IS NOT NULL AND phase <> 'Parked')
        OR EXISTS (SELECT FROM pending_units WHERE due OR waits_for IS NOT NULL)"""
_UNITS = """
    SELECT u.range_start, m.objects, (SELECT (r->>'row_count')::bigint FROM json_array_elements(t.result) r
                                      WHERE (r->>'dataset_uuid')::uuid = d.dataset_uuid) AS rows
    FROM datasets d JOIN dataset_units u ON u.dataset_uuid = d.dataset_uuid AND u.dataset_version = d.current_version
    JOIN manifests m USING (manifest_id) JOIN tasks t ON t.task_id = m.task_id WHERE d.name = $1 ORDER BY 1"""


@dataclass(frozen=True)
class RecipeSizes:
    blocks: int
    unit: int
    """Blocks of a unit of the chain. The second one is read again."""
    pairs: int
    full_pairs: int
    """Of reading the whole chain again on our side."""


class RecipeBenchStack(BenchStack):
    """With one worker, and the product's own settings."""

    workers = True

    def __init__(self, prices_port: int) -> None:
        super().__init__(
            TRACE_WORKERS="1",
            TRACE_RECORDED_CHAIN=str(RECORDING),
            TRACE_FEED_HOSTS=f"default@127.0.0.1:{prices_port}",
        )


class _PricesHandler(BaseHTTPRequestHandler):
    replies = prices_replies()

    def do_GET(self) -> None:
        body = self.replies.get(self.path, "").encode()
        self.send_response(200 if body else 404)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any, **kwargs: Any) -> None:
        """Keeps standard error for the progress of the benchmark."""


@contextmanager
def serve_prices() -> Iterator[int]:
    """The API that `priced_volume` reads; yields its port."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _PricesHandler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


class RecipeRefresh:
    """DuckDB in this process: all recipes in full, files in, a file of each out."""

    def __init__(self, inputs: Path, outputs: Path) -> None:
        self._inputs, self._outputs = inputs, outputs
        outputs.mkdir()
        self._connection = duckdb.connect(":memory:", config={"threads": "2"})
        prepare_connection(self._connection)
        for table in CHAIN_TABLES:
            source = f"SELECT * FROM read_parquet('{inputs / table}/*.parquet')"
            self._connection.execute(f"CREATE VIEW {table} AS {source}")

    def seconds(self) -> float:
        started = time.perf_counter()
        for dataset, query in QUERIES.items():
            path = self._outputs / f"{dataset}.parquet"
            self._connection.execute(f"COPY ({query}) TO '{path}' (FORMAT parquet)").fetchall()
        return time.perf_counter() - started

    def rows_of_units(self, dataset: str) -> dict[int, int]:
        """As the last refresh wrote them."""
        path = self._outputs / f"{dataset}.parquet"
        query = f"SELECT unit_start, count(*) FROM '{path}' GROUP BY 1"
        return dict(self._connection.execute(query).fetchall())

    def transfers(self) -> int:
        """Rows of the input that most recipes read."""
        row = self._connection.execute("SELECT count(*) FROM transfers").fetchone()
        assert row is not None
        return int(row[0])

    def close(self) -> None:
        self._connection.close()


class RecipeRun:
    """The recipes deployed on a stack, and orders to compute some or all of them again."""

    def __init__(
        self,
        stack: RecipeBenchStack,
        user: UserClient,
        state: "asyncpg.Connection[asyncpg.Record]",
        sizes: RecipeSizes,
    ) -> None:
        self._stack, self._user, self._state, self._sizes = stack, user, state, sizes
        self.computed = 0
        """Tasks of the last order."""

    async def fill(self, prices_port: int) -> None:
        url = f"http://127.0.0.1:{prices_port}{PRICES_PATH}"
        for name in RECIPES:
            text = fit_recipe(name, url, self._sizes.unit)
            dag = text.split("\nname: ", 1)[1].split("\n", 1)[0]
            await self._user.call(routes.DEPLOY, text.encode(), dag=dag, activate=True)
        await self._compute("backfill", [(0, self._sizes.blocks - 1)])

    async def update_s(self) -> float:
        """One unit of the chain is read again."""
        return await self._compute("ingest", self._units()[1:2])

    async def full_s(self) -> float:
        """All units of the chain are read again."""
        return await self._compute("ingest", self._units())

    def _units(self) -> list[tuple[int, int]]:
        blocks, unit = self._sizes.blocks, self._sizes.unit
        return [(start, min(start + unit, blocks) - 1) for start in range(0, blocks, unit)]

    async def _compute(self, job: str, ranges: Iterable[tuple[int, int]]) -> float:
        """Seconds from the first trigger of a job of the chain until nothing is open."""
        before = await self._state.fetchval("SELECT count(*) FROM tasks")
        started = time.perf_counter()
        for start, end in ranges:
            order = TriggerRequest(range=BlockRange(start=start, end=end))
            await self._user.call(routes.TRIGGER, order, dag="chain", job=job)
        async with asyncio.timeout(_SECONDS):
            while await self._state.fetchval(_UNSETTLED):
                await asyncio.sleep(_LOOK_SECONDS)
        seconds = time.perf_counter() - started
        failed = await self._state.fetchval("SELECT count(*) FROM tasks WHERE status <> 'Completed'")
        if failed:
            raise RuntimeError(f"{failed} tasks did not complete; see the log of the worker")
        self.computed = await self._state.fetchval("SELECT count(*) FROM tasks") - before
        if not self.computed:
            raise RuntimeError(f"triggers of {job} made no task")
        return seconds

    async def download(self, directory: Path) -> None:
        """The files of the chain's datasets as they are. A unit that is read again gets the same rows."""
        store = S3ObjectStore(read_access(Home(self._stack.home).object_store_file))
        for table in CHAIN_TABLES:
            (directory / table).mkdir(parents=True)
            for row in await self._state.fetch(_UNITS, table):
                for number, file in enumerate(json.loads(row["objects"])):
                    body = await store.get(file["uri"], if_match=file["etag"])
                    assert body is not None
                    (directory / table / f"{row['range_start']:06}-{number}.parquet").write_bytes(body)

    async def check_rows(self, refresh: RecipeRefresh) -> dict[str, int]:
        """Each unit has as many rows on both sides; returns the units of each dataset."""
        units: dict[str, int] = {}
        for dataset in QUERIES:
            rows = {row["range_start"]: row["rows"] for row in await self._state.fetch(_UNITS, dataset)}
            expected = refresh.rows_of_units(dataset)
            for start, number in rows.items():
                if number != expected.get(start, 0):
                    raise RuntimeError(f"{dataset} has {number} rows from {start} on, and DuckDB {expected.get(start)}")
            units[dataset] = len(rows)
        return units


async def measure_recipes(
    stack: RecipeBenchStack, prices_port: int, sizes: RecipeSizes, scratch: Path
) -> dict[str, Any]:
    say(f"the recipes over {sizes.blocks:,} blocks ...")
    user = UserClient.of_stack(msgspec.convert(stack.info, LocalStack))
    state = await asyncpg.connect(stack.state_dsn)
    run = RecipeRun(stack, user, state, sizes)
    try:
        await run.fill(prices_port)
        say(f"computed {run.computed:,} units of all jobs")
        await run.download(scratch / "chain")
        refresh = RecipeRefresh(scratch / "chain", scratch / "refreshed")

        async def duckdb_s() -> float:
            return await asyncio.to_thread(refresh.seconds)

        def show(value: float) -> str:
            return f"{value:.3f} s"

        if sizes.pairs > 1:  # the first reading of each is slower
            await duckdb_s()
            await run.update_s()
        compared = await interleave({"update": run.update_s, "duckdb": duckdb_s}, sizes.pairs, say, show=show)
        ratios = ratio(compared["update"], compared["duckdb"])
        units = await run.check_rows(refresh)
        figures = {
            "ratio": round(ratios.median, 1),
            "spread": ratios.spread,
            "update_s": round(compared["update"].median, 2),
            "duckdb_s": round(compared["duckdb"].median, 3),
            "recomputed": run.computed,
            "units": sum(units.values()),
            "blocks": sizes.blocks,
            "transfers": refresh.transfers(),
        }
        if sizes.full_pairs:
            full = await interleave({"full": run.full_s, "duckdb": duckdb_s}, sizes.full_pairs, say, show=show)
            full_ratios = ratio(full["full"], full["duckdb"])
            await run.check_rows(refresh)
            figures |= {
                "full_ratio": round(full_ratios.median, 1),
                "full_ratio_spread": full_ratios.spread,
                "full_s": round(full["full"].median, 2),
                "full_recomputed": run.computed,
            }
        refresh.close()
        return figures
    finally:
        await state.close()
        await user.close()
