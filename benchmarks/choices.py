"""The measurements behind the decision records: HTTP stack, database driver, embedded Postgres.

`make bench-choices` installs the peers into `.bench-peers` and runs this. Subjects are interleaved (ABBA), so that a
busy machine touches all of them alike: read the ratios, not the rates. The last line is one JSON object.
"""

import asyncio
import json
import statistics
import sys
import tempfile
from collections.abc import Awaitable, Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import uvloop

from benchmarks.support import choices_driver as driver
from benchmarks.support import choices_http as http
from benchmarks.support import choices_postgres as postgres
from benchmarks.support.options import Scale, parse_scale, say
from benchmarks.support.stats import Series, interleave, ratio
from tracelake.stack.tls import ensure_tls

TRANSACTIONS = {1: 1000, driver.ROWS: 250}
"""Transactions a reading, by how many rows each changes."""
_PEERS = ("starlette", "fastapi", "psycopg")


def shown(series: Series) -> dict[str, object]:
    return {"median": round(series.median, 2), "spread": [round(value, 2) for value in series.spread]}


async def measure_http(rounds: int, requests: int) -> dict[str, object]:
    say("http: one validating JSON route over TLS, 32 connections, server in a process of its own")
    with tempfile.TemporaryDirectory(prefix="trace-bench-") as scratch:
        files = ensure_tls(Path(scratch), "127.0.0.1")
        servers = {name: http.Server(name, (files.ca, files.certificate, files.key)) for name in http.SUBJECTS}
        try:
            for server in servers.values():
                await server.check()
                await server.rate(requests)
                server.cpu_us.clear()
            subjects = {name: partial(server.rate, requests) for name, server in servers.items()}
            series = await interleave(subjects, rounds, say)
        finally:
            for server in servers.values():
                await server.close()
    peers = [name for name in http.SUBJECTS if name != "trace"]
    cpu = {name: Series(server.cpu_us) for name, server in servers.items()}
    return {
        "requests_per_s": {name: round(values.median) for name, values in series.items()},
        "trace_rate_over": {name: shown(ratio(series["trace"], series[name])) for name in peers},
        "server_cpu_us_per_request": {name: round(values.median) for name, values in cpu.items()},
        "server_cpu_over_trace": {name: shown(ratio(cpu[name], cpu["trace"])) for name in peers},
    }


async def measure_driver(rounds: int, share: float) -> dict[str, object]:
    say(f"driver: lock + compare-and-set in one transaction, {driver.CONNECTIONS} connections, fsync on")
    with postgres.Cluster() as cluster:
        await cluster.start()
        dsn = await cluster.migrated()
        work = driver.Work()
        await work.store(dsn)
        opens: dict[str, Callable[[str], Awaitable[driver.Session]]] = {
            "asyncpg": driver.AsyncpgSession.open,
            "psycopg": driver.PsycopgSession.open,
        }
        drivers = {
            name: driver.Driver([await open_one(dsn) for _ in range(driver.CONNECTIONS)], work)
            for name, open_one in opens.items()
        }
        result: dict[str, object] = {}
        try:
            for count, usual in TRANSACTIONS.items():
                transactions = int(usual * share)
                for each in drivers.values():
                    await each.rate(transactions, count)
                    each.cpu_us[count].clear()
                subjects = {name: partial(each.rate, transactions, count) for name, each in drivers.items()}
                series = await interleave(subjects, rounds, say)
                cpu = {name: Series(each.cpu_us[count]) for name, each in drivers.items()}
                result[f"rows_{count}"] = {
                    "transactions_per_s": {name: round(values.median) for name, values in series.items()},
                    "asyncpg_rate_over_psycopg": shown(ratio(series["asyncpg"], series["psycopg"])),
                    "client_cpu_us_per_transaction": {name: round(values.median) for name, values in cpu.items()},
                    "psycopg_cpu_over_asyncpg": shown(ratio(cpu["psycopg"], cpu["asyncpg"])),
                }
        finally:
            for each in drivers.values():
                await each.close()
    return result


async def measure_postgres(clusters: int) -> dict[str, object]:
    say("embedded Postgres: made, started, restarted, killed with kill -9 and started")
    lives = []
    for number in range(clusters):
        lives.append(await postgres.life())
        say(f"cluster {number + 1}/{clusters}: " + "  ".join(f"{name} {s:.2f} s" for name, s in lives[-1].items()))
    return {
        name: {
            "median_s": round(statistics.median(life[name] for life in lives), 2),
            "range_s": [round(min(life[name] for life in lives), 2), round(max(life[name] for life in lives), 2)],
        }
        for name in lives[0]
    }


async def measure(scale: Scale) -> dict[str, object]:
    rounds = scale.pick(10, 3, 1)
    share = scale.pick(1.0, 1.0, 0.1)
    return {
        "benchmark": "choices",
        "machine": postgres.machine(),
        "rounds": rounds,
        "http": await measure_http(rounds, int(3000 * share)),
        "driver": await measure_driver(rounds, share),
        "postgres": await measure_postgres(scale.pick(5, 2, 1)),
    }


def main() -> None:
    scale = parse_scale(__doc__)
    missing = [name for name in _PEERS if find_spec(name) is None]
    if missing:
        sys.exit(f"{', '.join(missing)} not installed here: run `make bench-choices`")
    # uvloop as in the product; psycopg runs on it too.
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        result = runner.run(measure(scale))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
