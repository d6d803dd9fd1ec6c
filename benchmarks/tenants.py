"""One org at full speed beside another: what the other's heartbeats and claims notice.

One machine carries everything: Postgres (fsync and synchronous_commit on), the Dispatcher (TLS, tokens), the processes
that read documents, and the load generator. A reading is some seconds of org B at a fixed pace, a heartbeat and a claim
after the other. Readings with a busy and with an idle org A are interleaved. The last line is one JSON object; each
figure is the median of its readings, and `_spread` beside it holds their lower and upper quartile.

A busy org A does all of this at once, again as soon as it is answered:

- deploys a DAG that differs from the one before;
- has documents of up to 1 MiB planned (`dry_run`), `dry_runs` at a time;
- completes tasks with 1,000 events each;
- announces ranges that a job reads, and invalidates all of them.

- `heartbeat_p99_ratio`, `claim_p99_ratio`: the 99th percentile with a busy A over that with an idle A, by round.
- `heartbeat_p99_ms`, `claim_p99_ms`: with a busy A. `a_per_s`: what A had answered in a second, refusals (429) apart.
"""

import asyncio
import json
import statistics
import sys
import time
from typing import Any

import uvloop

from benchmarks.support.options import Scale, parse_scale, say
from benchmarks.support.stack import BenchStack, Clients
from benchmarks.support.stats import Series, ratio
from benchmarks.support.tenants_load import claim, make_job, make_tasks
from tracelake.wire import routes
from tracelake.wire.task_calls import CompleteRequest, HeartbeatRequest

ORG_B = "quiet"
PACE_SECONDS = 0.02


class Load:
    """The process of org A."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process, self._stdin, self._stdout = process, process.stdin, process.stdout
        self.seconds = 0.0
        self.answered: dict[str, int] = {}
        self._began = 0.0

    @classmethod
    async def start(cls, stack: BenchStack, size: int, dry_runs: int) -> "Load":
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "benchmarks.support.tenants_load"),
            *(str(stack.home), json.dumps(stack.info), str(size), str(dry_runs)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        load = cls(process)
        if await load._stdout.readline() != b"ready\n":
            raise RuntimeError("the load did not start; see its messages above")
        return load

    async def go(self) -> None:
        self._stdin.write(b"go\n")
        await self._stdin.drain()
        self._began = time.perf_counter()

    async def stop(self) -> None:
        """Returns when everything that was asked for is answered."""
        self.seconds += time.perf_counter() - self._began
        self._stdin.write(b"stop\n")
        await self._stdin.drain()
        self.answered = json.loads(await self._stdout.readline())

    async def close(self) -> None:
        self._stdin.close()
        await self._process.wait()


class QuietOrg:
    """Org B, at its own pace."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients

    async def prepare(self) -> None:
        self._job = await make_job(self._clients, ORG_B, "quiet")
        (task_id,) = await make_tasks(self._clients, self._job, 1)
        self._token, self._fence = await claim(self._clients, task_id)

    async def read(self, seconds: float) -> tuple[float, float]:
        """99th percentiles in milliseconds: of heartbeats, of claims."""
        ready = iter(await make_tasks(self._clients, self._job, int(seconds / PACE_SECONDS / 2) + 1))
        beats: list[float] = []
        claims: list[float] = []
        ends = time.perf_counter() + seconds
        while (began := time.perf_counter()) < ends:
            await self._clients.task.call(routes.HEARTBEAT, self._token, HeartbeatRequest(**self._fence))
            beats.append(time.perf_counter() - began)
            task_id = next(ready, None)
            if task_id is not None:
                asked = time.perf_counter()
                token, fence = await claim(self._clients, task_id)
                claims.append(time.perf_counter() - asked)
                await self._clients.task.complete(token, CompleteRequest(**fence, status="Completed"))
            await asyncio.sleep(max(0.0, began + PACE_SECONDS - time.perf_counter()))
        return _p99(beats), _p99(claims)


def _p99(seconds: list[float]) -> float:
    if len(seconds) < 2:
        return seconds[0] * 1000
    return statistics.quantiles(seconds, n=100, method="inclusive")[98] * 1000


async def measure(stack: BenchStack, scale: Scale) -> dict[str, Any]:
    rounds, seconds = scale.pick((9, 8.0), (7, 3.0), (1, 2.0))
    size, dry_runs = scale.pick((2**20, 2), (2**20, 2), (2**14, 1))
    load = await Load.start(stack, size, dry_runs)
    clients = stack.clients()
    quiet = QuietOrg(clients)
    await quiet.prepare()
    await quiet.read(seconds / 4)
    series = {name: Series() for name in ("beat_busy", "beat_idle", "claim_busy", "claim_idle")}
    for number in range(rounds):
        for company in ("idle", "busy") if number % 2 == 0 else ("busy", "idle"):
            if company == "busy":
                await load.go()
            beat, claimed = await quiet.read(seconds)
            if company == "busy":
                await load.stop()
            series[f"beat_{company}"].values.append(beat)
            series[f"claim_{company}"].values.append(claimed)
        readings = "  ".join(f"{name} {each.values[-1]:.1f} ms" for name, each in series.items())
        say(f"round {number + 1}/{rounds}: {readings}")
    await load.close()
    await clients.close()
    beats = ratio(series["beat_busy"], series["beat_idle"])
    claims = ratio(series["claim_busy"], series["claim_idle"])
    return {
        "benchmark": "tenants",
        "rounds": rounds,
        "document_bytes": size,
        "dry_runs": dry_runs,
        "heartbeat_p99_ratio": round(beats.median, 2),
        "heartbeat_p99_ratio_spread": beats.spread,
        "claim_p99_ratio": round(claims.median, 2),
        "claim_p99_ratio_spread": claims.spread,
        "heartbeat_p99_ms": round(series["beat_busy"].median, 1),
        "claim_p99_ms": round(series["claim_busy"].median, 1),
        "a_per_s": {name.strip("_"): round(count / load.seconds, 1) for name, count in sorted(load.answered.items())},
    }


def main() -> None:
    scale = parse_scale(__doc__)
    with BenchStack(TRACE_USER_RATE_PER_SECOND="100000", TRACE_USER_RATE_BURST="100000") as stack:
        result = uvloop.run(measure(stack, scale))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
