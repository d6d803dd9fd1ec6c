"""Every metric of the Dispatcher, declared once. `docs/reference/metrics.md` is generated from this registry.

Counters and histograms are of this process. Gauges are of the stores, read by `loops.gauges`, and so the same in every
Dispatcher; each says so. Labels are bounded by what is deployed and not by what happens: routes, codes, kinds, states,
queues, operators. Names (org, dag, job) are those of sources and of jobs with a queue threshold; of jobs that failed
units hold there are a hundred at most.
"""

import math

from prometheus_client import Gauge

from tracelake.http.metrics import FEW_BUCKETS, HttpMetrics

_FAST = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
_WAITS = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1800.0, 7200.0, 86400.0)

SAME = "The same in every Dispatcher."
NAMED = ("org", "dag", "job")
PRODUCERS = ("task", "cron", "webhook", "manual")
MOST = 50_000
"""Tasks and outbox rows are counted no further: a gauge that says so means that there are so many or more."""
MOST_EDGES = 5_000
MOST_OF_EDGE = 1_000
"""Of so many inputs that are behind the waiting events are counted, each up to its share of `MOST` and no further."""


class Metrics(HttpMetrics):
    """The metrics of one Dispatcher."""

    def __init__(self) -> None:
        super().__init__()
        self._declare_tasks()
        self._declare_events()
        self._declare_sources()
        self._declare_pressure()
        self._declare_outbox()
        self._declare_credentials()
        self._declare_loops()
        self._begin_at_zero()

    def _declare_tasks(self) -> None:
        self.claim_seconds = self._histogram("trace_claim_seconds", "Time to answer a claim.", _FAST)
        self.complete_seconds = self._histogram("trace_complete_seconds", "Time to answer a completion.", _FAST)
        self.claims = self._counter("trace_claims", "Claims by result (Claimed or the reason).", ("result",))
        self.task_wait = self._histogram(
            "trace_task_wait_seconds",
            "How long a task had been ready when it was claimed. A task of a live input is ready with the commit that "
            "accepts its event.",
            _WAITS,
        )
        self.completions = self._counter(
            "trace_completions", "Final reports accepted, by recorded status.", ("status",)
        )
        self.failed_tasks = self._counter("trace_tasks_failed", "Tasks that failed and have no retry left.")
        self.lease_expiries = self._counter(
            "trace_lease_expiries", "Expired leases, by the new status of the task.", ("status",)
        )
        self.retries = self._counter("trace_retries", "Tasks requeued for a retry.")
        self.created_tasks = self._counter(
            "trace_tasks_made",
            "Tasks made, by what asked for them: event (as it was accepted), drain (an event that had waited), "
            "invalidation (a page of a large one), run (of an always_on source), call (a trigger or POST "
            "/internal/tasks).",
            ("by",),
        )
        self.group_batches = self._counter("trace_group_commit_batches", "Lifecycle transactions.")
        self.group_calls = self._counter("trace_group_commit_calls", "Lifecycle calls in them.")
        self.invocations = self._counter(
            "trace_invocations",
            "Attempts that the Dispatcher started itself, by runtime and outcome: Started or Refused by the invoker; "
            "Completed, Failed or Canceled here; Left to the lease; Unknown.",
            ("runtime", "outcome"),
        )
        self.in_flight = self._stored("trace_tasks_in_flight", "Running tasks by operator.", ("operator",))
        self.tasks = self._stored(
            "trace_tasks",
            f"Tasks that are not done, by state: ready, held (waits for a place of a limit), retrying, running, failed "
            f"(no retries left, and not skipped). Each counted up to {MOST}.",
            ("state",),
        )
        self.oldest_ready = self._stored(
            "trace_tasks_oldest_ready_seconds", "Age of the oldest ready task; 0 if there is none."
        )

    def _declare_events(self) -> None:
        self.events = self._counter(
            "trace_events",
            "Events that were said, by kind of producer (task, cron, webhook, manual) and what became of them: routed; "
            "kept (waits for the commit of its data, or is not of the current generation); duplicate.",
            ("producer", "result"),
        )
        self.drained = self._counter("trace_drained_events", "Events replayed to edges that had fallen behind.")
        self.edges_behind = self._stored(
            "trace_edges_behind",
            "Inputs that events wait for, by state: held (a unit failed), building (of a version that is "
            "not active yet), behind (they drain, or pressure stops them).",
            ("state",),
        )
        self.events_waiting = self._stored(
            "trace_events_waiting",
            f"Events that wait for an input that is behind, by its state. For each of up to {MOST_EDGES} inputs "
            f"they are counted up to its share of {MOST}, and no further than {MOST_OF_EDGE}.",
            ("state",),
        )
        self.failed_units = self._stored(
            "trace_input_failed_units",
            "Units that failed without a retry left and hold an input of this job; absent for jobs without. At most "
            "100 jobs.",
            NAMED,
        )
        self.stale_datasets = self._stored(
            "trace_dataset_late_seconds",
            "By how much the newest commit of a dataset, or its newest block, is older than its check of kind "
            "freshness allows; absent for datasets that are fresh. At most 100 datasets.",
            ("org", "dataset"),
        )
        self.invalidations = self._stored(
            "trace_invalidations_pending", "Readers for whom a large invalidation is not gone through yet."
        )
        self.builds = self._stored("trace_builds", "Versions that are being built.")
        self.oldest_build = self._stored(
            "trace_builds_oldest_seconds", "How long the oldest of them has been building; 0 without one."
        )
        self.sweeping = self._stored(
            "trace_nodes_to_sweep", "Nodes whose tasks a cutover has yet to cancel, bring back or count."
        )
        self.buffer_dead = self._counter("trace_buffer_dead_letters", "Batches that a sink rejected.")
        self.buffer_backlog = self._stored(
            "trace_buffer_backlog", f"Batches that sinks may take and that are not yet in their table, up to {MOST}."
        )
        self.buffer_pinned = self._stored(
            "trace_buffer_awaiting_task",
            f"Batches published by running tasks; sinks get them when the task completes. Up to {MOST}.",
        )
        self.buffer_age = self._stored("trace_buffer_backlog_oldest_seconds", "Age of the oldest of them.")
        self.buffer_letters = self._stored(
            "trace_buffer_dead_letters_kept",
            "Dead letters of a buffered dataset that nobody has replayed or dropped, without those of definitions "
            "whose rows the table does not show; absent for datasets without. "
            f"Counted up to {MOST}, of at most 100 datasets.",
            ("org", "dataset"),
        )
        self.sink_asked = self._stored(
            "trace_sink_asked_seconds",
            "How long ago a sink last asked which tables there are; a sink asks every few seconds. +Inf before the "
            "first.",
        )
        self.reconciled = self._counter(
            "trace_reconciled",
            "Repairs, by kind: task_wakeup and buffer_batch that nobody held any more, held_task and "
            "held_edge held for nothing, event without its task.",
            ("kind",),
        )

    def _declare_sources(self) -> None:
        self.deliveries = self._counter(
            "trace_webhook_deliveries",
            "Calls of webhooks by result: accepted, duplicate, or the code of the refusal.",
            ("result",),
        )
        self.triggers = self._counter(
            "trace_triggers",
            "Triggers by result: event (a source spoke), task (a job got one), duplicate, or the code of the refusal.",
            ("result",),
        )
        self.cron_fires = self._counter(
            "trace_cron_fires", "Slots of cron sources, by result: fired, duplicate.", ("result",)
        )
        self.cron_lateness = self._histogram(
            "trace_cron_lateness_seconds",
            "Delay between the time of a slot and its firing.",
            (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0, 300.0, 3600.0, 86400.0),
        )
        self.cron_asked = self._counter("trace_cron_lists", "How often a scheduler listed the cron sources.")
        self.sources = self._stored(
            "trace_sources", "Sources of active versions, by kind and by state as `trace sources` shows it.",
            ("kind", "state"),
        )  # fmt: skip
        self.always_on = self._stored(
            "trace_always_on_sources", "Always-on sources of active versions, by the state of their run.", ("state",)
        )
        self.run_state = self._stored(
            "trace_always_on_run", "1 for the state that the run of an always-on source is in.", (*NAMED, "state")
        )
        self.run_attempts = self._stored(
            "trace_always_on_attempts", "Attempts of an always-on source's run so far; each restart is one more.", NAMED
        )
        self.source_lag = self._stored(
            "trace_source_lag_seconds",
            "Age of the last event of an always-on source; of one that never said anything, of its run.",
            NAMED,
        )
        self._declare_followers()
        self.source_said = self._stored(
            "trace_source_last_event_timestamp_seconds",
            "When the last event on an output of a source was accepted; absent without one.",
            (*NAMED, "kind"),
        )
        self.source_paused = self._stored(
            "trace_source_paused_seconds", "How long a source has been paused by a user; absent for others.", NAMED
        )
        self.source_stopped = self._stored(
            "trace_source_stopped",
            "1 for a source that is stopped by a full queue downstream; absent for others.",
            NAMED,
        )
        self.cron_slot = self._stored(
            "trace_cron_last_slot_timestamp_seconds", "The last slot of a cron source that was fired.", NAMED
        )
        self.cron_overdue = self._stored(
            "trace_cron_overdue_seconds",
            "How long ago the first slot was due that a cron source still owes; 0 while it owes none. Absent with "
            "`catch_up: none`, which makes up for nothing.",
            NAMED,
        )

    def _declare_followers(self) -> None:
        """Of sources that follow the head of a chain, as their heartbeats said it last."""
        self.follower_state = self._stored(
            "trace_follower_state", "1 for how the last look of a follower at its chain ended.", (*NAMED, "state")
        )
        self.follower_lag_blocks = self._stored(
            "trace_follower_lag_blocks", "Blocks from the newest one in a follower's tables to the head.", NAMED
        )
        self.follower_lag = self._stored(
            "trace_follower_lag_seconds",
            "Age of the newest block in a follower's tables, by the time of the block. It grows as well if the chain "
            "or the follower has stopped.",
            NAMED,
        )
        self.follower_announced = self._stored(
            "trace_follower_announced", "1 if a subscription announces new blocks to a follower, 0 if it polls.", NAMED
        )
        self.follower_reorgs = self._stored(
            "trace_follower_reorgs", "Reorganisations that a follower has written, by all attempts.", NAMED
        )
        self.follower_last_depth = self._stored(
            "trace_follower_last_reorg_depth", "Blocks that the last of them replaced; 0 without one.", NAMED
        )
        self.follower_max_depth = self._stored(
            "trace_follower_max_reorg_depth", "Blocks that the deepest of them replaced; 0 without one.", NAMED
        )

    def _declare_pressure(self) -> None:
        """Of each queue with a threshold. Its age is as fresh as the last look of the pressure loop."""
        labels = (*NAMED, "version")
        of = "of a job with a threshold, in the active or the building version."
        self.pressure_depth = self._stored(
            "trace_pressure_depth",
            f"Queued tasks {of} The backlog of a buffered dataset with a threshold is such a queue too: "
            "`job` is the dataset, `version` is backlog, and batches are counted.",
            labels,
        )
        self.pressure_max_depth = self._stored(
            "trace_pressure_max_depth", "Its `max_queue_depth`; absent if it has none.", labels
        )
        self.pressure_age = self._stored("trace_pressure_oldest_seconds", f"Age of the oldest queued task {of}", labels)
        self.pressure_max_age = self._stored(
            "trace_pressure_max_age_seconds", "Its `max_queue_age`; absent if it has none.", labels
        )
        self.pressure_share = self._stored(
            "trace_pressure_share", "How full the queue is, by the worse of depth and age: 1 is full.", labels
        )
        self.pressure_level = self._stored(
            "trace_pressure_level", "What it stops upstream: 0 nothing, 1 bulk producers, 2 all producers.", labels
        )
        self.producers_stopped = self._stored(
            "trace_producers_stopped", "Jobs and sources that are stopped by a full queue or paused by a user."
        )

    def _declare_outbox(self) -> None:
        self.outbox_published = self._counter("trace_outbox_published", "Outbox rows published.")
        self.outbox_rejected = self._counter("trace_outbox_rejected", "Outbox rows that the transport rejected.")
        self.outbox_pending = self._stored("trace_outbox_pending", f"Outbox rows not yet published, up to {MOST}.")
        self.outbox_failed = self._stored(
            "trace_outbox_failed", "Outbox rows that failed after too many rejections; they need an operator."
        )
        self.outbox_lag = self._stored("trace_outbox_lag_seconds", "Age of the oldest outbox row not yet published.")
        self.queue_depth = self._stored(
            "trace_queue_depth", "Messages by queue and state (ready, in_flight, dead).", ("queue", "state")
        )
        self.queue_oldest = self._stored(
            "trace_queue_oldest_seconds", "Age of the oldest receivable message.", ("queue",)
        )

    def _declare_loops(self) -> None:
        self.loop_rounds = self._counter("trace_loop_rounds", "Rounds of a loop that succeeded.", ("loop",))
        self.loop_failures = self._counter("trace_loop_failures", "Rounds of a loop that failed.", ("loop",))
        self.loop_seconds = self._histogram(
            "trace_loop_seconds", "Duration of a round of a loop.", FEW_BUCKETS, ("loop",)
        )
        self.spans_dropped = self._counter(
            "trace_otel_spans_dropped",
            "Spans that no collector took: the queue was full, or the collector away or unwilling.",
        )
        self.lineage_events = self._counter(
            "trace_openlineage_events",
            "OpenLineage events by what became of them: sent, rejected by the receiver, or dropped (too many waited, "
            "or their task is gone).",
            ("result",),
        )
        self.lineage_failures = self._counter(
            "trace_openlineage_failures", "Rounds in which the receiver of OpenLineage events took none, or not all."
        )
        self.lineage_lag = self._gauge(
            "trace_openlineage_lag_seconds", f"Age of the oldest OpenLineage event that waits to be sent. {SAME}"
        )

    def _declare_credentials(self) -> None:
        """Both are set by the process that serves the listeners."""
        self.certificate_left = self._gauge(
            "trace_certificate_seconds_left", "How long the certificate that this Dispatcher serves is still valid."
        )
        self.certificate_left.set(math.nan)
        self.renewal_failures = self._gauge(
            "trace_credential_renewal_failures",
            "Rounds of `trace up` that could not renew the certificate and the admin token, since the last that could.",
        )

    def _begin_at_zero(self) -> None:
        """A counter that is first seen at 1 has not risen, as far as `rate` and `increase` can tell."""
        for producer in PRODUCERS:
            for result in ("routed", "kept", "duplicate"):
                self.events.labels(producer, result)
        values = {
            self.created_tasks: ("event", "drain", "invalidation", "run", "call"),
            self.deliveries: ("accepted", "duplicate"),
            self.triggers: ("event", "task", "duplicate"),
            self.cron_fires: ("fired", "duplicate"),
            self.completions: ("Completed", "Failed", "Canceled"),
            self.lease_expiries: ("Failed", "Canceled"),
            self.lineage_events: ("sent", "rejected", "dropped"),
            self.reconciled: ("task_wakeup", "buffer_batch", "held_task", "held_edge", "event"),
        }
        for counter, labels in values.items():
            for label in labels:
                counter.labels(label)

    def _stored(self, name: str, text: str, labels: tuple[str, ...] = ()) -> Gauge:
        """What the stores hold, whoever asks."""
        return self._gauge(name, f"{text} {SAME}", labels)
