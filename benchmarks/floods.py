"""A flood at the public listener: what callers of the task and the internal listener notice.

One machine carries everything: a whole stack, the flood (a process of its own, on loopback) and the callers, who open
a new connection for each call. Readings with and without a flood are interleaved. The last line is one JSON object;
each figure is the median of its readings.

- `silent`: 1,300 connections that never send a byte. `handshakes`: full TLS handshakes as fast as they are answered, 64
  at a time. `refused`: requests with a credential that does not hold, on 64 connections.
- `<flood>_p99_ms`: the 99th percentile of a call to another listener while it goes on; `idle_p99_ms` without one.
- `<flood>_own_p99_ms`: the same for the flooded listener, `_failed` how many of those calls got no answer.
"""

import asyncio
import json
import ssl
import statistics
import sys
import time
from contextlib import suppress

import uvloop

from benchmarks.support.options import Scale, parse_scale, say
from benchmarks.support.stack import BenchStack
from benchmarks.support.stats import percentile
from tracelake.client.errors import DispatcherUnavailableError
from tracelake.client.http import HttpClient

FLOODS = ("silent", "handshakes", "refused")
OTHERS = (("task_url", "/internal/jwks/task"), ("internal_url", "/healthz"))
OWN = ("public_url", "/v1/whoami")
AT_ONCE = 64
PAUSE_SECONDS = 0.01


async def flood(kind: str, port: int, ca_file: str) -> None:
    """Goes on until standard input ends."""
    context = ssl.create_default_context(cafile=ca_file)
    done = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), done.set)
    number = 1300 if kind == "silent" else AT_ONCE

    async def attack() -> None:
        while not done.is_set():
            with suppress(OSError, asyncio.IncompleteReadError):
                tls = None if kind == "silent" else context
                reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
                if kind == "silent":
                    await reader.read(1)
                elif kind == "refused":
                    writer.write(b"GET /v1/whoami HTTP/1.1\r\nhost: x\r\nauthorization: Bearer a.b.c\r\n\r\n")
                    await reader.readuntil(b"}}")
                writer.transport.abort()

    attacks = [asyncio.create_task(attack()) for _ in range(number)]
    print("ready", flush=True)
    await done.wait()
    for task in attacks:
        task.cancel()


async def measure(stack: BenchStack, seconds: float, *calls: tuple[str, str]) -> tuple[list[float], int]:
    """Milliseconds of calls, each over a connection of its own; and how many got no answer."""
    times: list[float] = []
    failed = 0
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for url, path in calls:
            client = HttpClient(stack.info[url], stack.info["ca_file"], timeout=10.0)
            began = time.perf_counter()
            try:
                await client.request("GET", path)
                times.append((time.perf_counter() - began) * 1000)
            except DispatcherUnavailableError:
                failed += 1
            await client.close()
        await asyncio.sleep(PAUSE_SECONDS)
    return times, failed


async def reading(stack: BenchStack, kind: str, seconds: float) -> dict[str, float]:
    port = stack.info["public_url"].rsplit(":", 1)[1]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.floods", "--flood", kind, port, stack.info["ca_file"]),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    await process.stdout.readline()
    others, lost = await measure(stack, seconds, *OTHERS)
    own, failed = await measure(stack, seconds / 2, OWN)
    process.stdin.close()
    await process.wait()
    return {
        f"{kind}_p99_ms": percentile(others, 0.99),
        f"{kind}_failed": lost,
        f"{kind}_own_p99_ms": percentile(own, 0.99) if own else 0.0,
        f"{kind}_own_failed": failed,
    }


async def run(scale: Scale) -> dict[str, float]:
    rounds, seconds = scale.pick(5, 2, 1), scale.pick(10.0, 4.0, 0.5)
    readings: dict[str, list[float]] = {}
    with BenchStack() as stack:
        for number in range(rounds):
            quiet, _ = await measure(stack, seconds, *OTHERS)
            figures = {"idle_p99_ms": percentile(quiet, 0.99)}
            for kind in FLOODS:
                figures |= await reading(stack, kind, seconds)
            say(f"round {number + 1} of {rounds}: {json.dumps(figures)}")
            for name, value in figures.items():
                readings.setdefault(name, []).append(value)
    return {name: round(statistics.median(values), 1) for name, values in readings.items()}


def main() -> None:
    if sys.argv[1:2] == ["--flood"]:
        uvloop.run(flood(sys.argv[2], int(sys.argv[3]), sys.argv[4]))
        return
    print(json.dumps(uvloop.run(run(parse_scale(__doc__)))))


if __name__ == "__main__":
    main()
