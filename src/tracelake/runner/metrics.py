"""Metrics of a runner, besides those of every service."""

from tracelake.http.metrics import HttpMetrics

_SECONDS = (0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 120.0, 600.0)


class RunnerMetrics(HttpMetrics):
    def __init__(self) -> None:
        super().__init__()
        self.runs = self._counter(
            "trace_function_runs",
            "Runs of users' functions by language and ending: completed, error, or what ended them.",
            ("language", "ending"),
        )
        self.run_seconds = self._histogram(
            "trace_function_seconds", "Time from the start of a sandbox to its end.", _SECONDS, ("language",)
        )
        self.running = self._gauge("trace_functions_running", "Functions that were taken and have not ended.")
        self.refused_egress = self._counter(
            "trace_function_refused_requests", "Requests that functions may not send, by reason.", ("reason",)
        )
