"""What a run of a user's function costs: in its sandbox, against the bare interpreter.

    python -m benchmarks.functions [--quick | --smoke]

All subjects take turns in one run. The last line is one JSON object of medians in milliseconds.

- `python_ms`, `node_ms`: a handler that returns its event, from the start of its sandbox to its judged end; a spare is
  ready. `cold_ms`: the same in Python without spares. `..._p99_ms`: the slowest of a hundred.
- `bare_python_ms`, `bare_node_ms`: the interpreter as a plain process that imports what the runtime client imports.
- `sandbox_cost_ms`: `python_ms` less `bare_python_ms`, round by round: the sandbox, the Runtime API and the judgement.
- `output_ms`, `hostile_output_ms`: what the runner does with 1 MiB that a function prints: lines of a log, and text
  that looks like tokens throughout.
- `runs_per_second`: runs in Python, with as many at once as there are cores.
- `verify_ms`, `verify_large_ms`: the look at an unpacked bundle before a run, of 10 and of 2,000 files.
- `first_come_ms`, `fair_ms`: how long the one function of an org waits behind a hundred of another org, on 8 slots and
  20 ms each, first come first served and with the slots of a runner. Nothing runs: these are waits alone.
"""

import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from uuid import uuid4

from benchmarks.support.options import parse_scale, say
from benchmarks.support.stats import Series, interleave, percentile
from tracelake.runner.bundles import fingerprint
from tracelake.runner.exchange import SandboxReply, SandboxRequest, refuse
from tracelake.runner.function import CountRefusal, Egress, FunctionRunner, StopSignal
from tracelake.runner.languages import FunctionPlan, find_node
from tracelake.runner.memory import MemoryLimiter
from tracelake.runner.outcome import RunEnding
from tracelake.runner.output import OutputTail
from tracelake.runner.runtime_api import RuntimeApi
from tracelake.runner.slots import FunctionSlots
from tracelake.sandbox.server import SandboxServer
from tracelake.sandbox.spec import MIB
from tracelake.wire.claims import InvokingOrg

INSIDE = "tracelake.runner.inside"
CHUNK = 65_536
FILES = {
    "main.py": "def handler(event, context):\n    return event\n",
    "main.mjs": "export async function handler(event) { return event; }\n",
}
BARE_PYTHON = (os.path.realpath(sys.executable), "-I", "-S", "-B", "-c", "import importlib, json, socket, traceback")


async def refuse_all(_request: SandboxRequest) -> SandboxReply:
    return refuse(403, "egress_refused", "nothing is reachable")


async def run_function(functions: FunctionRunner, bundle: Path, language: str) -> None:
    plan = FunctionPlan(
        language=language,
        entrypoint="main.handler",
        bundle=bundle,
        timeout_seconds=60.0,
        memory_bytes=256 * MIB,
        scratch_bytes=MIB,
        environment={},
    )
    api = RuntimeApi(request_id="1", event=b'{"a":1}', deadline_ms=0, function_name="bench")
    egress = Egress(handler=refuse_all, count_refusal=CountRefusal())
    result = await functions.run(plan, api, egress, StopSignal())
    assert result.ending is RunEnding.COMPLETED, result


async def take_output(text: bytes) -> None:
    tail = OutputTail(["the-token", "the-lease", "the-address"])
    for start in range(0, len(text), CHUNK):
        tail.feed(text[start : start + CHUNK])
    tail.finish()


async def spawn(command: tuple[str, ...]) -> None:
    process = await asyncio.create_subprocess_exec(*command, env={})
    assert await process.wait() == 0


async def timed(subject: Callable[[], Awaitable[None]]) -> float:
    began = time.perf_counter()
    await subject()
    elapsed = time.perf_counter() - began
    await asyncio.sleep(0.05)  # the next spare is made while nothing is measured
    return elapsed * 1000


async def run_many(run: Callable[[], Awaitable[None]], count: int) -> float:
    """Runs per second."""
    began, left = time.perf_counter(), iter(range(count))

    async def work() -> None:
        for _ in left:
            await run()

    await asyncio.gather(*(work() for _ in range(os.cpu_count() or 1)))
    return count / (time.perf_counter() - began)


async def measure() -> dict[str, object]:
    scale = parse_scale(__doc__)
    limiter = MemoryLimiter.choose()
    warm, cold = SandboxServer(INSIDE, spares=2), SandboxServer(INSIDE)
    await warm.start()
    await cold.start()
    with tempfile.TemporaryDirectory(prefix="trace-functions-") as directory:
        bundle = Path(directory)
        bundle.chmod(0o755)
        for name, source in FILES.items():
            (bundle / name).write_text(source)
            (bundle / name).chmod(0o444)
        functions = FunctionRunner(warm, limiter)
        run_python = partial(run_function, functions, bundle, "python")
        subjects: dict[str, Callable[[], Awaitable[None]]] = {
            "python": run_python,
            "bare_python": partial(spawn, BARE_PYTHON),
            "cold": partial(run_function, FunctionRunner(cold, limiter), bundle, "python"),
            "output": partial(take_output, b"12:30:01 INFO looked at 512 rows of block 17_000_000\n" * (MIB // 54)),
            "hostile_output": partial(take_output, b"eyJaaaaaaaa.aaaaaaaa." * (MIB // 21)),
        }
        if node := find_node():
            subjects["node"] = partial(run_function, functions, bundle, "node")
            subjects["bare_node"] = partial(spawn, (str(node), "-e", "require('http')"))
        for name, files in (("verify", 10), ("verify_large", 2_000)):
            (directory_of_files := bundle / name).mkdir()
            for number in range(files):
                (directory_of_files / f"module{number}.py").write_text("pass")
            subjects[name] = partial(verify, directory_of_files)
        for subject in subjects.values():
            await subject()
        readings: dict[str, Callable[[], Awaitable[float]]] = {"first_come": wait_first_come, "fair": wait_fairly}
        readings |= {name: partial(timed, subject) for name, subject in subjects.items()}
        series = await interleave(readings, scale.pick(100, 30, 2), say, show=lambda value: f"{value:.1f} ms")
        rate = await run_many(run_python, scale.pick(200, 60, 4))
    await warm.close()
    await cold.close()
    return summarise(series) | {"runs_per_second": round(rate, 1), "memory_limit": limiter.means}


async def verify(directory: Path) -> None:
    assert await asyncio.to_thread(fingerprint, directory)


async def wait_behind(
    acquire: Callable[[InvokingOrg], Awaitable[object]], release: Callable[[InvokingOrg], None]
) -> float:
    """Milliseconds until org B has its slot."""
    org_a, org_b = (InvokingOrg(org_id=uuid4(), name=name) for name in "ab")

    async def run(org: InvokingOrg) -> float:
        began = time.perf_counter()
        await acquire(org)
        waited = time.perf_counter() - began
        await asyncio.sleep(0.02)
        release(org)
        return waited * 1000

    backlog = [asyncio.create_task(run(org_a)) for _ in range(100)]
    await asyncio.sleep(0)
    waited = await run(org_b)
    await asyncio.gather(*backlog)
    return waited


async def wait_first_come() -> float:
    slots = asyncio.Semaphore(8)
    return await wait_behind(lambda _: slots.acquire(), lambda _: slots.release())


async def wait_fairly() -> float:
    slots = FunctionSlots(8, most_waiting=100)
    return await wait_behind(lambda org: slots.acquire(org, 60), lambda org: slots.release(str(org.org_id)))


def summarise(series: dict[str, Series]) -> dict[str, object]:
    figures: dict[str, object] = {}
    for name, values in series.items():
        figures[f"{name}_ms"] = round(values.median, 1)
        figures[f"{name}_quartiles"] = values.spread
        figures[f"{name}_p99_ms"] = round(percentile(values.values, 0.99), 1)
    cost = Series([a - b for a, b in zip(series["python"].values, series["bare_python"].values, strict=True)])
    figures["sandbox_cost_ms"] = round(cost.median, 1)
    figures["sandbox_cost_quartiles"] = cost.spread
    return figures


if __name__ == "__main__":
    print(json.dumps(asyncio.run(measure()) | {"cores": os.cpu_count()}))
