"""Events to tasks: how long routing takes, alone and as a part of chains and fan-outs.

One machine carries everything: Postgres (fsync and synchronous_commit on), the Dispatcher (TLS, tokens), a worker
process and the load generator. What is compared is interleaved. The last line is one JSON object; each figure is the
median of its readings, and `_spread` beside it holds their lower and upper quartile. `--quick` takes fewer
readings, `--smoke` one of each.

- `route_p50_ms`, `route_p99_ms`: 500 events per second, one a call, over TLS by 32 claimed tasks; from sending the call
  until a waiting receiver holds the wake-up of the event's task. `accept_p50_ms`: until the call's answer.
- `trigger_to_complete_p50_ms`: one task at a time; `POST` trigger of a source until the task it makes is Completed in
  the database. `chain40_s`: the same for 40 jobs in a row, until the last is. Both run in a real worker process. The
  database is asked only once three fifths of the shortest time so far have passed, then every 1 or 2 ms.
- `bare_hop_ms`: four commits and a NOTIFY by bare asyncpg. `hop_floor_ratio`: a hop of the chain over that.
- `fanout_10k_s`: `POST` trigger of one range that `range_splitter` cuts into 10,000 units, until the last of their
  wake-ups could be received.
- `registry_ratio`: a call with one event, one at a time, in a stack with 1,000 more jobs and 100,000 ranges in the very
  dataset that the event is of, over one without them.
- `peak_mb`: the most memory the Dispatcher process had resident.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import asyncpg
import uvloop

from benchmarks.support.options import Scale, parse_scale, say
from benchmarks.support.routing_stack import (
    CHAIN,
    FAN_DAG,
    FAN_UNITS,
    FEED_DAG,
    SINGLE_DAG,
    RoutingStack,
    chain_dag,
    crowd_dag,
)
from benchmarks.support.routing_subjects import (
    BareHop,
    Chain,
    FanOut,
    OneByOne,
    PacedEvents,
    Trigger,
    claim_feeders,
    medians_ms,
    register_ranges,
)
from benchmarks.support.stack import Clients
from benchmarks.support.stats import Series, interleave, percentile, ratio
from tracelake.client.user import UserClient

Subject: TypeAlias = Callable[[], Awaitable[float]]

RATE = 500.0
FEEDING_TASKS = 32
CROWD_DAGS, CROWD_JOBS = 10, 100
RANGES = 100_000


async def registry(empty: RoutingStack, full: RoutingStack, rounds: int, scale: Scale) -> dict[str, Series]:
    dags, ranges = scale.pick((CROWD_DAGS, RANGES), (CROWD_DAGS, RANGES), (1, 1_000))
    warm_up, calls = scale.pick((200, 150), (200, 150), (10, 10))
    say("a full registry: storing it ...")
    await full.deploy(*(crowd_dag(f"crowd_{number}", CROWD_JOBS) for number in range(dags)))
    subjects: list[OneByOne] = []
    opened: list[Clients | UserClient] = []
    for stack in (empty, full):
        await stack.deploy(FEED_DAG)
        clients, user = stack.clients(), stack.user()
        opened += [clients, user]
        (feeder,) = await claim_feeders(user, clients, 1)
        if stack is full:
            connection = await asyncpg.connect(stack.state_dsn)
            await register_ranges(connection, feeder, ranges)
            await connection.close()
        subjects.append(OneByOne(clients, feeder, gaps=ranges, seed=1))
    await medians_ms(subjects, warm_up)
    without, with_it = Series(), Series()
    for number in range(rounds):
        for series, median in zip((without, with_it), await medians_ms(subjects, calls), strict=True):
            series.values.append(median)
        say(f"round {number + 1}/{rounds}: empty {without.values[-1]:.2f} ms  full {with_it.values[-1]:.2f} ms")
    await asyncio.gather(*(each.close() for each in opened))
    return {
        "registry_ratio": ratio(with_it, without),
        "registry_empty_ms": without,
        "registry_full_ms": with_it,
    }


async def hops(stack: RoutingStack, rounds: int) -> dict[str, Series]:
    say("one task at a time, a chain of jobs, and the floor of a hop ...")
    await stack.deploy(SINGLE_DAG, chain_dag())
    stack.start_worker()
    user, state = stack.user(), await asyncpg.connect(stack.state_dsn)
    bare = await BareHop.open(stack.state_dsn)
    trigger, chain = Trigger(user, state), await Chain.of(user, state)
    subjects: dict[str, Subject] = {
        "trigger": lambda: trigger.median_ms(20),
        "bare": lambda: bare.hop_ms(2 * CHAIN),
        "chain": chain.seconds,
        "bare again": lambda: bare.hop_ms(2 * CHAIN),
    }
    for subject in subjects.values():
        await subject()
    series = await interleave(subjects, rounds, say, show=lambda value: f"{value:.2f}")
    await bare.close()
    await user.close()
    await state.close()
    stack.stop_worker()
    # The floor on both sides of the chain: what commits cost here may change within a second.
    floor = Series([sum(pair) / 2 for pair in zip(series["bare"].values, series["bare again"].values, strict=True)])
    hop_ms = Series([seconds / CHAIN * 1000 for seconds in series["chain"].values])
    return {
        "trigger_to_complete_p50_ms": series["trigger"],
        "chain40_s": series["chain"],
        "bare_hop_ms": floor,
        "hop_floor_ratio": ratio(hop_ms, floor),
    }


async def paced(stack: RoutingStack, rounds: int, seconds: float) -> dict[str, Series]:
    say(f"{RATE:.0f} events per second ...")
    clients, user, state = stack.clients(), stack.user(), await asyncpg.connect(stack.state_dsn)
    events = PacedEvents(clients, await claim_feeders(user, clients, FEEDING_TASKS), state)
    await events.latencies(RATE, 1.0)
    p50, p99, accept = Series(), Series(), Series()
    for number in range(rounds):
        routed, accepted = await events.latencies(RATE, seconds)
        p50.values.append(percentile(routed, 0.50) * 1000)
        p99.values.append(percentile(routed, 0.99) * 1000)
        accept.values.append(percentile(accepted, 0.50) * 1000)
        say(
            f"round {number + 1}/{rounds}: p50 {p50.values[-1]:.1f} ms  p99 {p99.values[-1]:.1f} ms"
            f"  accepted {accept.values[-1]:.1f} ms"
        )
    await clients.close()
    await user.close()
    await state.close()
    return {"route_p50_ms": p50, "route_p99_ms": p99, "accept_p50_ms": accept}


async def fan_out(stack: RoutingStack, rounds: int, units: int) -> dict[str, Series]:
    say(f"one range into {units:,} units ...")
    await stack.deploy(FAN_DAG)
    user, queue = stack.user(), await asyncpg.connect(stack.queue_dsn)
    fan = FanOut(user, queue, units)
    await fan.seconds()
    series = await interleave({"fan-out": fan.seconds}, rounds, say, show=lambda seconds: f"{seconds:.2f} s")
    await user.close()
    await queue.close()
    return {"fanout_10k_s": series["fan-out"]}


def main() -> None:
    scale = parse_scale(__doc__)
    rounds = scale.pick(9, 3, 1)
    figures: dict[str, Series] = {}
    with RoutingStack() as stack:
        with RoutingStack() as full:
            figures |= uvloop.run(registry(stack, full, rounds, scale))
        figures |= uvloop.run(paced(stack, scale.pick(7, 3, 1), scale.pick(4.0, 2.0, 0.5)))
        figures |= uvloop.run(hops(stack, rounds))
        figures |= uvloop.run(fan_out(stack, *scale.pick((7, FAN_UNITS), (2, FAN_UNITS), (1, 200))))
        peak_mb = stack.dispatcher_peak_mb()
    result: dict[str, object] = {"benchmark": "routing", "rounds": rounds, "events_per_s": RATE}
    for name, series in figures.items():
        result[name] = round(series.median, 3)
        result[f"{name}_spread"] = series.spread
    print(json.dumps(result | {"peak_mb": round(peak_mb, 1)}))


if __name__ == "__main__":
    main()
