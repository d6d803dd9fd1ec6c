"""A collector on loopback that speaks OTLP over HTTP, and traces as trees."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from uuid import uuid4

import msgspec
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.deploy.support import Text
from tests.http.support import user_token
from tests.routing.support import Flow
from tests.support.dispatcher import DispatcherHarness
from tracelake.dispatcher.tracing.exporter import OtlpSink


@dataclass(frozen=True)
class Seen:
    """A span as the collector got it."""

    trace_id: str
    span_id: str
    parent: str
    """Empty at the root."""
    name: str
    start: int
    end: int
    attributes: dict[str, Any]
    error: str
    """Empty if it is none."""


@dataclass
class Collector:
    """Answers `status`; while `hold` is not set, it does not answer at all."""

    status: int = 200
    hold: threading.Event = field(default_factory=threading.Event)
    asked: threading.Event = field(default_factory=threading.Event)
    """Somebody has sent something."""
    spans: list[Seen] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    url: str = ""

    def names(self) -> list[str]:
        return sorted(span.name for span in self.spans)

    def one(self, name: str, **attributes: Any) -> Seen:
        (found,) = self.all(name, **attributes)
        return found

    def all(self, name: str, **attributes: Any) -> list[Seen]:
        wanted = {f"tracelake.{key}": value for key, value in attributes.items()}
        return [span for span in self.spans if span.name == name and wanted.items() <= span.attributes.items()]

    def trace_ids(self) -> set[str]:
        return {span.trace_id for span in self.spans}

    def tree(self) -> list[str]:
        """One line a span, below its parent, in the order they began."""
        known = {span.span_id for span in self.spans}
        lines: list[str] = []

        def add(parents: set[str], depth: int) -> None:
            here = [span for span in self.spans if span.parent in parents]
            for span in sorted(here, key=lambda span: (span.start, span.name)):
                lines.append("  " * depth + span.name + (f" !{span.error}" if span.error else ""))
                add({span.span_id}, depth + 1)

        add({span.parent for span in self.spans} - known, 0)
        return lines


@contextmanager
def collector() -> Iterator[Collector]:
    state = Collector()
    state.hold.set()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            state.asked.set()
            state.hold.wait(60)
            if state.status == 200:
                assert self.path == "/v1/traces"
                state.headers.append({name.lower(): value for name, value in self.headers.items()})
                state.spans += _decode(body)
            self.send_response(state.status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    state.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        state.hold.set()
        server.shutdown()
        server.server_close()
        thread.join(10)


def _decode(body: bytes) -> list[Seen]:
    request = ExportTraceServiceRequest.FromString(body)
    return [
        Seen(
            trace_id=span.trace_id.hex(),
            span_id=span.span_id.hex(),
            parent=span.parent_span_id.hex(),
            name=span.name,
            start=span.start_time_unix_nano,
            end=span.end_time_unix_nano,
            attributes={item.key: getattr(item.value, item.value.WhichOneof("value")) for item in span.attributes},
            error=span.status.message if span.status.code == span.status.STATUS_CODE_ERROR else "",
        )
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def sink(harness: DispatcherHarness) -> OtlpSink:
    tracing = harness.dispatcher.tracing
    assert tracing is not None
    assert isinstance(tracing.sink, OtlpSink)
    return tracing.sink


def dropped(harness: DispatcherHarness) -> float:
    found = harness.dispatcher.metrics.registry.get_sample_value("trace_otel_spans_dropped_total")
    assert found is not None
    return found


def chain(dag: str = "chain") -> Text:
    """src -> first -> second."""
    return Text(dag).source("src").job("first", "src").job("second", "first")


@dataclass
class Traced(Flow):
    """Drives a DAG, and sees to it that what was traced has arrived."""

    def flush(self) -> None:
        sink(self.harness).flush()

    def post_trigger(self, dag: str, job: str, *traceparents: str, **unit: Any) -> int:
        """Over HTTP, as a user does it, with these headers; answers the status."""
        headers = [("authorization", f"Bearer {user_token(self.harness, org=self.org)}")]
        headers += [("traceparent", text) for text in traceparents]
        body = msgspec.json.encode({"idempotency_key": str(uuid4())} | unit)
        path = f"/v1/dags/{dag}/jobs/{job}/trigger"
        client = self.harness.clients["public"]
        return self.harness.run(client.request("POST", path, body=body, headers=headers)).status
