"""Metrics of a runner, besides those of every service.

Those of functions are by org and bundle. Users may upload any number of bundles, so a bounded number has series of its
own: a new one takes the place of one that has not run for an hour, and counts as `other` while there is none.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping

from prometheus_client import Counter, Histogram

from tracelake.http.metrics import HttpMetrics
from tracelake.runner.outcome import RunEnding, RunResult

_SECONDS = (0.1, 0.5, 1.0, 5.0, 30.0, 120.0, 600.0)
MOST_BUNDLES = 200
IDLE_SECONDS = 3600.0
OTHER = ("other", "other")
KILLS = frozenset(
    {
        RunEnding.TIMEOUT,
        RunEnding.MEMORY,
        RunEnding.OUTPUT,
        RunEnding.CANCELED,
        RunEnding.FENCED,
        RunEnding.STOPPED,
    }
)
"""Endings that the runner enforced."""


class RunnerMetrics(HttpMetrics):
    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._monotonic = monotonic
        self._bundles: OrderedDict[tuple[str, str], float] = OrderedDict()
        """Bundles with series of their own, and when each was last used; the least recently used is the first."""
        self.runs = self._counter(
            "trace_function_runs",
            "Runs of users' functions by org, bundle, language and ending: completed, error, or what ended them. The"
            " bundles that ran last have series of their own, the rest is `other`.",
            ("org", "bundle", "language", "ending"),
        )
        self.run_seconds = self._histogram(
            "trace_function_seconds",
            "Time from the start of a sandbox to its end.",
            _SECONDS,
            ("org", "bundle", "language"),
        )
        self.cold_starts = self._counter(
            "trace_function_cold_starts", "Runs that found no sandbox ready.", ("org", "bundle")
        )
        self.kills = self._counter(
            "trace_function_kills",
            "Runs that the runner ended, by reason: timeout, memory, output, canceled, fenced (the attempt is stale),"
            " stopped (the runner stops).",
            ("org", "bundle", "reason"),
        )
        self.refused_egress = self._counter(
            "trace_function_refused_requests",
            "Requests that functions may not send, by reason.",
            ("org", "bundle", "reason"),
        )
        self.running = self._gauge("trace_functions_running", "Functions that were taken and have not ended.")
        self.changed_bundles = self._counter(
            "trace_function_changed_bundles",
            "Unpacked bundles that were no longer as the runner had left them, and were fetched again.",
        )
        self.log_uploads = self._counter(
            "trace_function_log_uploads", "Uploads of logs of runs, by outcome: stored or failed.", ("outcome",)
        )

    def count_run(
        self, org: str, bundle: str, language: str, result: RunResult | None, refusals: Mapping[str, int]
    ) -> None:
        """Counts a run. `result` is None if it broke."""
        labels = self._labels(org, bundle)
        for reason, count in refusals.items():
            self.refused_egress.labels(*labels, reason).inc(count)
        if result is None:
            return
        self.runs.labels(*labels, language, result.ending.value).inc()
        if result.seconds:  # otherwise it ended before it had a sandbox
            self.run_seconds.labels(*labels, language).observe(result.seconds)
            if not result.warm:
                self.cold_starts.labels(*labels).inc()
        if result.ending in KILLS:
            self.kills.labels(*labels, result.ending.value).inc()

    def _labels(self, org: str, bundle: str) -> tuple[str, str]:
        labels, now = (org, bundle), self._monotonic()
        if labels not in self._bundles and len(self._bundles) >= MOST_BUNDLES:
            oldest, used_at = next(iter(self._bundles.items()))
            if now - used_at < IDLE_SECONDS:
                return OTHER
            self._forget(oldest)
        self._bundles[labels] = now
        self._bundles.move_to_end(labels)
        return labels

    def _forget(self, labels: tuple[str, str]) -> None:
        del self._bundles[labels]
        metrics: tuple[Counter | Histogram, ...] = (
            self.runs,
            self.run_seconds,
            self.cold_starts,
            self.kills,
            self.refused_egress,
        )
        for metric in metrics:
            metric.remove_by_labels({"org": labels[0], "bundle": labels[1]})
