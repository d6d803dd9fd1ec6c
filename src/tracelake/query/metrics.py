"""Metrics of the Query Service, besides those of every service."""

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
