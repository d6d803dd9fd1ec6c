"""Every reason there is, as data: its code, how bad it is, what it means, what to do. docs/why.md is made of it."""

from dataclasses import dataclass
from typing import Literal

from tracelake.wire.why import WhyState

Subject = Literal["task", "job", "dataset"]


@dataclass(frozen=True, slots=True)
class ReasonKind:
    code: str
    subject: Subject
    state: WhyState
    meaning: str
    advice: str
    upstream: bool
    """The cause lies before it: what explains a dataset goes on looking there."""


_UPSTREAM = frozenset({"input_empty", "input_in_progress", "input_waits", "join_waits"})

_KINDS: dict[tuple[Subject, WhyState], dict[str, tuple[str, str]]] = {
    ("task", "blocked"): {
        "check_failed": (
            "The rows that it wrote failed a check of severity `error`. Nothing was committed; what readers had is "
            "still there.",
            "Correct the query or the check, deploy, and retry it; or skip it and accept the gap.",
        ),
        "failed": (
            "It failed and is not retried: no attempt is left, or the error is not retryable.",
            "Fix the cause and retry it, or skip it and accept the gap.",
        ),
        "holds_edge": (
            "Its unit failed (no retries left), and later units of the same input wait so that no gap is left.",
            "Retry or skip it; then the input continues automatically.",
        ),
        "wakeup_failed": (
            "It is ready, but the queue rejected its wake-up (no retries left), so no worker learns of it.",
            "Fix the queue and requeue the row.",
        ),
    },
    ("task", "waiting"): {
        "at_quota": (
            "As many tasks of its organisation run as its quota allows; it gets the next place that is free and its "
            "turn.",
            "Wait, cancel less important tasks, or ask the platform's operator for a higher quota.",
        ),
        "backing_off": (
            "The last attempt failed; the next one starts automatically at a known time.",
            "Wait, or retry it now.",
        ),
        "lease_overdue": (
            "The lease of its worker has expired without a heartbeat; the attempt is about to time out.",
            "Wait, and check the worker.",
        ),
        "limited": (
            "The number of running tasks has reached a limit; it gets a free place when its turn comes.",
            "Wait, or raise max_concurrency: of a job in its document, of an operator in the runtimes file.",
        ),
        "ready": (
            "It is ready and its wake-up was sent; no worker has claimed it yet.",
            "Wait for a free worker, or start another.",
        ),
        "returning": (
            "A cutover asked it to stop, and its version is active again: it becomes ready once it has stopped.",
            "Wait.",
        ),
        "unheard": (
            "A worker runs it, but half of the lease has passed without a heartbeat; three are expected per lease.",
            "Check the worker; when the lease expires, the task is retried automatically.",
        ),
        "wakeup_pending": (
            "It is ready, and its wake-up (or its start) waits in the outbox.",
            "Wait; if it does not go away, check whether the queue is available.",
        ),
    },
    ("task", "working"): {
        "running": ("A worker runs it, and its lease is valid.", "Wait, or cancel it."),
        "stopping": ("It was asked to stop and has not stopped yet; otherwise its lease ends it.", "Wait."),
    },
    ("task", "fine"): {
        "canceled": ("A user cancelled it.", "Retry it if it is needed after all."),
        "completed": ("It is done.", "Nothing to do."),
        "skipped": ("It failed (no retries left), and a user skipped it.", "Retry it if its unit is needed after all."),
        "superseded": (
            "Another version of the DAG is active and does not need it. It becomes ready again with its version.",
            "Nothing to do, or roll back.",
        ),
    },
    ("job", "blocked"): {
        "unit_without_times": (
            "A unit of an input has no times, so windows of time that may have blocks of it are not computed. Its job "
            "cuts the units of its own inputs, or an older release committed it.",
            "Where the job of the input has units of blocks, choose a size that does not cut the units it reads, or "
            "read what that job reads. A unit of an older release: compute it again.",
        ),
        "build_failed": (
            "Tasks of the build of a new version have failed, or batches of its rows were rejected, and none is left "
            "that could run, so the version cannot become active. The active version stays.",
            "Look at the errors; correct the document and deploy it, or retry or skip the failed tasks, and replay or "
            "drop the rejected batches.",
        ),
        "edge_held": ("A unit of an input failed (no retries left), and later units wait.", "Retry or skip the task."),
        "no_active_version": ("No version of the DAG is active.", "Activate one."),
        "not_in_active_version": (
            "The active version does not have the job.",
            "Deploy a document that has it, or roll back.",
        ),
        "over_quota": (
            "Its organisation has reached its quota of queued tasks or stored bytes, so no tasks are created. "
            "Events are kept, and become tasks when less than 80 % of the quota is used.",
            "Let queued tasks run, or cancel some; for stored bytes, delete data that is not needed; or ask the "
            "platform's operator for more.",
        ),
        "pressure": (
            "A queue downstream is full, so no tasks are created. Events are kept, and become tasks when the queue "
            "is less than half full.",
            "Let the queue empty: more workers, a higher limit, or a faster job.",
        ),
        "source_dead": ("The run of the source failed (no retries left).", "Fix the cause and retry its task."),
        "source_ended": (
            "The run of the source returned or was cancelled, and no other is started.",
            "Nothing, if it was meant to end. A cancelled run can be retried; if it returned, deploy a changed job.",
        ),
        "source_paused": ("A user paused the source. Its events are kept.", "Resume it."),
        "tasks_failed": (
            "Tasks failed (no retries left). They block nothing, but their units are missing.",
            "Retry or skip them.",
        ),
        "units_differ": (
            "None of the newest units of two inputs match: one has cut them in another way, as units of 2,000 blocks "
            "and of 500. A task is created for a unit that all inputs have.",
            "Give the job `units` of its own, so that it reads windows of its inputs, or give the inputs units of one "
            "size.",
        ),
    },
    ("job", "waiting"): {
        "unit_awaits_task": (
            "A unit has changed and is computed again when a task has ended: one upstream that will change it once "
            "more, one of the unit before it, or one of its own that began before the change.",
            "Wait for the task.",
        ),
        "unit_waits": (
            "A unit has changed and cannot be computed yet: its inputs do not cover it, or the unit before it is not "
            "computed.",
            "Wait if the unit before it is being computed; else compute what is missing. A gap that was skipped stays: "
            "retry that task, or trigger its unit.",
        ),
        "cursor_passed": (
            "The newest event of a source is below the cursor that its reader has reached, and has no `revision`. "
            "It counts as read, and so does every event up to that cursor.",
            "Send a larger cursor, or the event with a `revision`; create its task with a trigger; or, if the high "
            "cursor was a mistake, deploy the source under another name, so that it starts again.",
        ),
        "input_empty": (
            "An input has no event yet, so there are no tasks to create.",
            "Check why the input is empty.",
        ),
        "input_waits": (
            "An input is a buffered dataset, and published rows are not in its table: batches wait or were rejected.",
            "Check why they are not in the table.",
        ),
        "join_waits": (
            "One input has a unit that another does not have yet; the task is created once every input has it.",
            "Check why the other input does not have it.",
        ),
        "own_queue_full": (
            "Its own queue is full: it has as many ready tasks as its threshold allows, gets no new ones, and stops "
            "its upstream jobs until fewer than half are left.",
            "Let the queue empty: more workers, a higher limit, or a faster job.",
        ),
        "source_backing_off": (
            "The run of the source failed and restarts at a known time.",
            "Fix the cause; the run is retried without end, or now by a retry of its task.",
        ),
        "source_never_fired": (
            "No user has triggered the source yet, or its first slot has not come.",
            "Trigger it, or wait for its schedule.",
        ),
        "source_no_events": (
            "The source is active and has emitted nothing yet.",
            "Check its input: deliveries, or the data that it follows.",
        ),
        "source_starting": (
            "The run of the source waits to be started.",
            "Wait for a free worker, or start another.",
        ),
        "source_unheard": (
            "The worker of the source's run has sent no heartbeat for half of the lease.",
            "Check the worker; when the lease expires, the run is restarted automatically.",
        ),
        "tasks_at_quota": (
            "Tasks wait because the organisation has reached its quota of running tasks or functions.",
            "Wait, cancel less important tasks, or ask the platform's operator for a higher quota.",
        ),
        "tasks_backing_off": ("Tasks failed and are retried automatically.", "Wait, or look at the error."),
        "tasks_limited": (
            "Tasks wait for a limit on running work.",
            "Wait, or raise max_concurrency: of a job in its document, of an operator in the runtimes file.",
        ),
        "tasks_ready": ("Tasks are ready and wait for workers.", "Wait for a free worker, or start another."),
        "tasks_unheard": (
            "Workers of running tasks have sent no heartbeat for half of the lease.",
            "Check the workers; when a lease expires, its task is retried automatically.",
        ),
    },
    ("job", "working"): {
        "input_in_progress": (
            "An input has no event yet, and a task is running that computes it, or what it is made of.",
            "Wait for the task.",
        ),
        "being_built": (
            "Only the version that is being built has it; it becomes active with the cutover.",
            "Wait for the build.",
        ),
        "edge_draining": ("An input is behind and processes the events that it missed.", "Wait."),
        "source_stopping": (
            "The run of the source was asked to stop, by a user or a cutover, and has not stopped yet.",
            "Wait; a cancelled run can be retried once it has stopped.",
        ),
        "tasks_running": ("Tasks are running.", "Wait."),
    },
    ("job", "fine"): {
        "nothing_due": (
            "An input has no event yet, and its source is running: it announces the input when there is something for "
            "it, as a follower does with units that are final.",
            "Nothing to do.",
        ),
        "up_to_date": ("All its events are processed.", "Nothing to do."),
        "window_open": (
            "All windows that are over are computed; the last one is computed when its inputs have passed its end.",
            "Nothing to do. With `when: updated` a window is computed as its inputs grow.",
        ),
    },
    ("dataset", "blocked"): {
        "units_given_up": (
            "Units of it, or of what it is made from, were skipped or canceled: it has a gap there, and nothing will "
            "fill it.",
            "Accept the gap, or fix the cause and retry the task: what reads the unit then follows.",
        ),
        "batch_not_sent": (
            "The queue rejected the pointer to a batch (no retries left), so no sink learns of it.",
            "Fix the queue and requeue the row.",
        ),
        "dead_letters": (
            "Batches were rejected: their rows are not in the table until a user replays them.",
            "Look at the errors, fix the cause and replay them; or drop them.",
        ),
        "no_sink": (
            "Batches wait, and no sink has asked for work for a minute or more.",
            "Start a sink, or a worker, which includes one.",
        ),
        "source_late": (
            "A check of kind `freshness` fails, and every job from the sources to the dataset has done what came in. "
            "Its sources bring no newer data, or less often than the check allows.",
            "Look at the sources: when the last event of each came, and how old the newest block of a chain is. If one "
            "should have newer data, check what it reads: the endpoint, the deliveries, the schedule. Otherwise allow "
            "a larger `max_age`.",
        ),
        "removed": (
            "The active version does not write it any more; the existing data stays.",
            "Roll back, or deploy a document that publishes it.",
        ),
    },
    ("dataset", "waiting"): {
        "not_fresh": (
            "A check of kind `freshness` fails: the newest commit or block is older than the check allows. Another "
            "reason of the dataset says why.",
            "Follow the advice for the other reasons.",
        ),
        "backlog_full": (
            "As many batches wait for a sink as its threshold allows, or one waits too long: its writers get no new "
            "tasks until the backlog is less than half full.",
            "Let the backlog empty: check why batches wait, start another sink, or raise max_queue_depth.",
        ),
        "batches_wait": (
            "Published batches are not in the table yet; a sink is running.",
            "Wait; if they grow old, the sink's log has the reason.",
        ),
        "dataset_empty": (
            "Its jobs have processed all their events and reported no event of this dataset.",
            "Look at the results of the job's tasks; a task without output reports nothing.",
        ),
        "no_producer": ("No DAG writes it.", "Check which DAG should write it."),
        "outputs_stale": (
            "Some of its units were computed from a generation of another dataset that is no longer current: "
            "another DAG rebuilt that dataset.",
            "Recompute them: `trace rebuild DAG/JOB`.",
        ),
        "upstream": ("Its own job has nothing left to do; the cause is upstream.", "Follow the advice for the cause."),
    },
    ("dataset", "working"): {
        "upstream_in_progress": (
            "Its own job has nothing left to do; work of a job upstream is in progress, and nothing there waits.",
            "Wait for that job.",
        ),
        "batches_await_task": (
            "Running tasks have published batches; sinks get them when the task completes, all of them or none.",
            "Wait for the task. If it fails or is cancelled, none of its batches becomes visible.",
        ),
        "events_await_commit": (
            "Running tasks have announced units of files that are not committed yet.",
            "Wait for the task. Announced units that are never committed are kept and not routed.",
        ),
        "rebuilding": (
            "A new generation is built beside the current one; it becomes current when it is complete.",
            "Wait for the build.",
        ),
    },
    ("dataset", "fine"): {
        "events_outdated": (
            "The newest event comes from older inputs than its unit was completed with: the newer files or rows stay.",
            "Nothing to do.",
        ),
        "fresh": ("It contains everything that its job and the upstream jobs have produced.", "Nothing to do."),
    },
}
"""Meaning and advice of each code, by what it is a reason of and how bad it is."""

REASONS: dict[str, ReasonKind] = {
    code: ReasonKind(code, subject, state, meaning, advice, upstream=code in _UPSTREAM)
    for (subject, state), kinds in _KINDS.items()
    for code, (meaning, advice) in kinds.items()
}


_HEAD = """\
# Why is it not running?

Generated from `tracelake.dispatcher.why.reasons`; do not edit by hand (`make docs`).

`trace why X` explains in one paragraph why a task, a job or a dataset is not running or not up to date, and what to do.
X is a task id, `DAG/JOB`, a dataset, or the name of a job that only one DAG has. With `--json`, or from
`GET /v1/why/task/{task_id}`, `/v1/why/job/{dag}/{job}` and `/v1/why/dataset/{name}`, a program gets a list of reasons,
the worst first: a stable code, a sentence, next steps as commands, and references.

States: `blocked` does not progress until somebody acts or a full queue empties, `waiting` progresses when what it waits
for happens, `working` is in progress, `fine` needs nothing.

A job's reasons may also explain a dataset: `trace why DATASET` examines the job that writes it and, if that has nothing
left to do, the upstream jobs, up to the first cause.
"""


def reasons_markdown() -> str:
    """docs/why.md."""
    lines = _HEAD.splitlines()
    for subject in ("task", "job", "dataset"):
        lines += ["", f"## Of a {subject}", "", "| code | state | meaning | what to do |", "|---|---|---|---|"]
        lines += [
            f"| `{kind.code}` | {kind.state} | {kind.meaning} | {kind.advice} |"
            for _, kind in sorted(REASONS.items())
            if kind.subject == subject
        ]
    return "\n".join(lines) + "\n"
