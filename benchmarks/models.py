"""Models by day and the recipes: what an update costs against a full one, with a long history, and against DuckDB.

    make bench-models [ARGS="--quick | --smoke"]

A real stack with Spark, Postgres and object store. Its input is a dataset of transfers in units of 200 blocks, 36 a
day. Three models have a unit a day: flows by token, running balances of holders (`self: previous`), and an average over
seven days (`lookback: 6`). An update is one more revision of a unit in the newest day: it recomputes that day in each
model. What is compared takes turns. The last line is one JSON object; figures are medians, `_spread` beside them their
quartiles.

- `incremental_gain`: seconds of computing all days of the models (`full_s`) over those of an update (`update_s`), from
  the call until nothing is open; `units` units in `days` days.
- `growth_ratio`: what the Dispatcher takes for an update with `long_units` stored units over `short_units`: commit of a
  unit, then wake-up, claim, list of files and commit of each model; no Spark. A fourth model reads the whole history,
  which is by definition all of it: its list of files is left out. `late_growth_ratio`: the same for a unit anywhere in
  the history and a model without running state. `growth_cpu_ratio`: CPU of the stack for all of that.
- `vs_duckdb`: for each size, seconds of our update over those of DuckDB in a process that runs already: it reads local
  files, not an object store, makes each model anew in full, and writes a file of each.
- `recipes_vs_duckdb`: seconds of our update over those of DuckDB, for the eight recipes of `examples/recipes` over the
  recorded chain. Our update (`update_s`) reads one unit of the chain again, 700 of 4,000 blocks, and everything that is
  made from it is computed again: `recomputed` tasks of one worker. `units` is the number of units of all recipes.
  DuckDB (`duckdb_s`) computes all recipes in full. It has the files of blocks, logs and transfers and a table of
  prices, so it neither calls a node or an API nor decodes logs. `full_ratio`: the same if the whole chain is read again
  (`full_s`).

What `recipes_vs_duckdb` means: DuckDB takes a fraction of a second for a chain this small, so the ratio is far above 1.
Each of our tasks has a lease, a token, a Spark job, a commit and lineage, and for so few rows `update_s` consists of
these. The ratio is their price where one script could compute everything again each time. `vs_duckdb` has the ratio for
larger data: the time of a full refresh grows with all rows, that of an update with the rows that it reads.
"""

import asyncio
import json
import random
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import uvloop

from benchmarks.support.ingest_chain import cpu_seconds_below
from benchmarks.support.models_data import DAY, UNITS_PER_DAY, FullRefresh, UnitFile, write_unit
from benchmarks.support.models_history import store_history
from benchmarks.support.models_recipe_stack import RecipeBenchStack, RecipeSizes, measure_recipes, serve_prices
from benchmarks.support.models_recipes import LAST_BLOCK, UNIT
from benchmarks.support.models_stack import DAILY, ClaimedTask, ModelCalls, ModelStack, model_dag
from benchmarks.support.options import Scale, parse_scale, say
from benchmarks.support.stats import Series, interleave, ratio
from tracelake.wire import routes
from tracelake.wire.jobs import BlockRange, TriggerRequest
from tracelake.wire.platform import JobReply
from tracelake.wire.task_calls import FilesRequest

LIVE, LATE = "live", "late"


@dataclass(frozen=True)
class ModelSizes:
    days: int
    rows: tuple[int, ...]
    """Rows of a unit, for each comparison with DuckDB."""
    pairs: int
    gain_pairs: int
    short_days: int
    growth: int
    """How many times the short history the long one is."""
    growth_rounds: int
    updates: int
    """In a round."""
    recipes: RecipeSizes


SIZES = (
    ModelSizes(30, (1_000, 20_000), 7, 3, 30, 100, 9, 20, RecipeSizes(LAST_BLOCK + 1, UNIT, 7, 3)),
    ModelSizes(30, (1_000,), 3, 1, 10, 100, 4, 10, RecipeSizes(LAST_BLOCK + 1, UNIT, 3, 1)),
    ModelSizes(2, (50,), 1, 1, 3, 2, 1, 2, RecipeSizes(100, 50, 1, 0)),
)


# --- growth: the Dispatcher alone


class GrowingHistory:
    """Updates of a stack whose models the benchmark claims itself."""

    def __init__(self, stack: ModelStack, calls: ModelCalls, jobs: dict[str, JobReply], units: int, file: Path) -> None:
        self._stack, self._calls, self._jobs, self._units, self._file = stack, calls, jobs, units, file
        self._next = units
        self._random = random.Random(1)
        self.cpu = Series()

    @classmethod
    async def open(cls, stack: ModelStack, days: int, file: Path) -> "GrowingHistory":
        calls = await stack.open_calls()
        jobs = {name: await calls.register(name) for name in (LIVE, LATE)}
        await stack.deploy(model_dag(LIVE, (*DAILY, "newcomers")), model_dag(LATE, ("flows",)))
        units = days * UNITS_PER_DAY
        history = cls(stack, calls, jobs, units, file)
        for name, models in ((LIVE, len(DAILY) + 1), (LATE, 1)):
            await history._update(name, UnitFile(0, file), models)
            started = time.perf_counter()
            await store_history(calls.state, name, units=units, units_per_day=UNITS_PER_DAY)
            say(f"stored {units:,} units of {name} in {time.perf_counter() - started:.0f} s")
        return history

    async def append_ms(self, updates: int) -> float:
        """A new unit at the end of the history, for all models; the median."""
        cpu = cpu_seconds_below(self._stack.pid)
        taken = Series()
        for _ in range(updates):
            taken.values.append(await self._update(LIVE, UnitFile(self._next, self._file), len(DAILY) + 1))
            self._next += 1
        self.cpu.values.append((cpu_seconds_below(self._stack.pid) - cpu) / updates)
        return taken.median * 1000

    async def rewrite_ms(self, updates: int) -> float:
        """A unit anywhere is made once more, for one model; the median."""
        taken = Series()
        for _ in range(updates):
            number = self._random.randrange(UNITS_PER_DAY, self._units - UNITS_PER_DAY)
            taken.values.append(await self._update(LATE, UnitFile(number, self._file), 1))
        return taken.median * 1000

    async def _update(self, name: str, unit: UnitFile, models: int) -> float:
        """Seconds of all calls, without the uploads of files."""
        calls, uploads = self._calls, 0.0
        started = time.perf_counter()
        claimed = await calls.claim_writer(self._jobs[name], unit)
        uploads += await self._upload_seconds(claimed)
        await calls.complete(claimed, unit)
        for model in await calls.receive(models):
            claimed = await calls.claim(model)
            task = claimed.reply.task
            assert task is not None
            for item in task.inputs:
                scope = item.scope
                if scope is None or scope.empty or scope.mode == "history":
                    continue
                body = FilesRequest(
                    **claimed.fence,
                    dataset_uuid=item.dataset_uuid,
                    dataset_version=item.dataset_version,
                    start=scope.start,
                    end=scope.end,
                )
                reply = await calls.clients.task.call(routes.LIST_INPUT_FILES, claimed.token, body)
                assert reply.units
            uploads += await self._upload_seconds(claimed)
            await calls.complete(claimed)
        return time.perf_counter() - started - uploads

    async def _upload_seconds(self, claimed: ClaimedTask) -> float:
        started = time.perf_counter()
        await asyncio.to_thread(self._stack.upload, claimed, self._file)
        return time.perf_counter() - started

    async def close(self) -> None:
        await self._calls.close()


async def measure_growth(short: ModelStack, long: ModelStack, sizes: ModelSizes, scratch: Path) -> dict[str, Any]:
    say("updates with a short and a long history ...")
    with duckdb.connect(":memory:") as connection:
        file = write_unit(connection, scratch, 0, 10).path
    histories = {
        "short": await GrowingHistory.open(short, sizes.short_days, file),
        "long": await GrowingHistory.open(long, sizes.short_days * sizes.growth, file),
    }
    for history in histories.values():
        await history.append_ms(3)
        await history.rewrite_ms(3)
        history.cpu.values.clear()

    def show(value: float) -> str:
        return f"{value:.1f} ms"

    appends = {name: lambda item=item: item.append_ms(sizes.updates) for name, item in histories.items()}
    rewrites = {name: lambda item=item: item.rewrite_ms(sizes.updates) for name, item in histories.items()}
    live = await interleave(appends, sizes.growth_rounds, say, show=show)
    late = await interleave(rewrites, sizes.growth_rounds, say, show=show)
    growth, late_growth = ratio(live["long"], live["short"]), ratio(late["long"], late["short"])
    cpu = ratio(histories["long"].cpu, histories["short"].cpu)
    for history in histories.values():
        await history.close()
    return {
        "growth_ratio": round(growth.median, 3),
        "growth_ratio_spread": growth.spread,
        "late_growth_ratio": round(late_growth.median, 3),
        "late_growth_ratio_spread": late_growth.spread,
        "growth_cpu_ratio": round(cpu.median, 3),
        "growth_cpu_ratio_spread": cpu.spread,
        "short_units": sizes.short_days * UNITS_PER_DAY,
        "long_units": sizes.short_days * sizes.growth * UNITS_PER_DAY,
        "short_update_ms": round(live["short"].median, 1),
        "long_update_ms": round(live["long"].median, 1),
    }


# --- models in Spark


class SparkModels:
    """Models that real workers compute, and the same in DuckDB."""

    def __init__(self, calls: ModelCalls, days: int, rows: int, scratch: Path) -> None:
        self._calls, self._days, self._rows = calls, days, rows
        self._inputs, outputs = scratch / "inputs", scratch / "outputs"
        self._inputs.mkdir(parents=True)
        outputs.mkdir()
        self._writer = duckdb.connect(":memory:", config={"threads": "2"})
        self._revision = 0
        self.peer = FullRefresh(self._inputs, outputs)

    async def fill(self, stack: ModelStack) -> None:
        """All units are there before a worker starts, so that each day is computed once."""
        self._job = await self._calls.register(LIVE)
        await stack.deploy(model_dag(LIVE, DAILY))
        units = [
            write_unit(self._writer, self._inputs, number, self._rows) for number in range(self._days * UNITS_PER_DAY)
        ]
        await self._calls.commit_all(self._job, units)
        say(f"committed {len(units):,} units")
        stack.start_worker()
        await self._calls.settle()

    async def update_s(self) -> float:
        """A unit in the newest day has other rows."""
        self._revision += 1
        number = self._days * UNITS_PER_DAY - 2
        unit = write_unit(self._writer, self._inputs, number, self._rows, self._revision)
        started = time.perf_counter()
        await self._calls.commit(self._job, unit)
        return await self._calls.settle() - started

    async def full_s(self) -> float:
        """All days of all models. Each day of the balances brings along the next."""
        started = time.perf_counter()
        for job in DAILY:
            for day in range(self._days):
                if job != "balances" or day == 0:
                    order = TriggerRequest(range=BlockRange(start=day * DAY, end=day * DAY + DAY - 1))
                    await self._calls.user.call(routes.TRIGGER, order, dag=LIVE, job=job)
        return await self._calls.settle() - started

    async def duckdb_s(self) -> float:
        return await asyncio.to_thread(self.peer.seconds, *DAILY)

    async def check_rows(self) -> None:
        """Both sides have as many rows of the newest day."""
        day = self._days - 1
        for model in DAILY:
            ours = await self._calls.state.fetchval(
                """SELECT (t.result->0->>'row_count')::bigint FROM tasks t JOIN dag_version_jobs v USING (job_id)
                   WHERE v.job_name = $1 AND t.unit_start = $2 ORDER BY t.finished_at DESC LIMIT 1""",
                model,
                day * DAY,
            )
            expected = self.peer.rows(model, day)
            if ours != expected:
                raise RuntimeError(f"{model} has {ours} rows of the newest day, and DuckDB {expected}")

    def close(self) -> None:
        self._writer.close()
        self.peer.close()


async def measure_models(
    stack: ModelStack, sizes: ModelSizes, rows: int, scratch: Path, *, gain: bool
) -> dict[str, Any]:
    calls = await stack.open_calls()
    models = SparkModels(calls, sizes.days, rows, scratch)
    total = sizes.days * UNITS_PER_DAY * rows
    say(f"{total:,} rows in {sizes.days} days ...")
    try:
        await models.fill(stack)
        await models.update_s()

        def show(value: float) -> str:
            return f"{value:.2f} s"

        compared = await interleave({"update": models.update_s, "duckdb": models.duckdb_s}, sizes.pairs, say, show=show)
        await models.check_rows()
        ratios = ratio(compared["update"], compared["duckdb"])
        figures: dict[str, Any] = {
            "vs_duckdb": {
                str(total): {
                    "ratio": round(ratios.median, 2),
                    "spread": ratios.spread,
                    "update_s": round(compared["update"].median, 2),
                    "duckdb_s": round(compared["duckdb"].median, 2),
                }
            }
        }
        if gain:
            pairs = await interleave(
                {"update": models.update_s, "full": models.full_s}, sizes.gain_pairs, say, show=show
            )
            gains = ratio(pairs["full"], pairs["update"])
            figures |= {
                "incremental_gain": round(gains.median, 1),
                "incremental_gain_spread": gains.spread,
                "update_s": round(pairs["update"].median, 2),
                "full_s": round(pairs["full"].median, 2),
                "units": sizes.days * UNITS_PER_DAY,
                "days": sizes.days,
            }
        return figures
    finally:
        models.close()
        await calls.close()


def main() -> None:
    scale = parse_scale(__doc__)
    sizes = scale.pick(*SIZES)
    if scale is Scale.SMOKE:
        say("smoke: the figures mean nothing")
    result: dict[str, Any] = {"benchmark": "models"}
    scratch = Path(tempfile.mkdtemp(prefix="trace-bench-"))
    try:
        with ModelStack() as short, ModelStack() as long:
            result |= uvloop.run(measure_growth(short, long, sizes, scratch))
        peers: dict[str, Any] = {}
        for number, rows in enumerate(sizes.rows):
            with ModelStack() as model_stack:
                figures = uvloop.run(measure_models(model_stack, sizes, rows, scratch / str(rows), gain=number == 0))
            peers |= figures.pop("vs_duckdb")
            result |= figures
        result["vs_duckdb"] = peers
        with serve_prices() as port, RecipeBenchStack(port) as stack:
            result["recipes_vs_duckdb"] = uvloop.run(measure_recipes(stack, port, sizes.recipes, scratch / "recipes"))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
