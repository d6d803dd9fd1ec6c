"""evm_ingest against cryo, and what the platform adds to it.

    make bench-ingest        (or, where .venv-peers is made: python -m benchmarks.ingest [--quick | --smoke])

Both sides read the same recorded chain from the same replay server, a process of its own that answers prepared bytes
without compression, and write `blocks` (with `parent_hash`), `transactions` and `logs` as Parquet with zstd to
directories of this machine; the rows and columns of both are compared before anything is measured. Both are warm: ours
is the operator in a Spark session that has run it before, cryo its Python API in a process that has run it before.
cryo gets the settings that were the fastest of those tried in the same run (`CRYO_SETTINGS`). Readings are interleaved
(ABBA); `vs_cryo` is the median of the ratios round by round.

Whether the server holds anybody up is printed too: what share of a reading it was busy for, and how many blocks a
second it gives to a client that asks the same and looks at nothing (`server_blocks_per_s`: as cryo asks, call by call).

`platform_overhead`: tasks of evm_ingest one after another through a real stack (Dispatcher, queue, worker, object
store), until the operator has worked for 20 seconds: (wall time of the tasks - time inside the operator) / time inside
the operator, where a task lasts from the moment it is made until it is Completed, by the state database, and the time
inside the operator is what the worker measures around it.

The last line is one JSON object.
"""

import json
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import uvloop

from benchmarks.support.ingest_chain import Replay, asked_by_cryo, asked_by_ours, cpu_seconds, cpu_seconds_below
from benchmarks.support.ingest_ours import BATCH, CHUNK, Ours
from benchmarks.support.ingest_peer import CRYO_SETTINGS, Cryo, find_cryo
from benchmarks.support.ingest_platform import Platform
from benchmarks.support.ingest_rows import compare
from benchmarks.support.options import parse_scale, say
from benchmarks.support.stats import Series, ratio
from tracelake.spark.session import SharedSession, SparkConfig


@dataclass
class Side:
    """One of the two, with what was measured."""

    name: str
    blocks: int
    run: Callable[[Path], float]
    cpu: Callable[[], float]
    seconds: Series = field(default_factory=Series)
    own: Series = field(default_factory=Series)
    server: Series = field(default_factory=Series)

    def measure(self, scratch: Path, server: int) -> float:
        directory = Path(tempfile.mkdtemp(dir=scratch))
        own, served = self.cpu(), cpu_seconds(server)
        seconds = self.run(directory)
        self.own.values.append(self.cpu() - own)
        self.server.values.append(cpu_seconds(server) - served)
        self.seconds.values.append(seconds)
        shutil.rmtree(directory)
        return seconds

    def tell(self) -> None:
        low, high = self.seconds.spread
        busy = statistics.median(a / b for a, b in zip(self.server.values, self.seconds.values, strict=True))
        say(
            f"  {self.name:5} {self.blocks / self.seconds.median:8,.0f} blocks/s"
            f"   {self.seconds.median:.2f} s (quartiles {low:.2f} to {high:.2f})"
            f"   CPU {self.own.median:.2f} s, of the server {self.server.median:.2f} s, which was busy {busy:.0%}"
        )


@dataclass(frozen=True)
class Load:
    blocks: int
    rounds: int
    warm: int
    settings: int
    """How many of cryo's settings are tried."""
    operator_seconds: float


LOADS = (
    Load(4000, 11, 8, len(CRYO_SETTINGS), 20.0),
    Load(4000, 5, 8, len(CRYO_SETTINGS), 20.0),
    Load(100, 1, 0, 1, 0.1),
)


def compare_speed(replay: Replay, scratch: Path, load: Load, cryo: Cryo) -> dict[str, float | list[float]]:
    os.environ["TRACE_RPC_DEFAULT"] = replay.url
    shared = SharedSession(SparkConfig(scratch / "spark", log_level="error"))
    ours = Ours(shared.get(), chain_id=replay.chain_id, blocks=load.blocks)
    try:
        _same_output(ours, cryo, scratch)
        say("cryo's settings, the fastest of three readings each:")
        cryo.choose(scratch, load.settings, say)
        say(f"warming up: {load.warm} runs each ...")
        for run in (ours.run, cryo.run) * load.warm:
            with tempfile.TemporaryDirectory(dir=scratch) as directory:
                run(Path(directory))
        say(f"reading {load.blocks} blocks, {load.rounds} rounds ...")
        mine = os.getpid()
        left = Side("ours", load.blocks, ours.run, lambda: cpu_seconds_below(mine, without=[replay.pid, cryo.pid]))
        right = Side("cryo", load.blocks, cryo.run, lambda: cpu_seconds(cryo.pid))
        for number in range(load.rounds):
            for side in (left, right) if number % 2 == 0 else (right, left):
                side.measure(scratch, replay.pid)
            latest = [f"{side.name} {side.seconds.values[-1]:.2f} s" for side in (left, right)]
            say(f"  round {number + 1}/{load.rounds}: {'  '.join(latest)}")
    finally:
        shared.close()
    ratios = ratio(right.seconds, left.seconds)
    ceilings = {
        "ours": statistics.median(
            load.blocks / replay.seconds_for(asked_by_ours(load.blocks, BATCH)) for _ in range(3)
        ),
        "cryo": statistics.median(load.blocks / replay.seconds_for(asked_by_cryo(load.blocks)) for _ in range(3)),
    }
    left.tell()
    right.tell()
    alone = [f"asked as by {name} {value:,.0f} blocks/s" for name, value in ceilings.items()]
    say(f"  the server alone: {', '.join(alone)}")
    say(f"  ours over cryo: {ratios.median:.2f} (quartiles {ratios.spread[0]:.2f} to {ratios.spread[1]:.2f})")
    return {
        "ours_blocks_per_s": round(load.blocks / left.seconds.median),
        "cryo_blocks_per_s": round(load.blocks / right.seconds.median),
        "vs_cryo": round(ratios.median, 3),
        "vs_cryo_spread": ratios.spread,
        "vs_cryo_cpu": round(right.own.median / left.own.median, 3),
        "server_blocks_per_s": round(ceilings["cryo"]),
    }


def _same_output(ours: Ours, cryo: Cryo, scratch: Path) -> None:
    with tempfile.TemporaryDirectory(dir=scratch) as left, tempfile.TemporaryDirectory(dir=scratch) as right:
        ours.run(Path(left))
        cryo.run(Path(right))
        say("both wrote " + compare(Path(left), Path(right)))


def main() -> None:
    load = parse_scale(__doc__).pick(*LOADS)
    python = find_cryo()
    if python is None:
        sys.exit("cryo is not installed here: run `make bench-ingest`, or name its Python in TRACE_CRYO_PYTHON")
    scratch = Path(tempfile.mkdtemp(prefix="trace-bench-"))
    try:
        with Replay() as replay:
            say(f"ours: chunks of {CHUNK} blocks, {BATCH} calls a request; cryo: one of {len(CRYO_SETTINGS)} settings")
            with Cryo(python, replay.url, load.blocks) as cryo:
                found = compare_speed(replay, scratch, load, cryo)
            say(f"the platform: tasks through a stack, {load.operator_seconds:.0f} s inside the operator ...")
            with Platform(replay.url, replay.chain_id, load.blocks) as platform:
                overhead = uvloop.run(platform.measure(load.operator_seconds, say))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    print(json.dumps({**found, **overhead, "blocks": load.blocks}))


if __name__ == "__main__":
    main()
