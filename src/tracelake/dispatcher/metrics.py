"""Every metric of the Dispatcher, declared once. `docs/reference/metrics.md` is generated from this registry."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_FAST = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


class Metrics:
    """A registry of its own, so that several Dispatchers can live in one process (tests do that)."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        self.requests = Counter(
            "trace_http_requests",
            "Requests by listener, route and status.",
            ("listener", "route", "status"),
            registry=registry,
        )
        self.claim_seconds = Histogram(
            "trace_claim_seconds", "Time to answer a claim.", registry=registry, buckets=_FAST
        )
        self.complete_seconds = Histogram(
            "trace_complete_seconds", "Time to answer a completion.", registry=registry, buckets=_FAST
        )
        self.claims = Counter(
            "trace_claims", "Claims by result (Claimed or the reason).", ("result",), registry=registry
        )
        self.completions = Counter(
            "trace_completions", "Final words taken, by recorded status.", ("status",), registry=registry
        )
        self.fenced = Counter(
            "trace_fenced_calls",
            "Calls of attempts that were not current, by call and code.",
            ("call", "code"),
            registry=registry,
        )
        self.token_failures = Counter(
            "trace_token_failures",
            "Credentials refused, by kind and reason.",
            ("kind", "reason"),
            registry=registry,
        )
        self.rate_limited = Counter(
            "trace_rate_limited", "Requests of users that came faster than allowed.", registry=registry
        )
        self.lease_expiries = Counter(
            "trace_lease_expiries",
            "Leases that ran out, by what became of the task.",
            ("status",),
            registry=registry,
        )
        self.retries = Counter("trace_retries", "Tasks put back into their queue.", registry=registry)
        self.reconciled = Counter(
            "trace_reconciled",
            "Wake-ups and publishes written again because none was live.",
            ("kind",),
            registry=registry,
        )
        self.group_batches = Counter("trace_group_commit_batches", "Lifecycle transactions.", registry=registry)
        self.group_calls = Counter("trace_group_commit_calls", "Lifecycle calls in them.", registry=registry)
        self.outbox_published = Counter("trace_outbox_published", "Outbox rows published.", registry=registry)
        self.outbox_rejected = Counter(
            "trace_outbox_rejected", "Outbox rows that the transport rejected.", registry=registry
        )
        self.outbox_pending = Gauge("trace_outbox_pending", "Outbox rows not yet published.", registry=registry)
        self.outbox_failed = Gauge(
            "trace_outbox_failed",
            "Outbox rows given up after too many rejections: needs a person.",
            registry=registry,
        )
        self.outbox_lag = Gauge(
            "trace_outbox_lag_seconds", "Age of the oldest outbox row not yet published.", registry=registry
        )
        self.queue_depth = Gauge(
            "trace_queue_depth",
            "Messages by queue and state (ready, in_flight, dead).",
            ("queue", "state"),
            registry=registry,
        )
        self.queue_oldest = Gauge(
            "trace_queue_oldest_seconds",
            "Age of the oldest receivable message.",
            ("queue",),
            registry=registry,
        )
        self.cron_fires = Counter(
            "trace_cron_fires", "Slots of cron sources, by result: fired, duplicate.", ("result",), registry=registry
        )
        self.cron_lateness = Histogram(
            "trace_cron_lateness_seconds",
            "How long after its time a slot was fired.",
            registry=registry,
            buckets=(0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0, 300.0, 3600.0, 86400.0),
        )
        self.drained = Counter(
            "trace_drained_events",
            "Events shown to edges that had fallen behind.",
            registry=registry,
        )
        self.invocations = Counter(
            "trace_invocations",
            "Attempts that the Dispatcher started itself, by runtime and outcome: Started or Refused by the invoker; "
            "Completed, Failed or Canceled here; Left to the lease; Unknown.",
            ("runtime", "outcome"),
            registry=registry,
        )
        self.in_flight = Gauge("trace_tasks_in_flight", "Running tasks by operator.", ("operator",), registry=registry)
        self.always_on = Gauge(
            "trace_always_on_sources", "Always-on sources of active versions, by state.", ("state",), registry=registry
        )
        self.source_lag = Gauge(
            "trace_source_lag_seconds",
            "Age of the last event of an always-on source.",
            ("org", "dag", "job"),
            registry=registry,
        )
        self.loop_rounds = Counter(
            "trace_loop_rounds", "Rounds of a loop that succeeded.", ("loop",), registry=registry
        )
        self.loop_failures = Counter(
            "trace_loop_failures", "Rounds of a loop that failed.", ("loop",), registry=registry
        )

    def render(self) -> bytes:
        return generate_latest(self.registry)
