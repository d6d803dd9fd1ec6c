"""The head of a chain: how fast it is caught up with and followed, how soon dependants are right after a
reorganisation, and how fast final rows become files.

    python -m benchmarks.follow [--pairs 7] [--quick | --smoke]

The recorded chain is served by a process of its own. The follower is the operator itself, with tables in an embedded
Postgres with fsync; its events go to a stub that accepts them. The last line is one JSON object.

- `catch_up_ratio`: blocks per second of the follower against its own node client that reads the same blocks in the same
  batches and drops them, over the recording repeated; the median of interleaved pairs, `catch_up_spread` its
  quartiles. The aim is 0.7.
- `polled_*_ms`, `announced_*_ms`: from the moment a block is shown until its rows and its event are durable, with looks
  every 50 ms, and with a WebSocket that announces blocks. `bare_*_ms`: a loop with the same looks that reads the block.
- `reorg64_repair_s`: a stack with a live chain and six jobs that depend on it: decoded logs, windows of blocks, days, a
  running total, a buffered table, a check. From a reorganisation of 64 blocks at the head until nothing is open and
  everything is that of the new chain, looked at each second; the median of some rounds. The aim is below 10.
- `compact_ratio`: as `python -m benchmarks.compact` measures it, over fewer pairs.

`--smoke` starts no stack and no Spark: tests of reorganisations and the benchmark of compaction do.
"""

import asyncio
import json
from contextlib import ExitStack
from typing import Any

from tests.support.postgres import TestCluster

from benchmarks.compact import AIM as COMPACT_AIM
from benchmarks.compact import measure_compaction
from benchmarks.support.follow_catch_up import CatchUp
from benchmarks.support.follow_latency import Latency
from benchmarks.support.follow_reorg import ReorganisedStack
from benchmarks.support.follow_source import MovedChain
from benchmarks.support.ingest_chain import RECORDED, Replay
from benchmarks.support.options import Scale, make_parser, parse, say
from benchmarks.support.stats import Series, interleave, percentile, ratio

RECORDED_BLOCKS, BATCH = 4000, 500
CATCH_UP_AIM, REORG_AIM_SECONDS = 0.7, 10.0


def measure_catch_up(scale: Scale, pairs: int, dsn: str) -> dict[str, Any]:
    """Over the recording, several times in a row."""
    with Replay(("benchmarks.support.repeated_chain", "--times", str(scale.pick(3, 2, 1)))) as served:
        return _measure_catch_up(scale, pairs, CatchUp(dsn, served.url, RECORDED_BLOCKS * scale.pick(3, 2, 1), BATCH))


def _measure_catch_up(scale: Scale, pairs: int, subject: CatchUp) -> dict[str, Any]:

    async def measure() -> dict[str, Any]:
        if scale is not Scale.SMOKE:
            await subject.fetch()
            await subject.follow()
        series = await interleave({"fetch": subject.fetch, "follow": subject.follow}, pairs, say)
        ratios = ratio(series["follow"], series["fetch"])
        return {
            "blocks": subject.blocks,
            "rows": subject.rows,
            "pairs": pairs,
            "fetch_blocks_per_s": round(series["fetch"].median),
            "follow_blocks_per_s": round(series["follow"].median),
            "catch_up_ratio": round(ratios.median, 3),
            "catch_up_spread": ratios.spread,
            "catch_up_aim": CATCH_UP_AIM,
        }

    return asyncio.run(measure())


def measure_latency(scale: Scale, dsn: str, chain: MovedChain) -> dict[str, Any]:
    rounds, blocks = scale.pick((4, 50), (2, 30), (1, 2))
    first = scale.pick(2000, 2000, 30)
    chain.show(first - 1)
    subject = Latency(dsn, chain, first, blocks)
    readings = [subject.read_bare, subject.read_polled, subject.read_announced]
    for number in range(rounds):
        for read in readings[:: 1 if number % 2 == 0 else -1]:
            read()
        say(f"latency, round {number + 1}/{rounds}")
    return {
        f"{name}_{label}_ms": round(percentile(values, share) * 1000, 1)
        for name, values in subject.values.items()
        for label, share in (("p50", 0.5), ("p99", 0.99))
    } | {"shown_blocks": rounds * blocks}


def measure_reorganisation(rounds: int, chain: MovedChain) -> dict[str, Any]:
    subject = ReorganisedStack.make(chain, first=3000, head=3499)
    with subject.stack.running():
        subject.begin()
        subject.reorganise()  # what starts once is started
        seconds = Series()
        for number in range(rounds):
            seconds.values.append(subject.reorganise())
            say(f"reorganisation {number + 1}/{rounds}: {seconds.values[-1]:.1f} s")
    return {
        "reorg64_repair_s": round(seconds.median, 2),
        "reorg64_spread": seconds.spread,
        "reorg64_aim": REORG_AIM_SECONDS,
    }


def measure_files(scale: Scale) -> dict[str, Any]:
    found = measure_compaction(*scale.pick((1000, 250, 100, 5), (500, 125, 100, 3), (20, 5, 10, 1)))
    return {
        "compact_ratio": found["compact_ratio"],
        "compact_spread": found["spread"],
        "compact_rows_per_s": found["compact_rows_per_s"],
        "compact_aim": COMPACT_AIM,
    }


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--pairs", type=int, help="readings of each while catching up")
    options = parse(parser)
    scale = options.scale
    pairs = options.more.pairs or scale.pick(7, 3, 1)
    figures: dict[str, Any] = {"benchmark": "follow"}
    with ExitStack() as resources:
        cluster = TestCluster.start(durable=scale is not Scale.SMOKE)
        resources.callback(cluster.stop)
        served = resources.enter_context(Replay((*RECORDED, "--live")))
        chain = MovedChain(served.url)
        dsn = cluster.fresh("data")
        figures |= measure_catch_up(scale, pairs, dsn)
        figures |= measure_latency(scale, dsn, chain)
        if scale is not Scale.SMOKE:
            figures |= measure_reorganisation(scale.pick(5, 3, 1), chain)
    if scale is not Scale.SMOKE:
        figures |= measure_files(scale)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
