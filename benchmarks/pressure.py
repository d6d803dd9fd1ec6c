"""An overloaded branch beside a healthy one: what the healthy one notices, and what the overloaded one can take.

One machine carries everything: Postgres (fsync and synchronous_commit on), the Dispatcher (TLS, tokens) and the load
generator. What is compared is interleaved. The last line is one JSON object; each figure is the median of its readings,
and `_spread` beside it holds their lower and upper quartile. `--quick` takes fewer readings, and so does a machine that
is busy with something else.

The healthy branch is `source -> job -> job` at a fixed rate; `healthy_ms` is the median time from sending an event
until the last completion is answered. It is measured in five kinds of company:

- `silent`: the branches beside it are there and say nothing;
- `storm`: two producers of another DAG (a `bulk` and a `normal` one, before the same queue) and one of the same DAG say
  `flood_events_per_s`; the slow jobs behind them have a `max_queue_depth` and finish `flood_taken_per_s` tasks. Their
  queues are full, go down to one half and are full again, `trips` times in all;
- `calm`: as many events in the same calls through branches of the same form without a limit; as many of them as are
  taken become tasks at once, the others have cursors that earlier units read as well and make none. So as much is
  accepted, made and finished as in `storm`, and nothing ever waits;
- `unlimited`: the events of `storm` through the branches without a limit: each becomes a task at once;
- `drain`: a source that was paused while it said `backlog_events` is resumed, and goes on saying one event after the
  other; its reader has no limit, so that all are worked off as fast as it goes.

Every flood is worked off before the next reading begins, and has then made exactly one task of each event that asks for
one.

- `unrelated_slowdown`: `storm` over `calm`. The load is in both; what remains is what pressure does to a branch that
  has nothing to do with it. `vs_silent` and `vs_unlimited`: `storm` over these. `drain_slowdown`: `drain` over
  `silent`. `_p95`: the same of 95th percentiles.
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
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeAlias

import uvloop

from benchmarks.support.options import Scale, parse_scale, say
from benchmarks.support.pressure_load import Company, Depths, Flood, FloodPlan, Healthy, Slice, depths
from benchmarks.support.pressure_stack import (
    FREE,
    FREE_SOURCES,
    LIMITED,
    LIMITED_JOBS,
    LIMITED_SOURCES,
    MAX_DEPTH,
    SOURCES,
    PressureStack,
    claim_speakers,
)
from benchmarks.support.pressure_subjects import Backlog, Kept, Opened, Sustained
from benchmarks.support.routing_stack import job_id
from benchmarks.support.stats import Series, interleave, percentile, ratio

RATE = 40.0
FLOOD = FloodPlan()
FLOOD_PER_S = FLOOD.calls * FLOOD.events * len(LIMITED_SOURCES)
PRODUCERS = 64
BATCH_PRODUCERS, BATCH = 8, 100
DRAIN_EVENTS = 20_000
BACKLOG = 10_000
PAIRS_SECONDS, DRAIN_SECONDS = 120.0, 45.0
EVERYONE = 3
"""Pairs of calm and storm are taken in every round, the others in every so many."""

RATIOS = (
    ("unrelated_slowdown", "storm", "calm"),
    ("vs_silent", "storm", "silent"),
    ("vs_unlimited", "storm", "unlimited"),
    ("drain_slowdown", "drain", "silent"),
)

Round: TypeAlias = dict[str, Slice]


def within(seconds: float, rounds: int, *, at_least: int) -> Iterator[int]:
    """The numbers of so many rounds, or of fewer if they take too long: a busy machine must not make this endless."""
    end = time.monotonic() + seconds
    for number in range(rounds):
        if number >= at_least and time.monotonic() > end:
            say("this machine is slow: fewer rounds")
            return
        yield number


async def reading_of(healthy: Healthy, beside: Company, seconds: float) -> Slice:
    """The company begins a little earlier, so that it is what it should be when the reading begins."""
    await beside.prepare()
    over = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(beside.run(over))
        await asyncio.sleep(beside.lead)
        try:
            return await healthy.run(RATE, seconds)
        finally:
            over.set()


async def in_company(
    opened: Opened, rounds: int, seconds: float, backlog: int
) -> tuple[list[Round], list[Depths], int]:
    say("a healthy branch beside others ...")
    clients, state = opened.clients, opened.state
    speakers = {each.job: each for each in await claim_speakers(clients, SOURCES, 8)}
    healthy = Healthy(clients, speakers["head"], opened.stack.dispatcher_pid())
    free, limited = [speakers[name] for name in FREE_SOURCES], [speakers[name] for name in LIMITED_SOURCES]
    calm = Flood(clients, free, FREE, replace(FLOOD, late=FLOOD_PER_S // FLOOD.taken - 1))
    storm = Flood(clients, limited, LIMITED, FLOOD)
    unlimited = Flood(clients, free, FREE, FLOOD)
    drain = Backlog(await opened.kept(speakers["keeper"]), backlog)
    pair: dict[str, Company] = {"calm": calm, "storm": storm}
    everyone = {"silent": Company(), **pair, "drain": drain, "unlimited": unlimited}
    jobs = [await job_id(state, dag, job) for dag, job in LIMITED_JOBS]
    for each in everyone.values():
        await reading_of(healthy, each, 0.5)
        await each.settle()
    taken: list[Round] = []
    seen: list[Depths] = []
    for number in within(PAIRS_SECONDS, rounds, at_least=7):
        chosen = everyone if number % EVERYONE == 0 else pair
        readings: Round = {}
        for name in list(chosen)[:: 1 if number % 2 == 0 else -1]:
            since = await state.fetchval("SELECT trace_now()")
            readings[name] = await reading_of(healthy, chosen[name], seconds)
            until = await state.fetchval("SELECT trace_now()")
            await chosen[name].settle()
            if name == "storm":
                seen.append(await depths(state, jobs, since, until))
        taken.append(readings)
        shown = "  ".join(f"{name} {p50(readings[name]):.1f}" for name in chosen)
        say(f"round {number + 1}/{rounds}: {shown} ms; full {seen[-1].trips} times, at most {seen[-1].most} deep")
    await healthy.close()
    return taken, seen, calm.said + storm.said + unlimited.said


def p50(reading: Slice) -> float:
    return percentile(reading.latencies, 0.50) * 1000


def p95(reading: Slice) -> float:
    return percentile(reading.latencies, 0.95) * 1000


def series_of(rounds: Sequence[Round], name: str, of: Callable[[Slice], float]) -> Series:
    return Series([of(readings[name]) for readings in rounds if name in readings])


async def sustained(opened: Opened, rounds: int, events: int) -> dict[str, Series]:
    say("events into a branch that is full ...")
    full = await Sustained.of(opened.user, opened.clients, opened.state, PRODUCERS)
    await full.batch(events // 2, BATCH, BATCH_PRODUCERS)
    await full.single(events // 10)
    subjects = {
        "batch": lambda: full.batch(events, BATCH, BATCH_PRODUCERS),
        "single": lambda: full.single(events // 5),
    }
    series = await interleave(subjects, rounds, say)
    return {"sustained_events_per_s": series["batch"], "sustained_single_per_s": series["single"]}


async def resumed(kept: Kept, rounds: int, events: int) -> dict[str, Series]:
    say(f"a source that kept {events:,} events goes on ...")
    claimable, tasks = Series(), Series()
    for number in within(DRAIN_SECONDS, rounds, at_least=3):
        reading = await kept.drain(events)
        claimable.values.append(reading.claimable_s)
        tasks.values.append(reading.tasks_s)
        say(f"round {number + 1}/{rounds}: tasks {reading.tasks_s:.2f} s  claimable {reading.claimable_s:.2f} s")
    per_s = Series([events / seconds for seconds in claimable.values])
    return {"resume_drain_s": claimable, "resume_tasks_s": tasks, "drain_events_per_s": per_s}


def compare(rounds: Sequence[Round]) -> dict[str, Series]:
    figures: dict[str, Series] = {}
    for name, above, below in RATIOS:
        both = [readings for readings in rounds if above in readings and below in readings]
        for suffix, of in (("", p50), ("_p95", p95)):
            figures[name + suffix] = ratio(series_of(both, above, of), series_of(both, below, of))
    return figures


async def measure(stack: PressureStack, scale: Scale) -> dict[str, object]:
    opened = await Opened.of(stack)
    rounds, seen, said = await in_company(opened, *scale.pick((21, 1.0, BACKLOG), (5, 1.0, BACKLOG), (1, 0.3, 1_000)))
    figures = compare(rounds)
    figures |= await sustained(opened, *scale.pick((7, 10_000), (3, 10_000), (1, 1_600)))
    figures |= await resumed(await opened.kept(), *scale.pick((7, DRAIN_EVENTS), (2, DRAIN_EVENTS), (1, 1_000)))
    await opened.close()
    result: dict[str, object] = {"benchmark": "pressure", "pairs": len(rounds)}
    for name, series in figures.items():
        result[name] = round(series.median, 3)
        result[f"{name}_spread"] = series.spread
    result["drains"] = len(figures["resume_drain_s"].values)
    for name in rounds[0]:
        result |= _medians(rounds, name)
    return result | _load(seen, said) | {"peak_mb": round(stack.dispatcher_peak_mb(), 1)}


def main() -> None:
    scale = parse_scale(__doc__)
    with PressureStack() as stack:
        result = uvloop.run(measure(stack, scale))
    print(json.dumps(result))


def _medians(rounds: Sequence[Round], name: str) -> dict[str, object]:
    times = series_of(rounds, name, p50)
    return {
        f"healthy_ms_{name}": round(times.median, 2),
        f"healthy_ms_{name}_spread": times.spread,
        f"healthy_per_s_{name}": round(series_of(rounds, name, lambda reading: reading.per_s).median, 1),
        f"busy_{name}": round(series_of(rounds, name, lambda reading: reading.busy).median, 2),
        f"dispatcher_{name}": round(series_of(rounds, name, lambda reading: reading.dispatcher).median, 2),
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
        "backlog_events": BACKLOG,
    }


if __name__ == "__main__":
    main()
