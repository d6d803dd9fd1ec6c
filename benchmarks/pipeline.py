"""The demo's DAG on a warm stack against one script with cryo and DuckDB that makes the same tables.

    make bench-pipeline [ARGS="--quick | --smoke | --profile | --times 100"]

Both read the same chain from the same replay server, a process of its own that answers without compression: the
recorded chain of 4,000 blocks, and the same repeated 10 and 100 times. Ours is a stack as `trace up` starts it, with
its default settings: ingest, check, decode, three queries, files in the object store, a table in Postgres; measured
from the trigger to the last row. Both have run before, but not on the longest chain, where a run takes minutes. The
rows of both are compared. Readings are interleaved. The last line is one JSON object:

- `vs_script_ratio`: our seconds over the script's, the median of pairs, with quartiles; `_10x` and `_100x`: on the
  longer chains, whose units have `SIZES` blocks and whose summaries are by `GRAINS`.
- `cpu_ratio`: CPU seconds of all our processes over those of the script.

`--profile` prints for each job what an attempt takes and what Spark does for it, and CPU seconds by program; then, from
the operators alone in a session of this process (`support/pipeline_profile.py`), planning, compiled code, Python
processes, Arrow data, fetch, Parquet and upload of each, which the JSON has as `profile`.
"""

import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks.support.ingest_peer import find_cryo
from benchmarks.support.options import Scale, make_parser, parse, say
from benchmarks.support.pipeline_profile import profile_operators
from benchmarks.support.pipeline_stack import ChainCut, PipelineStack
from benchmarks.support.stats import Series, ratio

BLOCKS = 4000
SIZES = {1: 2000, 10: 10_000, 100: 50_000}
"""Blocks of a unit, by repetitions of the chain."""
GRAINS = {1: "day", 10: "week", 100: "month"}
"""Windows of the summary, likewise: the chain has 88 hours, so it has 4, 6 or 13 of them."""


@dataclass(frozen=True)
class Load:
    pairs: dict[int, int]
    """By repetitions of the chain."""
    warm: dict[int, int]
    """Pairs before the measured ones, by repetitions of the chain."""
    blocks: int = BLOCKS
    profile_rounds: int = 7


LOADS = (
    Load({1: 7, 10: 3, 100: 1}, {1: 3, 10: 1, 100: 0}),
    Load({1: 3, 10: 1}, {1: 2, 10: 1}),
    Load({1: 1}, {1: 0}, 100, 1),
)


class Child:
    """A process that takes lines and answers them."""

    def __init__(self, command: list[str]) -> None:
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)

    def answer(self, order: dict[str, Any] | None = None) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        if order is not None:
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("a process of the benchmark ended; see its messages above")
        answer: dict[str, Any] = json.loads(line)
        return answer


@dataclass
class Sides:
    ours: Series = field(default_factory=Series)
    script: Series = field(default_factory=Series)
    our_cpu: Series = field(default_factory=Series)
    script_cpu: Series = field(default_factory=Series)


class Comparison:
    def __init__(self, stack: PipelineStack, script: Child, url: str, scratch: Path) -> None:
        self._stack = stack
        self._script = script
        self._url = url
        self._scratch = scratch

    async def run_ours(self, sides: Sides, cut: ChainCut) -> dict[str, int]:
        reading = await self._stack.run(cut)
        sides.ours.values.append(reading.seconds)
        sides.our_cpu.values.append(reading.cpu)
        return reading.rows

    async def run_script(self, sides: Sides, cut: ChainCut) -> dict[str, int]:
        directory = Path(tempfile.mkdtemp(dir=self._scratch))
        order = {"url": self._url, "blocks": cut.blocks, "size": cut.size, "directory": str(directory)}
        answer = await asyncio.to_thread(self._script.answer, order)
        shutil.rmtree(directory)
        sides.script.values.append(answer["seconds"])
        sides.script_cpu.values.append(answer["cpu"])
        rows: dict[str, int] = answer["rows"]
        return rows

    async def run_pair(self, sides: Sides, cut: ChainCut, *, ours_first: bool) -> dict[str, int]:
        """Run both, and return the rows of each table, which must be the same."""
        runs = [self.run_ours, self.run_script]
        first, second = [await run(sides, cut) for run in (runs if ours_first else reversed(runs))]
        if first != second:
            raise RuntimeError(f"the tables differ: {first} and {second}")
        return first

    async def measure(self, pairs: int, warm: int, cut: ChainCut) -> Sides:
        for _ in range(warm):
            await self.run_pair(Sides(), cut, ours_first=True)
        sides = Sides()
        for number in range(pairs):
            rows = await self.run_pair(sides, cut, ours_first=number % 2 == 0)
            if not number:
                say("both made " + ", ".join(f"{count:,} {name}" for name, count in rows.items()))
            latest = f"ours {sides.ours.values[-1]:.2f} s, script {sides.script.values[-1]:.2f} s"
            say(f"  pair {number + 1}/{pairs}: {latest}")
        return sides


async def compare(load: Load, python: Path, *, profile: bool) -> dict[str, Any]:
    figures: dict[str, Any] = {"benchmark": "pipeline"}
    for times, pairs in load.pairs.items():
        blocks = load.blocks * times
        cut = ChainCut(blocks, min(SIZES[times], blocks), GRAINS[times])
        say(f"{blocks:,} blocks in units of {cut.size:,}, summed up by {cut.grain}:")
        server = [sys.executable, "-m", "benchmarks.support.repeated_chain", "--times", str(times)]
        script = [str(python), str(Path(__file__).parent / "support" / "pipeline_script.py")]
        with tempfile.TemporaryDirectory(prefix="trace-bench-") as scratch, Child(server) as chain:
            url = (await asyncio.to_thread(chain.answer))["url"]
            with Child(script) as peer, PipelineStack(url) as stack:
                comparison = Comparison(stack, peer, url, Path(scratch))
                sides = await comparison.measure(pairs, load.warm[times], cut)
                if profile:
                    await tell_profile(stack)
            if profile and times == 1:
                figures["profile"] = profile_operators(
                    Path(scratch), url, cut.size, warm=load.warm[1], rounds=load.profile_rounds
                )
        ratios = ratio(sides.ours, sides.script)
        name = "" if times == 1 else f"_{times}x"
        figures |= {
            f"vs_script_ratio{name}": round(ratios.median, 2),
            f"spread{name}": ratios.spread,
            f"cpu_ratio{name}": round(sides.our_cpu.median / sides.script_cpu.median, 2),
            f"seconds{name}": round(sides.ours.median, 2),
            f"script_seconds{name}": round(sides.script.median, 2),
            f"cpu_seconds{name}": round(sides.our_cpu.median, 2),
        }
    return figures


async def tell_profile(stack: PipelineStack) -> None:
    rows = await stack.profile()
    columns = ("tasks", "seconds", "jobs", "stages", "spark_tasks", "run_ms")
    say(f"{'job':12}" + "".join(f"{name:>12}" for name in columns))
    for job, row in rows.items():
        say(f"{job:12}" + "".join(f"{row[name]:12g}" for name in columns))
    say("CPU seconds by program, since the start of the stack:")
    for program, seconds in sorted(stack.cpu_by_program().items(), key=lambda item: -item[1]):
        say(f"  {program:14} {seconds:8.1f}")


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--profile", action="store_true", help="print what each job takes, and what Spark does for it")
    parser.add_argument("--times", type=int, choices=SIZES, help="only the chain repeated so often")
    options = parse(parser)
    python = find_cryo()
    if python is None:
        sys.exit("cryo is not installed here: run `make bench-pipeline`, or name its Python in TRACE_CRYO_PYTHON")
    load = options.scale.pick(*LOADS)
    if options.scale is Scale.SMOKE:
        say("smoke: the figures mean nothing")
    if options.more.times is not None:
        load = replace(load, pairs={options.more.times: LOADS[0].pairs[options.more.times]}, warm=LOADS[0].warm)
    profile = options.more.profile or options.scale is Scale.SMOKE
    print(json.dumps(asyncio.run(compare(load, python, profile=profile))))


if __name__ == "__main__":
    main()
