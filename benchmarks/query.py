"""What a query costs through the Query Service against bare DuckDB on the same files.

    make bench-query [ARGS="--quick | --smoke"]

A real stack: TLS, Dispatcher, gate, object store, cache, sandbox. Bare DuckDB is a new connection with the same views
for each query, in a process that runs already, with as many threads as an engine. Both take turns, ABBA. Point, group,
join and window queries go over `small` (1 million rows) and `large` (20 million). The last line is one JSON object:

- `overhead_p50_ms`: the median of the pairs' differences over `small`, with its quartiles in `overhead_spread`.
  `slow_ratio`: the median ratio of the pairs in which bare DuckDB took more than 200 ms, with `slow_ratio_spread`.
- `latency_ms`: p50 and p99 of each query, of the service and of bare DuckDB.
- `callers8_ratio`: queries per second of 8 callers of two orgs (`callers8_per_s`) over those of bare DuckDB in 8
  threads (`bare8_per_s`), in turns.
- `cold_ms`, `warm_ms`: a group query whose files the cache does not have, and has.
- `table_join_ms`: a Postgres table joined with `small`; `bare_table_join_ms`: the same with ADBC and DuckDB.
- `arrow_rows_per_s`: a result with all rows of `small`, as the Python client returns it; `bare_arrow_rows_per_s`: as
  DuckDB does.
- `files_ms`, `bare_files_ms`: a group query over `files` files of one dataset.
"""

import asyncio
import json
import os
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import adbc_driver_postgresql.dbapi

from benchmarks.support.options import Scale, parse_scale, say
from benchmarks.support.query_data import BareDuckDb, SampleDataset, query_text, write_labels, write_transfers
from benchmarks.support.query_stack import QueryStack
from benchmarks.support.stats import Series, percentile, ratio
from tracelake.client.query import QueryClient, read_table
from tracelake.model.buffered import quoted, table_name
from tracelake.wire.query import QueryRequest

KINDS = ("point", "group", "join", "window")
SLOW_MS = 200.0
CALLERS = 8
ORGS = ("first", "second")
SMALL, LARGE, SPLIT = "transfers_small", "transfers_large", "transfers_split"
TABLE_JOIN = (
    f"SELECT n.note, count(*) AS n, sum(t.amount) AS total FROM {SMALL} t JOIN notes n USING (holder)"
    " WHERE n.weight < 5000 GROUP BY 1 ORDER BY 1"
)
ARROW = f"SELECT block_number, holder, amount FROM {SMALL}"

Reading = Callable[[], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class QuerySizes:
    small_rows: int
    small_units: int
    large_rows: int
    large_units: int
    files: int
    small_rounds: int
    large_rounds: int
    other_rounds: int
    callers_rounds: int
    callers_seconds: float

    @classmethod
    def of(cls, scale: Scale) -> "QuerySizes":
        return scale.pick(
            cls(1_000_000, 10, 20_000_000, 40, 2_000, 30, 7, 7, 3, 4.0),
            cls(1_000_000, 10, 5_000_000, 10, 500, 15, 7, 7, 3, 2.0),
            cls(10_000, 2, 20_000, 2, 10, 1, 1, 1, 1, 0.2),
        )


@dataclass
class Pair:
    """Readings in milliseconds of the service and of bare DuckDB, in turns."""

    service: Series = field(default_factory=Series)
    bare: Series = field(default_factory=Series)

    async def read(self, number: int, service: Reading, bare: Reading) -> None:
        for series, work in [(self.service, service), (self.bare, bare)][:: 1 if number % 2 == 0 else -1]:
            began = time.perf_counter()
            await work()
            series.values.append((time.perf_counter() - began) * 1000)

    @property
    def differences(self) -> list[float]:
        return [a - b for a, b in zip(self.service.values, self.bare.values, strict=True)]

    def summarise(self) -> dict[str, float]:
        figures = {}
        for name, series in (("", self.service), ("bare_", self.bare)):
            figures[f"{name}p50"] = round(series.median, 1)
            figures[f"{name}p99"] = round(percentile(series.values, 0.99), 1)
        return figures


class QueryBenchmark:
    def __init__(self, stack: QueryStack, datasets: Sequence[SampleDataset], sizes: QuerySizes) -> None:
        self.stack = stack
        self.sizes = sizes
        self.bare = BareDuckDb(datasets, stack.settings.query_threads)
        self.client = stack.queries(ORGS[0])
        self.threads = ThreadPoolExecutor(CALLERS)
        self.figures: dict[str, Any] = {}

    async def close(self) -> None:
        self.threads.shutdown()
        await self.client.close()

    async def ask(self, sql: str) -> list[list[Any]]:
        return (await self.client.run(QueryRequest(sql=sql))).rows

    async def ask_bare(self, sql: str) -> list[list[Any]]:
        return await asyncio.get_running_loop().run_in_executor(self.threads, self.bare.rows, sql)

    async def compare(self, sql: str) -> None:
        """Both give the same answer; afterwards both are warm."""
        rows, expected = await self.ask(sql), await self.ask_bare(sql)
        assert [[str(value) for value in row] for row in rows] == [[str(value) for value in row] for row in expected]

    async def measure_latencies(self) -> None:
        sizes = self.sizes
        latencies: dict[str, dict[str, Pair]] = {}
        for size, relation, rows, rounds in (
            ("small", SMALL, sizes.small_rows, sizes.small_rounds),
            ("large", LARGE, sizes.large_rows, sizes.large_rounds),
        ):
            texts = {kind: query_text(kind, relation, rows) for kind in KINDS}
            pairs = latencies[size] = {kind: Pair() for kind in KINDS}
            for text in texts.values():
                await self.compare(text)
            for number in range(rounds):
                for kind, text in texts.items():
                    await pairs[kind].read(number, partial(self.ask, text), partial(self.ask_bare, text))
            for kind, pair in pairs.items():
                say(f"{size} {kind}: {pair.summarise()}")
        overhead = Series([value for pair in latencies["small"].values() for value in pair.differences])
        both = [
            (ours, bare)
            for pairs in latencies.values()
            for pair in pairs.values()
            for ours, bare in zip(pair.service.values, pair.bare.values, strict=True)
        ]
        slow = Series([ours / bare for ours, bare in both if bare > SLOW_MS])
        self.figures |= {
            "overhead_p50_ms": round(overhead.median, 1),
            "overhead_spread": overhead.spread,
            "slow_ratio": round(slow.median, 3) if slow.values else None,
            "slow_ratio_spread": slow.spread if slow.values else None,
            "slow_pairs": len(slow.values),
            "latency_ms": {
                size: {kind: pair.summarise() for kind, pair in pairs.items()} for size, pairs in latencies.items()
            },
        }

    async def measure_callers(self) -> None:
        texts = [query_text(kind, SMALL, self.sizes.small_rows) for kind in KINDS]
        clients = [self.stack.queries(ORGS[number % len(ORGS)], f"user{number}") for number in range(CALLERS)]
        for client in clients:
            await client.run(QueryRequest(sql=texts[0]))
        ours, bare = Series(), Series()

        async def call(client: QueryClient, number: int, until: float) -> int:
            count = 0
            while time.perf_counter() < until:
                await client.run(QueryRequest(sql=texts[(number + count) % len(texts)]))
                count += 1
            return count

        def call_bare(number: int, until: float) -> int:
            count = 0
            while time.perf_counter() < until:
                self.bare.rows(texts[(number + count) % len(texts)])
                count += 1
            return count

        async def rate(bare_calls: bool) -> float:
            loop, began = asyncio.get_running_loop(), time.perf_counter()
            until = began + self.sizes.callers_seconds
            calls: list[Awaitable[int]] = (
                [loop.run_in_executor(self.threads, call_bare, number, until) for number in range(CALLERS)]
                if bare_calls
                else [call(client, number, until) for number, client in enumerate(clients)]
            )
            counts: list[int] = await asyncio.gather(*calls)
            return sum(counts) / (time.perf_counter() - began)

        for number in range(self.sizes.callers_rounds):
            for bare_calls in (False, True) if number % 2 == 0 else (True, False):
                (bare if bare_calls else ours).values.append(await rate(bare_calls))
        for client in clients:
            await client.close()
        share = ratio(ours, bare)
        self.figures |= {
            "callers8_ratio": round(share.median, 3),
            "callers8_spread": share.spread,
            "callers8_per_s": round(ours.median, 1),
            "bare8_per_s": round(bare.median, 1),
        }
        say(f"8 callers: {ours.median:.1f}/s, bare {bare.median:.1f}/s")

    async def measure_cache(self) -> None:
        text = query_text("group", SMALL, self.sizes.small_rows)
        cold, warm = Series(), Series()
        for _ in range(self.sizes.other_rounds):
            self.stack.empty_cache()
            for series in (cold, warm):
                began = time.perf_counter()
                await self.ask(text)
                series.values.append((time.perf_counter() - began) * 1000)
        self.figures |= {
            "cold_ms": round(cold.median, 1),
            "cold_spread": cold.spread,
            "warm_ms": round(warm.median, 1),
            "warm_spread": warm.spread,
        }

    async def measure_table_join(self, table: str) -> None:
        dsn = self.stack.settings.resolve_data_dsn()

        def join() -> list[list[object]]:
            with adbc_driver_postgresql.dbapi.connect(dsn) as connection, connection.cursor() as cursor:
                cursor.execute(f"SELECT holder, note, weight FROM {table} WHERE weight < 5000")
                notes = cursor.fetch_arrow_table()
            return self.bare.join_table(TABLE_JOIN, {"notes": notes})

        async def join_bare() -> list[list[object]]:
            return await asyncio.get_running_loop().run_in_executor(self.threads, join)

        rows, expected = await self.ask(TABLE_JOIN), await join_bare()
        assert [[str(value) for value in row] for row in rows] == [[str(value) for value in row] for row in expected]
        pair = Pair()
        for number in range(self.sizes.other_rounds):
            await pair.read(number, lambda: self.ask(TABLE_JOIN), join_bare)
        self.figures |= _named("table_join", pair)

    async def measure_arrow(self) -> None:
        async def fetch() -> None:
            result = await self.client.fetch(QueryRequest(sql=ARROW, format="arrow"))
            table = await asyncio.to_thread(read_table, result)
            assert table.num_rows == self.sizes.small_rows

        async def fetch_bare() -> None:
            loop = asyncio.get_running_loop()
            assert await loop.run_in_executor(self.threads, self.bare.count_arrow_rows, ARROW) == self.sizes.small_rows

        pair = Pair()
        for number in range(self.sizes.other_rounds):
            await pair.read(number, fetch, fetch_bare)
        share = ratio(pair.bare, pair.service)
        self.figures |= {
            "arrow_rows_per_s": round(1000 * self.sizes.small_rows / pair.service.median),
            "bare_arrow_rows_per_s": round(1000 * self.sizes.small_rows / pair.bare.median),
            "arrow_ratio": round(share.median, 3),
            "arrow_ratio_spread": share.spread,
        }

    async def measure_files(self) -> None:
        text = query_text("group", SPLIT, self.sizes.small_rows)
        await self.compare(text)
        pair = Pair()
        for number in range(self.sizes.other_rounds):
            await pair.read(number, lambda: self.ask(text), lambda: self.ask_bare(text))
        self.figures |= {"files": self.sizes.files} | _named("files", pair)


def _named(name: str, pair: Pair) -> dict[str, Any]:
    say(f"{name}: {pair.summarise()}")
    return {
        f"{name}_ms": round(pair.service.median, 1),
        f"{name}_spread": pair.service.spread,
        f"bare_{name}_ms": round(pair.bare.median, 1),
    }


def make_data(directory: Path, sizes: QuerySizes) -> list[SampleDataset]:
    return [
        write_labels(directory),
        write_transfers(directory, SMALL, sizes.small_rows, sizes.small_units),
        write_transfers(directory, LARGE, sizes.large_rows, sizes.large_units),
        write_transfers(directory, SPLIT, sizes.small_rows, 1, sizes.files),
    ]


async def measure() -> dict[str, Any]:
    sizes = QuerySizes.of(parse_scale(__doc__))
    with tempfile.TemporaryDirectory(prefix="trace-bench-") as scratch, QueryStack() as stack:
        began = time.perf_counter()
        datasets = await asyncio.to_thread(make_data, Path(scratch), sizes)
        say(f"data: {sum(path.stat().st_size for item in datasets for path in item.files):,} bytes")
        for dataset in datasets:
            await stack.publish(ORGS[0], dataset)
            say(f"{dataset.name} is published after {time.perf_counter() - began:.0f} s")
        for dataset in datasets[:2]:
            await stack.publish(ORGS[1], dataset)
        table = quoted(table_name(await stack.publish_notes(ORGS[0])))
        say(f"prepared in {time.perf_counter() - began:.0f} s")
        benchmark = QueryBenchmark(stack, datasets, sizes)
        try:
            await benchmark.measure_latencies()
            await benchmark.measure_cache()
            await benchmark.measure_table_join(table)
            await benchmark.measure_arrow()
            await benchmark.measure_files()
            await benchmark.measure_callers()
        finally:
            await benchmark.close()
    return benchmark.figures | {"cores": os.cpu_count(), "rows": [sizes.small_rows, sizes.large_rows]}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(measure())))
