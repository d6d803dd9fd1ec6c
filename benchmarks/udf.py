"""What an invocation of a user's function costs: from the Dispatcher's call to the final report, and in its sandbox.

    python -m benchmarks.udf [--quick | --smoke]

All subjects take turns in one run, on at most two cores. The last line is one JSON object: medians of wall time in
milliseconds with quartiles (`..._quartiles`), the slowest of a hundred (`..._p99_ms`), and medians of CPU time
(`..._cpu_ms`).

- `python`, `node`, `rust`: a handler that returns at once, from the call of the runner's listener to the arrival of its
  final report at a stand-in for the Dispatcher: TLS, bundle check, sandbox, log and report. A spare is ready.
- `cold`: the same in Python on a runner without spares.
- `sandbox`: the run in Python alone, from the start of its sandbox to its judged end, without the service around it.
- `bare_python`, `bare_node`: the interpreter as a plain process that loads the same handler, calls it with the same
  event and prints the answer. It has the usual priority; functions have a lower one, which the costs below include.
- `sandbox_cost_ms`, `sandbox_cost_cpu_ms`: `sandbox` less `bare_python`, round by round: the sandbox, the Runtime API
  and the judgement. `invoke_cost_ms`: `python` less `bare_python`: all that the runner adds.
- `..._per_second`: invocations by language, with as many at once as there are cores.
- `output`, `hostile_output`: what the runner does with 1 MiB that a function prints: lines of a log, and text that
  looks like tokens throughout.
- `verify`, `verify_large`: the look at an unpacked bundle before a run, of 10 and of 2,000 files.
- `first_come`, `fair`: how long the one function of an org waits behind a hundred of another org, on 8 slots and
  20 ms each, first come first served and with the slots of a runner. Nothing runs: these are waits alone.

CPU time is of this process and of the fork server, the sandbox and its monitor from the request on; making a spare is
not in it.
"""

import asyncio
import json
import lzma
import os
import platform
import resource
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from uuid import uuid4

from benchmarks.support.options import parse_scale, say
from benchmarks.support.stats import Series, interleave, percentile
from benchmarks.support.udf_runner import BenchRunner, StandIn, make_tls
from tracelake.runner.bundles import fingerprint
from tracelake.runner.exchange import SandboxReply, SandboxRequest, refuse
from tracelake.runner.function import CountRefusal, Egress, FunctionRunner, StopSignal
from tracelake.runner.languages import FunctionPlan, find_node
from tracelake.runner.memory import MemoryLimiter
from tracelake.runner.outcome import RunEnding
from tracelake.runner.output import OutputTail
from tracelake.runner.runtime_api import RuntimeApi
from tracelake.runner.slots import FunctionSlots
from tracelake.sandbox.spec import MIB
from tracelake.wire.claims import BundleRef, InvokingOrg

CORES = 2
CHUNK = 65_536
EVENT = b'{"a":1}'
RUST = Path(__file__).parent.parent / "sdk" / "rust" / "bootstrap-x86_64.xz"
PYTHON_SOURCE = "def handler(event, context):\n    return event\n"
NODE_SOURCE = "export async function handler(event) { return event; }\n"
BARE_PYTHON = """import json, sys
sys.path.insert(0, sys.argv[1])
from main import handler
print(json.dumps(handler(json.loads(sys.argv[2]), None)))"""
BARE_NODE = """import(process.argv[1] + "/main.mjs").then(async (module) => {
  console.log(JSON.stringify(await module.handler(JSON.parse(process.argv[2]))));
});"""

Subject = Callable[[], Awaitable[None]]


@dataclass
class CpuTimes:
    """CPU time of the subjects that have one, in milliseconds."""

    series: dict[str, Series] = field(default_factory=dict)

    async def measure(self, name: str, clock: Callable[[], float], subject: Subject) -> float:
        """Milliseconds of wall time."""
        began, cpu = time.perf_counter(), clock()
        await subject()
        elapsed = time.perf_counter() - began
        self.series.setdefault(name, Series()).values.append((clock() - cpu) * 1000)
        await asyncio.sleep(0.05)  # the next spare is made while nothing is measured
        return elapsed * 1000


def own_cpu() -> float:
    """Of this process and of the children that it has waited for."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


async def refuse_all(_request: SandboxRequest) -> SandboxReply:
    return refuse(403, "egress_refused", "nothing is reachable")


async def run_sandbox(functions: FunctionRunner, bundle: Path) -> None:
    plan = FunctionPlan(
        language="python",
        entrypoint="main.handler",
        bundle=bundle,
        timeout_seconds=60.0,
        memory_bytes=256 * MIB,
        scratch_bytes=MIB,
        environment={},
    )
    api = RuntimeApi(request_id="1", event=EVENT, deadline_ms=0, function_name="bench")
    egress = Egress(handler=refuse_all, count_refusal=CountRefusal())
    result = await functions.run(plan, api, egress, StopSignal())
    assert result.ending is RunEnding.COMPLETED, result


async def take_output(text: bytes) -> None:
    tail = OutputTail(["the-token", "the-lease", "the-address"])
    for start in range(0, len(text), CHUNK):
        tail.feed(text[start : start + CHUNK])
    tail.finish()


async def spawn(*command: str) -> None:
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, env={})
    output, _ = await process.communicate()
    assert json.loads(output) == json.loads(EVENT)


async def run_many(run: Subject, count: int) -> float:
    """Runs per second."""
    began, left = time.perf_counter(), iter(range(count))

    async def work() -> None:
        for _ in left:
            await run()

    await asyncio.gather(*(work() for _ in range(cores())))
    return count / (time.perf_counter() - began)


def cores() -> int:
    return len(os.sched_getaffinity(0))


def add_bundles(stand_in: StandIn) -> dict[str, BundleRef]:
    """By language; those that this machine can run."""
    bundles = {"python": stand_in.add_bundle("python", {"main.py": PYTHON_SOURCE.encode()})}
    if find_node():
        bundles["node"] = stand_in.add_bundle("node", {"main.mjs": NODE_SOURCE.encode()})
    if platform.machine() == "x86_64":
        bundles["rust"] = stand_in.add_bundle("rust", {"bootstrap": lzma.decompress(RUST.read_bytes())})
    return bundles


def write_files(directory: Path) -> None:
    directory.chmod(0o755)
    for name, source in (("main.py", PYTHON_SOURCE), ("main.mjs", NODE_SOURCE)):
        (directory / name).write_text(source)
        (directory / name).chmod(0o444)


async def measure() -> dict[str, object]:
    scale = parse_scale(__doc__)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    limiter = MemoryLimiter.choose()
    with tempfile.TemporaryDirectory(prefix="trace-udf-") as name:
        home = Path(name)
        stand_in = StandIn(tls := make_tls(home))
        await stand_in.start()
        warm = BenchRunner(stand_in, home / "warm", limiter, tls, spares=CORES)
        cold = BenchRunner(stand_in, home / "cold", limiter, tls, spares=0)
        await warm.start()
        await cold.start()
        bundles = add_bundles(stand_in)
        with tempfile.TemporaryDirectory(prefix="trace-functions-") as bare:
            write_files(Path(bare))
            times = CpuTimes()
            readings = make_readings(times, warm, cold, bundles, Path(bare))
            for reading in readings.values():
                await reading()
            times.series.clear()
            series = await interleave(readings, scale.pick(100, 30, 2), say, show=lambda value: f"{value:.1f} ms")
        at_once = {
            language: partial(run_many, partial(warm.invoke, bundle), scale.pick(40, 12, 4))
            for language, bundle in bundles.items()
        }
        rates = await interleave(at_once, scale.pick(15, 7, 1), say, show=lambda value: f"{value:.1f}/s")
        await warm.close()
        await cold.close()
        stand_in.close()
    return summarise(series, times, rates) | {"memory_limit": limiter.means, "cores": cores()}


def make_readings(
    times: CpuTimes, warm: BenchRunner, cold: BenchRunner, bundles: dict[str, BundleRef], bare: Path
) -> dict[str, Callable[[], Awaitable[float]]]:
    subjects: dict[str, tuple[Callable[[], float], Subject]] = {
        language: (lambda: warm.cpu_seconds, partial(warm.invoke, bundle)) for language, bundle in bundles.items()
    }
    subjects["cold"] = (lambda: cold.cpu_seconds, partial(cold.invoke, bundles["python"]))
    subjects["sandbox"] = (lambda: warm.cpu_seconds, partial(run_sandbox, warm.functions, bare))
    interpreter = (os.path.realpath(sys.executable), "-I", "-S", "-B", "-c", BARE_PYTHON)
    subjects["bare_python"] = (own_cpu, partial(spawn, *interpreter, str(bare), EVENT.decode()))
    if node := find_node():
        subjects["bare_node"] = (own_cpu, partial(spawn, str(node), "-e", BARE_NODE, str(bare), EVENT.decode()))
    log_lines = b"12:30:01 INFO looked at 512 rows of block 17_000_000\n" * (MIB // 54)
    subjects["output"] = (own_cpu, partial(take_output, log_lines))
    subjects["hostile_output"] = (own_cpu, partial(take_output, b"eyJaaaaaaaa.aaaaaaaa." * (MIB // 21)))
    for name, files in (("verify", 10), ("verify_large", 2_000)):
        (directory := bare / name).mkdir()
        for number in range(files):
            (directory / f"module{number}.py").write_text("pass")
        subjects[name] = (own_cpu, partial(verify, directory))
    readings: dict[str, Callable[[], Awaitable[float]]] = {"first_come": wait_first_come, "fair": wait_fairly}
    readings |= {name: partial(times.measure, name, clock, subject) for name, (clock, subject) in subjects.items()}
    return readings


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


def summarise(series: dict[str, Series], times: CpuTimes, rates: dict[str, Series]) -> dict[str, object]:
    figures: dict[str, object] = {}
    for name, values in series.items():
        figures[f"{name}_ms"] = round(values.median, 1)
        figures[f"{name}_quartiles"] = values.spread
        figures[f"{name}_p99_ms"] = round(percentile(values.values, 0.99), 1)
    for name, values in times.series.items():
        figures[f"{name}_cpu_ms"] = round(values.median, 1)
    for name, values in rates.items():
        figures[f"{name}_per_second"] = round(values.median, 1)
        figures[f"{name}_per_second_quartiles"] = values.spread
    for name, above, source in (
        ("sandbox_cost_ms", "sandbox", series),
        ("sandbox_cost_cpu_ms", "sandbox", times.series),
        ("invoke_cost_ms", "python", series),
        ("invoke_cost_cpu_ms", "python", times.series),
    ):
        below = source["bare_python"].values
        cost = Series([a - b for a, b in zip(source[above].values, below, strict=True)])
        figures[name] = round(cost.median, 1)
        figures[f"{name.removesuffix('_ms')}_quartiles"] = cost.spread
    return figures


if __name__ == "__main__":
    print(json.dumps(asyncio.run(measure())))
