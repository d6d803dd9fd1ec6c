"""What tracing costs: two stacks side by side, one of which sends every span to a collector that takes all.

Both run on one machine with the load generator and the collector; what is compared is interleaved. The last line is one
JSON object; each figure is the median of its readings, and `_spread` beside it holds their lower and upper quartile.
`--quick` takes fewer readings, `--smoke` one of each.

- `event_ms`, `event_traced_ms`: a call with one event that makes one task, one at a time, over TLS. `event_ratio`:
  round by round, traced over not.
- `chain40_s`, `chain40_traced_s`: a trigger of a source until the last of 40 jobs in a row is Completed, in a real
  worker process: 5 spans a job. `chain_ratio`: traced over not.
- `spans`: what the collector got. `dropped`: what the Dispatcher counted as lost.
"""

import json
import multiprocessing
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from multiprocessing.connection import Connection

import asyncpg
import uvloop
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from benchmarks.support.options import parse_scale, say
from benchmarks.support.routing_stack import FEED_DAG, RoutingStack, chain_dag
from benchmarks.support.routing_subjects import Chain, OneByOne, claim_feeders, medians_ms
from benchmarks.support.stats import Series, interleave, ratio
from tracelake.client.http import HttpClient

CALLS = 150


class TracedStack(RoutingStack):
    def __init__(self, collector: str) -> None:
        super().__init__()
        self._settings["TRACE_OTLP_ENDPOINT"] = collector


def _collect(pipe: Connection) -> None:
    """Says where it listens; then, when asked, how many spans it got."""
    bodies: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    pipe.send(f"http://127.0.0.1:{server.server_address[1]}")
    server.timeout = 0.05
    # One connection at a time is all there is: the Dispatcher keeps its own open until it stops.
    while not pipe.poll():
        server.handle_request()
    requests = (ExportTraceServiceRequest.FromString(body) for body in bodies)
    scopes = (scope for request in requests for item in request.resource_spans for scope in item.scope_spans)
    pipe.send(sum(len(scope.spans) for scope in scopes))


@contextmanager
def collector() -> Iterator[tuple[str, Connection]]:
    here, there = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_collect, args=(there,), daemon=True)
    process.start()
    url: str = here.recv()
    try:
        yield url, here
    finally:
        process.terminate()
        process.join(10)


async def events(stacks: list[RoutingStack], rounds: int) -> dict[str, Series]:
    say("events, one a call ...")
    subjects: list[OneByOne] = []
    for stack in stacks:
        await stack.deploy(FEED_DAG)
        clients = stack.clients()
        (feeder,) = await claim_feeders(stack.user(), clients, 1)
        subjects.append(OneByOne(clients, feeder, gaps=(rounds + 2) * CALLS, seed=1))
    await medians_ms(subjects, CALLS)
    plain, traced = Series(), Series()
    for number in range(rounds):
        for series, median in zip((plain, traced), await medians_ms(subjects, CALLS), strict=True):
            series.values.append(median)
        say(f"round {number + 1}/{rounds}: off {plain.values[-1]:.2f} ms  on {traced.values[-1]:.2f} ms")
    return {"event_ratio": ratio(traced, plain), "event_ms": plain, "event_traced_ms": traced}


async def chains(stacks: list[RoutingStack], rounds: int) -> dict[str, Series]:
    say("a chain of jobs ...")
    found = []
    for stack in stacks:
        await stack.deploy(chain_dag())
        stack.start_worker()
        found.append(await Chain.of(stack.user(), await asyncpg.connect(stack.state_dsn)))
    subjects = {"off": found[0].seconds, "on": found[1].seconds}
    for subject in subjects.values():
        await subject()
    series = await interleave(subjects, rounds, say, show=lambda value: f"{value:.2f} s")
    return {
        "chain_ratio": ratio(series["on"], series["off"]),
        "chain40_s": series["off"],
        "chain40_traced_s": series["on"],
    }


async def dropped(stack: RoutingStack) -> int:
    client = HttpClient(stack.info["internal_url"], stack.info["ca_file"])
    page = (await client.request("GET", "/metrics")).body.decode()
    await client.close()
    line = next(line for line in page.splitlines() if line.startswith("trace_otel_spans_dropped_total "))
    return int(float(line.split()[1]))


async def measure(stacks: list[RoutingStack], rounds: int) -> tuple[dict[str, Series], int]:
    figures = await events(stacks, rounds) | await chains(stacks, rounds)
    return figures, await dropped(stacks[1])


def main() -> None:
    rounds = parse_scale(__doc__).pick(9, 3, 1)
    with collector() as (url, pipe):
        with ExitStack() as opened:
            say("starting two stacks ...")
            stacks = [opened.enter_context(stack) for stack in (RoutingStack(), TracedStack(url))]
            figures, lost = uvloop.run(measure(stacks, rounds))
        pipe.send("done")
        spans = pipe.recv()
    result: dict[str, float | list[float]] = {}
    for name, series in figures.items():
        result[name] = round(series.median, 3)
        result[f"{name}_spread"] = series.spread
    print(json.dumps(result | {"spans": spans, "dropped": lost}))


if __name__ == "__main__":
    main()
