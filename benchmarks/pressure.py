"""An overloaded branch beside a healthy one: what the healthy one notices, and what the overloaded one can take.

One machine carries everything: Postgres (fsync and synchronous_commit on), the Dispatcher (TLS, tokens) and the load
generator. What is compared is interleaved. The last line is one JSON object; each figure is the median of its readings,
and `_spread` beside it holds their lower and upper quartile. `--quick` takes fewer readings.

The healthy branch is `source -> job -> job` at a fixed rate; `healthy_ms` is the median time from sending an event
until the last completion is answered. It is measured in four kinds of company:

- `silent`: the branches beside it are there and say nothing;
- `storm`: two producers of another DAG (a `bulk` and a `normal` one, before the same queue) and one of the same DAG say
  `flood_events_per_s`; the slow jobs behind them have a `max_queue_depth` and finish `flood_taken_per_s` tasks. Their
  queues are full, go down to one half and are full again, `trips` times in all;
- `calm`: as many events in the same calls through branches of the same form without a limit; as many of them as are
  taken become tasks at once, the others have cursors that earlier units read as well and make none. So as much is
  accepted, made and finished as in `storm`, and nothing ever waits;
- `unlimited`: the events of `storm` through the branches without a limit: each becomes a task at once.

Every flood is worked off before the next reading begins, and has then made exactly one task of each event that asks for
one.

- `unrelated_slowdown`: `storm` over `calm`. The load is in both; what remains is what pressure does to a branch that
  has nothing to do with it. `vs_silent` and `vs_unlimited`: `storm` over these. `_p95`: the 95th percentiles instead.
- `depth_overshoot`: the most ready tasks that a limited queue ever had above `max_queue_depth`. An event is routed by
  what was full when its transaction began, so a call with 8 events may make 7 tasks too many.
- `busy`: the share of all processors that was in use during the readings, by whomever; near 1 they say little.
  `dispatcher`: the share of one processor that the Dispatcher used.
- `sustained_events_per_s`: events accepted and stored by a branch whose queue is full, none of which is routed; calls
  with 100 events by 8 producers. `sustained_single_per_s`: one event a call, 64 producers.
- `resume_drain_s`: a source that was paused while it said `drain_events` is resumed; from sending that call until the
  wake-ups of all their tasks could be received. `resume_tasks_s`: until all are tasks. Nobody takes them meanwhile.
- `peak_mb`: the most memory the Dispatcher process had resident.
"""

import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import asyncpg
import uvloop

from benchmarks.support.pressure_load import Depths, Flood, FloodPlan, Healthy, Slice, depths
from benchmarks.support.pressure_stack import (
    FREE,
    FREE_DAG,
    FREE_SOURCES,
    FULL_DAG,
    HEALTHY_DAG,
    KEPT_DAG,
    LIMITED,
    LIMITED_DAG,
    LIMITED_JOBS,
    LIMITED_SOURCES,
    MAX_DEPTH,
    SOURCES,
    PressureStack,
    claim_speakers,
)
from benchmarks.support.pressure_subjects import ResumeDrain, Sustained
from benchmarks.support.routing_stack import job_id
from benchmarks.support.stats import Series, interleave, percentile, ratio

RATE = 40.0
FLOOD = FloodPlan()
FLOOD_PER_S = FLOOD.calls * FLOOD.events * len(LIMITED_SOURCES)
PRODUCERS = 64
BATCH_PRODUCERS, BATCH = 8, 100
DRAIN_EVENTS = 20_000


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@dataclass
class Arm:
    """Readings of the healthy branch in one company."""

    p50: Series = field(default_factory=Series)
    p95: Series = field(default_factory=Series)
    per_s: Series = field(default_factory=Series)
    busy: Series = field(default_factory=Series)
    dispatcher: Series = field(default_factory=Series)

    def add(self, reading: Slice) -> None:
        self.p50.values.append(percentile(reading.latencies, 0.50) * 1000)
        self.p95.values.append(percentile(reading.latencies, 0.95) * 1000)
        self.per_s.values.append(reading.per_s)
        self.busy.values.append(reading.busy)
        self.dispatcher.values.append(reading.dispatcher)


async def beside(healthy: Healthy, flood: Flood | None, seconds: float) -> Slice:
    """The flood begins a little earlier, so that its queues are full when the reading begins."""
    if flood is None:
        return await healthy.run(RATE, seconds)
    over = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(flood.run(over))
        await asyncio.sleep(0.5)
        try:
            return await healthy.run(RATE, seconds)
        finally:
            over.set()


async def company(stack: PressureStack, rounds: int, seconds: float) -> tuple[dict[str, Arm], list[Depths], int]:
    say("a healthy branch beside others ...")
    await stack.deploy(HEALTHY_DAG, LIMITED_DAG, FREE_DAG)
    clients, state = stack.clients(), await asyncpg.connect(stack.state_dsn)
    speakers = {each.job: each for each in await claim_speakers(clients, SOURCES, 7)}
    healthy = Healthy(clients, speakers["head"], stack.dispatcher_pid())
    free, limited = [speakers[name] for name in FREE_SOURCES], [speakers[name] for name in LIMITED_SOURCES]
    floods: dict[str, Flood | None] = {
        "silent": None,
        "calm": Flood(clients, free, FREE, replace(FLOOD, late=FLOOD_PER_S // FLOOD.taken - 1)),
        "storm": Flood(clients, limited, LIMITED, FLOOD),
        "unlimited": Flood(clients, free, FREE, FLOOD),
    }
    jobs = [await job_id(state, dag, job) for dag, job in LIMITED_JOBS]
    arms = {name: Arm() for name in floods}
    seen: list[Depths] = []
    for number in range(-1, rounds):
        for name in list(floods)[:: 1 if number % 2 == 0 else -1]:
            flood = floods[name]
            since = await state.fetchval("SELECT trace_now()")
            reading = await beside(healthy, flood, seconds if number >= 0 else 0.5)
            until = await state.fetchval("SELECT trace_now()")
            if flood is not None:
                await flood.settle()
            if number >= 0:
                arms[name].add(reading)
                if name == "storm":
                    seen.append(await depths(state, jobs, since, until))
        if number >= 0:
            shown = "  ".join(f"{name} {arm.p50.values[-1]:.1f}" for name, arm in arms.items())
            say(f"round {number + 1}/{rounds}: {shown} ms; full {seen[-1].trips} times, at most {seen[-1].most} deep")
    said = sum(flood.said for flood in floods.values() if flood is not None)
    await healthy.close()
    await clients.close()
    await state.close()
    return arms, seen, said


async def sustained(stack: PressureStack, rounds: int) -> dict[str, Series]:
    say("events into a branch that is full ...")
    await stack.deploy(FULL_DAG)
    clients, user, state = stack.clients(), stack.user(), await asyncpg.connect(stack.state_dsn)
    full = await Sustained.of(user, clients, state, PRODUCERS)
    await full.batch(5_000, BATCH, BATCH_PRODUCERS)
    await full.single(1_000)
    subjects = {
        "batch": lambda: full.batch(20_000, BATCH, BATCH_PRODUCERS),
        "single": lambda: full.single(3_000),
    }
    series = await interleave(subjects, rounds, say)
    await clients.close()
    await user.close()
    await state.close()
    return {"sustained_events_per_s": series["batch"], "sustained_single_per_s": series["single"]}


async def resumed(stack: PressureStack, rounds: int) -> dict[str, Series]:
    say(f"a source that kept {DRAIN_EVENTS:,} events goes on ...")
    await stack.deploy(KEPT_DAG)
    clients, user = stack.clients(), stack.user()
    state, queue = await asyncpg.connect(stack.state_dsn), await asyncpg.connect(stack.queue_dsn)
    drain = await ResumeDrain.of(user, clients, state, queue)
    await drain.seconds(2_000)
    claimable, tasks = Series(), Series()
    for number in range(rounds):
        reading = await drain.seconds(DRAIN_EVENTS)
        claimable.values.append(reading.claimable_s)
        tasks.values.append(reading.tasks_s)
        say(f"round {number + 1}/{rounds}: tasks {reading.tasks_s:.2f} s  claimable {reading.claimable_s:.2f} s")
    for each in (clients, user, state, queue):
        await each.close()
    per_s = Series([DRAIN_EVENTS / seconds for seconds in claimable.values])
    return {"resume_drain_s": claimable, "resume_tasks_s": tasks, "drain_events_per_s": per_s}


def compare(arms: dict[str, Arm]) -> dict[str, Series]:
    figures: dict[str, Series] = {}
    for name, other in (("unrelated_slowdown", "calm"), ("vs_silent", "silent"), ("vs_unlimited", "unlimited")):
        figures[name] = ratio(arms["storm"].p50, arms[other].p50)
        figures[f"{name}_p95"] = ratio(arms["storm"].p95, arms[other].p95)
    return figures


def main() -> None:
    quick = "--quick" in sys.argv
    rounds = 3 if quick else 9
    with PressureStack() as stack:
        arms, seen, said = uvloop.run(company(stack, rounds, 1.5 if quick else 3.0))
        figures = compare(arms)
        figures |= uvloop.run(sustained(stack, 3 if quick else 7))
        figures |= uvloop.run(resumed(stack, 2 if quick else 7))
        peak_mb = stack.dispatcher_peak_mb()
    result: dict[str, object] = {"benchmark": "pressure", "pairs": rounds}
    for name, series in figures.items():
        result[name] = round(series.median, 3)
        result[f"{name}_spread"] = series.spread
    for name, arm in arms.items():
        result |= _medians(name, arm)
    print(json.dumps(result | _load(seen, said) | {"peak_mb": round(peak_mb, 1)}))


def _medians(name: str, arm: Arm) -> dict[str, object]:
    return {
        f"healthy_ms_{name}": round(arm.p50.median, 2),
        f"healthy_ms_{name}_spread": arm.p50.spread,
        f"healthy_per_s_{name}": round(arm.per_s.median, 1),
        f"busy_{name}": round(arm.busy.median, 2),
        f"dispatcher_{name}": round(arm.dispatcher.median, 2),
    }


def _load(seen: Sequence[Depths], said: int) -> dict[str, object]:
    return {
        "healthy_events_per_s": RATE,
        "flood_events_per_s": FLOOD_PER_S,
        "flood_taken_per_s": FLOOD.taken,
        "flood_events": said,
        "max_queue_depth": MAX_DEPTH,
        "depth_overshoot": max(0, max(each.most for each in seen) - MAX_DEPTH),
        "trips": sum(each.trips for each in seen),
        "drain_events": DRAIN_EVENTS,
    }


if __name__ == "__main__":
    main()
