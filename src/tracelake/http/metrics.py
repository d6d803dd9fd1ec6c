"""The metrics that every service with listeners has: a registry of its own, requests, connections and rejections."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

from tracelake import __version__

FEW_BUCKETS = (0.005, 0.025, 0.1, 0.5, 2.5, 10.0)
"""For histograms with a label of many values."""


class HttpMetrics:
    """A registry of its own, so that several services can live in one process (tests do that)."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.process = ProcessCollector(registry=self.registry)
        self.build_info = self._gauge("trace_build_info", "The running release; always 1.", ("version",))
        self.build_info.labels(__version__).set(1)
        self.requests = self._counter(
            "trace_http_requests", "Requests by listener, route and status.", ("listener", "route", "status")
        )
        self.request_seconds = self._histogram(
            "trace_http_request_seconds", "Time to answer a request.", FEW_BUCKETS, ("listener", "route")
        )
        self.connections = self._gauge("trace_http_connections", "Open connections by listener.", ("listener",))
        self.connections_closed = self._counter(
            "trace_http_connections_closed",
            "Connections that a listener refused or gave up, by reason: address or listener (a limit was reached), "
            "handshakes (too slow while others waited), descriptors, or the stage whose deadline passed.",
            ("listener", "reason"),
        )
        self.internal_errors = self._counter(
            "trace_internal_errors", "Requests and batch items that returned 500; these are bugs."
        )
        self.token_failures = self._counter(
            "trace_token_failures", "Rejected credentials, by kind and reason.", ("kind", "reason")
        )
        self.rate_limited = self._counter("trace_rate_limited", "Requests and deliveries rejected by a rate limit.")
        self.fenced = self._counter(
            "trace_fenced_calls", "Calls of attempts that were not current, by call and code.", ("call", "code")
        )

    def _counter(self, name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, labels: tuple[str, ...] = ()) -> Gauge:
        return Gauge(name, text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...], labels: tuple[str, ...] = ()) -> Histogram:
        return Histogram(name, text, labels, registry=self.registry, buckets=buckets)

    def render(self) -> bytes:
        return generate_latest(self.registry)
