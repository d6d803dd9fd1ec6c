"""A collector that is away, slow or unwilling costs spans and nothing else."""

import logging
import socket
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.support.configs import dispatcher_config
from tests.tracing.support import Collector, Traced, dropped
from tracelake.dispatcher.config import DispatcherConfig
from tracelake.dispatcher.tracing import exporter
from tracelake.dispatcher.tracing.context import Span, TraceContext
from tracelake.dispatcher.tracing.exporter import OtlpSink, _kind
from tracelake.processes.parts import plan_parts
from tracelake.settings import Settings
from tracelake.stack import listeners
from tracelake.stack.clusters import Clusters
from tracelake.stack.tls import ensure_tls

NOW = datetime(2030, 1, 1, 0, 0, 0, 123456, tzinfo=UTC)


def span(number: int = 1) -> Span:
    return Span(f"span {number}", TraceContext(1, number), None, NOW)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def work(flow: Traced) -> None:
    """A whole chain; six spans a job."""
    flow.trigger("chain", "src", cursor=5)
    assert flow.run_all("first", "second") == 2


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A collector that is away is tried again for less long than in earnest."""
    monkeypatch.setattr(exporter, "TIMEOUT_SECONDS", 0.2)
    monkeypatch.setattr(exporter, "FLUSH_SECONDS", 0.2)


@pytest.mark.parametrize("status", [400, 404, 429, 500, 503])
def test_one_that_refuses(flow: Traced, seen: Collector, caplog: pytest.LogCaptureFixture, status: int) -> None:
    seen.status = status
    work(flow)
    flow.flush()
    assert dropped(flow.harness) == 12
    flow.trigger("chain", "src", cursor=6)
    flow.flush()
    assert dropped(flow.harness) == 14
    assert len(warnings(caplog)) == 1
    seen.status = 200
    flow.trigger("chain", "src", cursor=7)
    flow.flush()
    assert seen.names() == ["accept chain__src_0", "route chain__src_0"]
    assert dropped(flow.harness) == 14


class TestAway:
    @pytest.fixture
    def config(self) -> DispatcherConfig:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            return dispatcher_config(otlp_endpoint=f"http://127.0.0.1:{taken.getsockname()[1]}")

    def test_one_that_is_away(self, flow: Traced, caplog: pytest.LogCaptureFixture) -> None:
        work(flow)
        flow.flush()
        flow.trigger("chain", "src", cursor=6)
        flow.flush()
        assert dropped(flow.harness) == 14
        (warning,) = warnings(caplog)
        address = flow.harness.dispatcher.service.config.otlp_endpoint or ""
        assert f"the collector at {address.removeprefix('http://')} takes no traces (" in warning
        assert "Error" in warning


def test_the_log_says_where_traces_go_and_what_is_wrong(seen: Collector, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    host = seen.url.removeprefix("http://")
    out = OtlpSink(f"http://user:hidden@{host}/hidden", lambda _: None)
    assert f"traces are on, and sent to {host}" in caplog.text
    seen.status = 400
    out.take(span(), NOW)
    out.flush()
    assert f"the collector at {host} takes no traces (it answers 400)" in caplog.text
    assert "hidden" not in caplog.text
    assert _kind([]) == "for a reason that is not known"


def test_one_that_hangs_holds_nobody_up(flow: Traced, seen: Collector) -> None:
    """Nor a Dispatcher that stops: what it could not send is counted."""
    seen.hold.clear()
    work(flow)
    assert seen.asked.wait(60)
    flow.trigger("chain", "src", cursor=6)
    flow.run_all("first", "second")
    assert flow.tasks("second", "Completed")
    harness = flow.harness
    metrics = harness.dispatcher.metrics
    harness.restart()
    assert metrics.registry.get_sample_value("trace_otel_spans_dropped_total") in range(1, 25)
    assert flow.trigger("chain", "src", cursor=7).event_id


def test_the_queue_is_bounded(seen: Collector) -> None:
    lost: list[int] = []
    seen.hold.clear()
    small = OtlpSink(seen.url, lost.append, queue=10)
    for number in range(1, 31):
        small.take(span(number), NOW)
    assert sum(lost) in (10, 20)  # the sender may have taken the first ten meanwhile, and hangs with them
    seen.hold.set()
    small.flush()
    assert len(seen.spans) + sum(lost) == 30


def test_times_and_errors_arrive_as_they_were(seen: Collector) -> None:
    out = OtlpSink(seen.url, lambda _: None)
    out.take(Span("bad", TraceContext(1, 2), 3, NOW, attributes={"a": 1, "b": "text"}, error="Timeout"), NOW)
    out.take(Span("turned", TraceContext(1, 4), None, NOW), datetime(2029, 1, 1, tzinfo=UTC))
    out.flush()
    bad, turned = seen.spans
    assert (bad.trace_id, bad.span_id, bad.parent) == (f"{1:032x}", f"{2:016x}", f"{3:016x}")
    assert bad.start == bad.end == int(NOW.timestamp()) * 10**9 + 123_456_000
    assert (bad.attributes, bad.error) == ({"a": 1, "b": "text"}, "Timeout")
    assert turned.end == turned.start


def test_its_headers_are_the_standard_variable(
    seen: Collector, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-api-key=very%20secret")
    caplog.set_level(logging.DEBUG)
    out = OtlpSink(seen.url, lambda _: None)
    out.take(span(), NOW)
    out.flush()
    assert seen.headers[0]["x-api-key"] == "very secret"
    seen.status = 500
    out.take(span(), NOW)
    out.flush()
    assert "secret" not in caplog.text


def test_what_is_left_is_sent_by_a_dispatcher_that_stops(flow: Traced, seen: Collector) -> None:
    work(flow)
    metrics = flow.harness.dispatcher.metrics
    flow.harness.restart()
    assert len(seen.spans) == 12
    assert metrics.registry.get_sample_value("trace_otel_spans_dropped_total") == 0


def test_only_the_dispatcher_is_given_the_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers run what others wrote."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-api-key=secret")
    settings = Settings.load({"home": tmp_path, "otlp_endpoint": "http://127.0.0.1:4318"}, environ={})
    sockets = listeners.bind(settings)
    try:
        parts = plan_parts(
            settings, Clusters(None, None), None, sockets, ensure_tls(tmp_path / "tls", *settings.bind_hosts)
        )
    finally:
        for sock in sockets.values():
            sock.close()
    told = {part.name for part in parts if any(name.startswith("OTEL_") for name in part.environment)}
    assert told == {"dispatcher"}
    assert {part.name for part in parts} > told
