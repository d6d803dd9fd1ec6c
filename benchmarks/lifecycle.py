"""Task cycles per second through the real endpoints, against the same eight steps by bare asyncpg.

One machine carries everything: Postgres (fsync and synchronous_commit on), the Dispatcher (TLS, tokens) and the load
generator. Subjects are interleaved; the last line is one JSON object. `--quick` runs fewer rounds, `--smoke` shows
that it runs.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from uuid import UUID

import uvloop

from benchmarks.support.cycles import BareCycles, BatchCycles, SingleCycles, make_job
from benchmarks.support.options import Scale, parse_scale, say
from benchmarks.support.stack import BenchStack, SecondDispatcher
from benchmarks.support.stats import interleave, percentile, ratio

IN_FLIGHT = 64
BATCH_SIZE = 32
BARE_CONNECTIONS = 16


async def measure(stack: BenchStack, scale: Scale) -> dict[str, object]:
    rounds = scale.pick(8, 3, 1)
    share = scale.pick(1.0, 1.0, 0.1)
    clients = stack.clients()
    # Without gathering, concurrency has to come from connections: as many as the bare floor has.
    ungrouped = SecondDispatcher(
        stack, TRACE_GROUP_COMMIT_MAX="1", TRACE_GROUP_COMMIT_LANES="16", TRACE_STATE_POOL_SIZE="20"
    )
    one_lane = SecondDispatcher(stack, TRACE_GROUP_COMMIT_LANES="1")
    bare = None
    try:
        await ungrouped.start()
        await one_lane.start()
        others = [stack.clients(internal_url=one.internal_url, task_url=one.task_url) for one in (ungrouped, one_lane)]
        single = SingleCycles(clients, await make_job(clients, "single"), "single", in_flight=IN_FLIGHT)
        batch = BatchCycles(
            clients, await make_job(clients, "batch"), "batch", in_flight=IN_FLIGHT // 8, size=BATCH_SIZE
        )
        alone = SingleCycles(others[0], await make_job(others[0], "alone"), "alone", in_flight=IN_FLIGHT)
        paired = SingleCycles(others[1], await make_job(others[1], "one_lane"), "one_lane", in_flight=IN_FLIGHT)
        bare = BareCycles(
            stack.state_dsn, stack.queue_dsn, await make_job(clients, "bare"), connections=BARE_CONNECTIONS
        )
        await bare.open()
        subjects: dict[str, Callable[[], Awaitable[float]]] = {
            "single": lambda: single.rate(int(1200 * share)),
            "batch": lambda: batch.rate(int(3200 * share)),
            "bare": lambda: bare.rate(int(800 * share)),
            "ungrouped": lambda: alone.rate(int(600 * share)),
            "one_lane": lambda: paired.rate(int(1200 * share)),
        }
        say("warming up ...")
        for subject in subjects.values():
            await subject()
        series = await interleave(subjects, rounds, say)
        for clients_of_one in others:
            await clients_of_one.close()
        ungrouped.stop()
        one_lane.stop()
        say("transactions per task ...")
        before = await stack.committed()
        cycles = int(3000 * share)
        await single.rate(cycles)
        tx_per_task = (await stack.committed() - before) / cycles
        say("latency at half the saturation rate ...")
        claims, readies = await latencies(single, rate=series["single"].median / 2, seconds=8.0 * share)
    finally:
        ungrouped.stop()
        one_lane.stop()
        if bare is not None:
            await bare.close()
        await clients.close()
    single_ratio = ratio(series["single"], series["bare"])
    batch_ratio = ratio(series["batch"], series["bare"])
    gain = ratio(series["single"], series["ungrouped"])
    lanes = ratio(series["one_lane"], series["single"])
    return {
        "benchmark": "lifecycle",
        "rounds": rounds,
        "single_per_s": round(series["single"].median),
        "batch_per_s": round(series["batch"].median),
        "bare_per_s": round(series["bare"].median),
        "single_floor_ratio": round(single_ratio.median, 2),
        "batch_floor_ratio": round(batch_ratio.median, 2),
        "group_commit_gain": round(gain.median, 2),
        "one_lane_over_two": round(lanes.median, 2),
        "tx_per_task": round(tx_per_task, 2),
        "claim_p50_ms": round(percentile(claims, 0.50) * 1000, 2),
        "claim_p99_ms": round(percentile(claims, 0.99) * 1000, 2),
        "ready_p50_ms": round(percentile(readies, 0.50) * 1000, 2),
        "ready_p99_ms": round(percentile(readies, 0.99) * 1000, 2),
        "spread": {name: values.spread for name, values in series.items()}
        | {
            "single_floor_ratio": single_ratio.spread,
            "batch_floor_ratio": batch_ratio.spread,
            "group_commit_gain": gain.spread,
            "one_lane_over_two": lanes.spread,
        },
    }


async def latencies(single: SingleCycles, *, rate: float, seconds: float) -> tuple[list[float], list[float]]:
    """Open loop: tasks are created on schedule, whether or not earlier ones are done.

    `ready` runs from sending the create call to a waiting receiver holding the wake-up, so it contains the create
    itself.
    """
    created: dict[UUID, float] = {}
    received: dict[UUID, float] = {}
    claims: list[float] = []
    count = int(rate * seconds)

    async def create(at: float) -> None:
        await asyncio.sleep(max(0.0, at - time.perf_counter()))
        sent = time.perf_counter()
        created[await single.create_one()] = sent

    begun = 0

    async def wrapper() -> None:
        nonlocal begun
        while begun < count:
            begun += 1
            task_id, at, claim_seconds = await single.run_one()
            received[task_id] = at
            claims.append(claim_seconds)

    start = time.perf_counter() + 0.2
    async with asyncio.TaskGroup() as group:
        for _ in range(IN_FLIGHT):
            group.create_task(wrapper())
        for number in range(count):
            group.create_task(create(start + number / rate))
    readies = [received[task_id] - sent for task_id, sent in created.items()]
    return claims, readies


def main() -> None:
    scale = parse_scale(__doc__)
    with BenchStack() as stack:
        result = uvloop.run(measure(stack, scale))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
