"""Metrics of the Query Service, besides those of every service."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from tracelake.http.metrics import HttpMetrics

_SECONDS = (0.01, 0.05, 0.2, 1.0, 5.0, 30.0, 120.0)


class QueryMetrics(HttpMetrics):
    def __init__(self) -> None:
        super().__init__()
        self.queries = self._counter(
            "trace_queries",
            "Queries by caller (user or task) and outcome: ok, or the error's code.",
            ("caller", "outcome"),
        )
        self.query_seconds = self._histogram(
            "trace_query_seconds", "Time from the request to the end of a query.", _SECONDS, ("caller",)
        )
        self.running_queries = self._gauge("trace_queries_running", "Queries that were admitted and have not ended.")
        self.bytes_read = self._counter("trace_query_bytes_read", "Bytes of files and tables that queries read.")
        self.waiting_queries = self._gauge(
            "trace_queries_waiting", "Queries that wait: for their turn, or for an engine.", ("place",)
        )
        self.wait_seconds = self._histogram(
            "trace_query_wait_seconds",
            "Time that a query waited: for its turn, or for an engine.",
            _SECONDS,
            ("place",),
        )
        self.cache_bytes = self._gauge("trace_query_cache_bytes", "Bytes of the copies of files that are kept.")
        self.cache_limit_bytes = self._gauge(
            "trace_query_cache_limit_bytes", "The most that is kept, by the setting `query_cache_bytes`."
        )
        self.cache_fetched = self._counter(
            "trace_query_cache_fetched_bytes", "Bytes of files that were fetched because there was no copy."
        )
        self.cache_evicted = self._counter(
            "trace_query_cache_evicted_bytes", "Bytes of copies that were removed to stay within the limit."
        )

    # The observer of the cache

    def fetched(self, size: int) -> None:
        self.cache_fetched.inc(size)

    def evicted(self, size: int) -> None:
        self.cache_evicted.inc(size)

    def measured(self, size: int) -> None:
        self.cache_bytes.set(size)

    @contextmanager
    def waiting(self, place: str) -> Iterator[None]:
        began = time.monotonic()
        self.waiting_queries.labels(place).inc()
        try:
            yield
        finally:
            self.waiting_queries.labels(place).dec()
            self.wait_seconds.labels(place).observe(time.monotonic() - began)
