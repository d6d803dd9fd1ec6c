"""How fast a stack starts: `trace up` against its parts started by hand, and the memory of a stack without work.

    make bench-start [ARGS="--quick | --smoke"]

Each round starts the parts of a stack by hand, one after the other and each alone, and starts `trace up` twice in the
same home, which has run before: once up to the end of a first `spark_sql` task, once up to that of a first `evm_ingest`
task. Tasks are triggered as soon as the stack is ready. Rounds change their order. The last line is one JSON object:

- `ready_ratio`: seconds from `trace up` to ready over those of the slowest part in the same round, the median with its
  quartiles in `ready_ratio_spread`; `slowest_part` is the part that was slowest most often. `part_seconds`: medians.
- `ready_seconds`, `ready_cpu_seconds`: of `trace up`. `first_start_seconds`: with a new home, once.
- `first_spark_task_seconds`: from `trace up` to the end of a `spark_sql` task; `first_spark_task_cpu_seconds`: of all
  processes that still run then. `first_ingest_seconds`: from `trace up` to the end of an `evm_ingest` task.
- `fresh_memory_mb`, `fresh_java`: memory of all processes, and how many of them are Java, after that `spark_sql` task.
- `idle_memory_mb`, `idle_java`: the same once the stack has worked and then done nothing for `spark_idle_seconds`, here
  a few seconds.
"""

import asyncio
import json
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.support.ingest_chain import Replay
from benchmarks.support.options import Scale, parse_scale, say
from benchmarks.support.start_parts import measure_parts
from benchmarks.support.start_stack import Memory, StartedStack
from benchmarks.support.stats import Series, ratio
from tracelake.client.stack import LocalStack
from tracelake.settings.home import Home, private_directory, write_private

IDLE_SECONDS = 5
SETTLE_SECONDS = 60.0
"""How long a stack may take to end what it does not need, beyond the idle time."""


@dataclass
class StartReadings:
    ready: Series = field(default_factory=Series)
    ready_cpu: Series = field(default_factory=Series)
    slowest: Series = field(default_factory=Series)
    first_tasks: dict[str, Series] = field(default_factory=lambda: {"count": Series(), "ingest": Series()})
    first_task_cpu: Series = field(default_factory=Series)
    fresh: list[Memory] = field(default_factory=list)
    parts: dict[str, Series] = field(default_factory=dict)
    slowest_parts: Counter[str] = field(default_factory=Counter)


class StartRounds:
    def __init__(self, home: Path, stack: LocalStack) -> None:
        self._home = home
        self._stack = stack
        self.readings = StartReadings()

    async def run(self, number: int) -> None:
        steps = [self._start_parts, self._start_stack, self._start_ingest]
        for step in steps if number % 2 == 0 else reversed(steps):
            await step()

    async def _start_parts(self) -> None:
        seconds = await measure_parts(self._home, self._stack)
        for name, value in seconds.items():
            self.readings.parts.setdefault(name, Series()).values.append(value)
        slowest = max(seconds, key=lambda name: seconds[name])
        self.readings.slowest.values.append(seconds[slowest])
        self.readings.slowest_parts[slowest] += 1

    async def _start_stack(self) -> None:
        with StartedStack(self._home) as stack:
            self.readings.ready.values.append(stack.ready_seconds)
            self.readings.ready_cpu.values.append(stack.ready_cpu)
            self.readings.first_tasks["count"].values.append(await stack.run_task("count"))
            self.readings.first_task_cpu.values.append(stack.cpu_seconds())
            self.readings.fresh.append(stack.memory())

    async def _start_ingest(self) -> None:
        with StartedStack(self._home) as stack:
            self.readings.first_tasks["ingest"].values.append(await stack.run_task("ingest"))


async def wait_idle(stack: StartedStack, seconds: float) -> Memory:
    """A stack that has worked and then waits, as soon as it has no Java any more; or as it is after so many seconds."""
    deadline = time.monotonic() + seconds
    while (memory := stack.memory()).java and time.monotonic() < deadline:
        await asyncio.sleep(1.0)
    return memory


async def measure(scale: Scale) -> dict[str, Any]:
    rounds = scale.pick(7, 3, 1)
    with tempfile.TemporaryDirectory(prefix="trace-bench-") as directory, Replay() as chain:
        home = Path(directory, "home")
        private_directory(home)
        write_private(Home(home).rpc_file, f"default = {json.dumps(chain.url)}\n")
        with StartedStack(home, spark_idle_seconds=str(IDLE_SECONDS)) as stack:
            first_start = stack.ready_seconds
            await stack.prepare(chain.chain_id)
            idle = await wait_idle(stack, IDLE_SECONDS + scale.pick(SETTLE_SECONDS, SETTLE_SECONDS, 1.0))
            started = StartRounds(home, stack.info)
        readings = started.readings
        for number in range(rounds):
            await started.run(number)
            tasks = ", ".join(f"{job} {series.values[-1]:.2f} s" for job, series in readings.first_tasks.items())
            say(
                f"round {number + 1}/{rounds}: slowest part {readings.slowest.values[-1]:.2f} s,"
                f" ready {readings.ready.values[-1]:.2f} s, first tasks: {tasks}"
            )
    ready_ratio = ratio(readings.ready, readings.slowest)
    return {
        "benchmark": "start",
        "rounds": rounds,
        "ready_ratio": round(ready_ratio.median, 2),
        "ready_ratio_spread": ready_ratio.spread,
        "slowest_part": readings.slowest_parts.most_common(1)[0][0],
        "part_seconds": {name: round(series.median, 2) for name, series in readings.parts.items()},
        "ready_seconds": round(readings.ready.median, 2),
        "ready_cpu_seconds": round(readings.ready_cpu.median, 2),
        "first_start_seconds": round(first_start, 2),
        "first_spark_task_seconds": round(readings.first_tasks["count"].median, 2),
        "first_spark_task_spread": readings.first_tasks["count"].spread,
        "first_spark_task_cpu_seconds": round(readings.first_task_cpu.median, 2),
        "first_ingest_seconds": round(readings.first_tasks["ingest"].median, 2),
        "fresh_memory_mb": round(Series([memory.megabytes for memory in readings.fresh]).median),
        "fresh_java": max(memory.java for memory in readings.fresh),
        "idle_memory_mb": round(idle.megabytes),
        "idle_java": idle.java,
    }


def main() -> None:
    print(json.dumps(asyncio.run(measure(parse_scale(__doc__)))))


if __name__ == "__main__":
    main()
