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

`dense_...`: the same against blocks like mainnet's (`support/dense_chain.py`: 150 to 200 transactions and 300 and more
logs each), `gzip_...` with answers to ours that are compressed (cryo asks for none that are). `..._cpu_s` and
`..._peak_mb` are of all processes of a side: ours with Spark's Java, and its Python processes alone as `_reader`.
`floor_..._ratio` is our CPU time over that of what nobody can do without (`support/ingest_floors.py`): `fetch` the
answers and throw them away; `decode` them into msgspec's objects, too, batch by batch; `objects`, the same block by
block; `files`: decode the digits, too, and write Parquet. `reader_floor_files_ratio` is that of Spark's Python
processes alone, without its Java.

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

from benchmarks.support.ingest_chain import (
    RECORDED,
    Replay,
    asked_by_cryo,
    asked_by_ours,
    cpu_seconds,
    cpu_seconds_below,
    dense,
    forget_peaks,
    peak_megabytes,
    processes_below,
)
from benchmarks.support.ingest_floors import FloorReader
from benchmarks.support.ingest_ours import BATCH, CHUNK, Ours
from benchmarks.support.ingest_peer import CRYO_SETTINGS, Cryo, find_cryo
from benchmarks.support.ingest_platform import Platform
from benchmarks.support.ingest_rows import compare
from benchmarks.support.options import make_parser, parse, say
from benchmarks.support.stats import Series, ratio
from tracelake.spark.session import SharedSession, SparkConfig


@dataclass
class Side:
    """One of the two, with what was measured."""

    name: str
    blocks: int
    run: Callable[[Path], float]
    cpu: Callable[[], float]
    processes: Callable[[], list[int]]
    seconds: Series = field(default_factory=Series)
    own: Series = field(default_factory=Series)
    reader: Series = field(default_factory=Series)
    """CPU seconds of Spark's Python processes."""
    server: Series = field(default_factory=Series)
    peaks: Series = field(default_factory=Series)
    reader_peaks: Series = field(default_factory=Series)

    def measure(self, scratch: Path, server: int) -> float:
        directory = Path(tempfile.mkdtemp(dir=scratch))
        processes = self.processes()
        forget_peaks(processes)
        readers = [pid for pid in processes if _is_reader(pid)]
        own, read, served = self.cpu(), sum(map(cpu_seconds, readers)), cpu_seconds(server)
        seconds = self.run(directory)
        self.peaks.values.append(peak_megabytes(processes))
        self.reader_peaks.values.append(peak_megabytes(readers))
        self.own.values.append(self.cpu() - own)
        self.reader.values.append(sum(map(cpu_seconds, readers)) - read)
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
    own_java: bool = True
    """Each comparison begins with a Java process of its own, as its memory is measured."""


LOADS = (
    (Load(4000, 11, 8, len(CRYO_SETTINGS), 20.0), Load(640, 9, 3, len(CRYO_SETTINGS), 0.0)),
    (Load(4000, 5, 8, len(CRYO_SETTINGS), 20.0), Load(320, 5, 2, 3, 0.0)),
    (Load(100, 1, 0, 1, 0.1, own_java=False), Load(8, 1, 0, 1, 0.0, own_java=False)),
)
"""Of the recorded chain, and of the dense one."""
_DENSE_CHUNKS = 4


def _is_reader(pid: int) -> bool:
    """One of Spark's Python processes."""
    try:
        return b"-m\0tracelake.spark.python_daemon" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def compare_speed(
    shared: SharedSession, replay: Replay, scratch: Path, load: Load, cryo: Cryo, chunk_blocks: int = CHUNK
) -> tuple[dict[str, float | list[float]], Side, Side]:
    os.environ["TRACE_RPC_DEFAULT"] = replay.url
    ours = Ours(shared.get(), chain_id=replay.chain_id, blocks=load.blocks, chunk_blocks=chunk_blocks)
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
        others = [replay.pid, cryo.pid]
        left = Side(
            "ours",
            load.blocks,
            ours.run,
            lambda: cpu_seconds_below(mine, without=others),
            lambda: processes_below(mine, without=others),
        )
        right = Side("cryo", load.blocks, cryo.run, lambda: cpu_seconds(cryo.pid), lambda: [cryo.pid])
        for number in range(load.rounds):
            for side in (left, right) if number % 2 == 0 else (right, left):
                side.measure(scratch, replay.pid)
            latest = [f"{side.name} {side.seconds.values[-1]:.2f} s" for side in (left, right)]
            say(f"  round {number + 1}/{load.rounds}: {'  '.join(latest)}")
    finally:
        if load.own_java:
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
    measured: dict[str, float | list[float]] = {
        "ours_blocks_per_s": round(load.blocks / left.seconds.median),
        "cryo_blocks_per_s": round(load.blocks / right.seconds.median),
        "vs_cryo": round(ratios.median, 3),
        "vs_cryo_spread": ratios.spread,
        "vs_cryo_cpu": round(right.own.median / left.own.median, 3),
        "server_blocks_per_s": round(ceilings["cryo"]),
    }
    return measured, left, right


def compare_dense(shared: SharedSession, python: Path, scratch: Path, load: Load) -> dict[str, float | list[float]]:
    results: dict[str, float | list[float]] = {}
    for name, gzip in (("dense", False), ("gzip", True)):
        say(f"blocks like mainnet's, {'compressed for ours' if gzip else 'plain'}: {load.blocks} of them are made ...")
        with Replay(dense(load.blocks, gzip=gzip)) as replay, Cryo(python, replay.url, load.blocks) as cryo:
            chunk_blocks = max(1, load.blocks // _DENSE_CHUNKS)
            speed, ours, peer = compare_speed(shared, replay, scratch, load, cryo, chunk_blocks)
            results |= {f"{name}_vs_cryo": speed["vs_cryo"], f"{name}_vs_cryo_spread": speed["vs_cryo_spread"]}
            results |= {f"{name}_cpu_s": round(ours.own.median, 2), f"{name}_cryo_cpu_s": round(peer.own.median, 2)}
            results |= {f"{name}_peak_mb": round(ours.peaks.median), f"{name}_cryo_peak_mb": round(peer.peaks.median)}
            results[f"{name}_reader_peak_mb"] = round(ours.reader_peaks.median)
            if not gzip:
                results |= compare_floors(replay.url, load, ours)
    return {**results, "dense_blocks": load.blocks}


def compare_floors(url: str, load: Load, ours: Side) -> dict[str, float]:
    reader = FloorReader(url, load.blocks)
    try:
        floors = reader.measure(load.rounds)
    finally:
        reader.close()
    return {
        "floor_fetch_ratio": round(ours.own.median / floors.fetch, 2),
        "floor_decode_ratio": round(ours.own.median / floors.batches, 2),
        "floor_objects_ratio": round(ours.own.median / floors.objects, 2),
        "floor_files_ratio": round(ours.own.median / floors.files, 2),
        "reader_floor_files_ratio": round(ours.reader.median / floors.files, 2),
    }


def _same_output(ours: Ours, cryo: Cryo, scratch: Path) -> None:
    with tempfile.TemporaryDirectory(dir=scratch) as left, tempfile.TemporaryDirectory(dir=scratch) as right:
        ours.run(Path(left))
        cryo.run(Path(right))
        say("both wrote " + compare(Path(left), Path(right)))


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--dense", action="store_true", help="only blocks like mainnet's")
    options = parse(parser)
    load, dense_load = options.scale.pick(*LOADS)
    python = find_cryo()
    if python is None:
        sys.exit("cryo is not installed here: run `make bench-ingest`, or name its Python in TRACE_CRYO_PYTHON")
    scratch = Path(tempfile.mkdtemp(prefix="trace-bench-"))
    shared = SharedSession(SparkConfig(scratch / "spark", log_level="error"))
    try:
        measured = {} if options.more.dense else compare_recorded(shared, python, scratch, load)
        measured |= compare_dense(shared, python, scratch, dense_load)
    finally:
        shared.close()
        shutil.rmtree(scratch, ignore_errors=True)
    print(json.dumps(measured))


def compare_recorded(shared: SharedSession, python: Path, scratch: Path, load: Load) -> dict[str, float | list[float]]:
    with Replay(RECORDED) as replay:
        say(f"ours: chunks of {CHUNK} blocks, {BATCH} calls a request; cryo: one of {len(CRYO_SETTINGS)} settings")
        with Cryo(python, replay.url, load.blocks) as cryo:
            measured, _, _ = compare_speed(shared, replay, scratch, load, cryo)
        say(f"the platform: tasks through a stack, {load.operator_seconds:.0f} s inside the operator ...")
        with Platform(replay.url, replay.chain_id, load.blocks) as platform:
            overhead = uvloop.run(platform.measure(load.operator_seconds, min(3, load.warm), say))
    return {**measured, **overhead, "blocks": load.blocks}


if __name__ == "__main__":
    main()
