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


_UPSTREAM = frozenset({"input_empty", "input_waits", "join_waits"})

_KINDS: dict[tuple[Subject, WhyState], dict[str, tuple[str, str]]] = {
    ("task", "blocked"): {
        "failed": (
            "It failed for good: no attempt is left, or the error cannot be retried.",
            "Mend what the error names and retry it, or skip it and accept the gap.",
        ),
        "holds_edge": (
            "Its unit failed for good, and what comes after it on the same input waits so that no gap is left behind.",
            "Retry or skip it; then the input goes on by itself.",
        ),
        "wakeup_failed": (
            "It is ready, but the queue refused its wake-up for good, so no worker hears of it.",
            "Mend the queue and requeue the row.",
        ),
    },
    ("task", "waiting"): {
        "at_quota": (
            "As many tasks of its organisation run as its quota allows; it gets the next place that is free and its "
            "turn.",
            "Wait, cancel tasks that matter less, or ask the platform's operator for a higher quota.",
        ),
        "backing_off": (
            "The last attempt failed; the next one starts by itself at a known time.",
            "Wait, or retry it now.",
        ),
        "lease_overdue": (
            "A worker had it and has not been heard of since its lease ran out; it is about to be judged timed out.",
            "Wait, and see what became of the worker.",
        ),
        "limited": (
            "As many tasks run as a limit allows; it gets the next place that is free and its turn.",
            "Wait, or raise max_concurrency: of a job in its document, of an operator in the runtimes file.",
        ),
        "ready": (
            "It is ready and its wake-up was sent; no worker has taken it yet.",
            "Wait for a worker that is free, or start one more.",
        ),
        "returning": (
            "It was told to stop by a cutover, and its version is active again: it becomes ready once it has stopped.",
            "Wait.",
        ),
        "unheard": (
            "A worker has it, and has not been heard of for half of the lease; heartbeats come three times in a lease.",
            "See what became of the worker; when the lease ends, it is tried again by itself.",
        ),
        "wakeup_pending": (
            "It is ready, and its wake-up (or its start) waits in the outbox.",
            "Wait; if it stays so, see whether the queue answers.",
        ),
    },
    ("task", "working"): {
        "running": ("A worker has it, and its lease holds.", "Wait, or cancel it."),
        "stopping": ("It was asked to stop and has not yet; its lease ends it if it does not.", "Wait."),
    },
    ("task", "fine"): {
        "canceled": ("Somebody cancelled it.", "Retry it if it is wanted after all."),
        "completed": ("It is done.", "Nothing to do."),
        "skipped": ("It failed for good and somebody accepted the gap.", "Retry it if its unit is wanted after all."),
        "superseded": (
            "Another version of the DAG is active and has no use for it. It comes back when its version is active "
            "again.",
            "Nothing to do, or roll back.",
        ),
    },
    ("job", "blocked"): {
        "edge_held": ("A unit of an input failed for good, and what comes after it waits.", "Retry or skip the task."),
        "no_active_version": ("No version of the DAG is active.", "Activate one."),
        "not_in_active_version": (
            "The active version does not have the job.",
            "Deploy a document that has it, or roll back.",
        ),
        "over_quota": (
            "Its organisation has used up its quota of queued tasks or of stored bytes, so no tasks are made of "
            "what comes in. Events are kept, and become tasks when less than 80 % of the quota is used.",
            "Let queued tasks run, or cancel some; of stored bytes, remove what is not needed; or ask the "
            "platform's operator for more.",
        ),
        "pressure": (
            "A queue downstream is full, so no tasks are made of what comes in. Events are kept, and become tasks "
            "when the queue is less than half full.",
            "Let the queue empty: more workers, a higher limit, or fix what is slow.",
        ),
        "source_dead": ("The run of the source failed for good.", "Mend what the error names and retry its task."),
        "source_ended": (
            "The run of the source ended by itself or was cancelled, and no other is started.",
            "Nothing, if it was meant to end. What was cancelled can be retried; for what ended, deploy the job "
            "changed.",
        ),
        "source_paused": ("A person paused the source. What it emits all the same is kept.", "Let it go on."),
        "tasks_failed": (
            "Tasks failed for good. They hold nothing up, but their units are missing.",
            "Retry or skip them.",
        ),
    },
    ("job", "waiting"): {
        "cursor_passed": (
            "The newest event of a source is below the cursor that its reader has come to, and has no `revision`. "
            "It counts as read, and so does every event until one is above that cursor.",
            "Send a larger cursor, or the event with a `revision`; make its task by hand; or, when the cursor that "
            "is too high was a mistake, deploy the source under another name: it begins anew.",
        ),
        "input_empty": (
            "An input has no event yet, so there is nothing to make tasks of.",
            "See why the input has nothing.",
        ),
        "input_waits": (
            "An input is a buffered dataset, and rows that were published are not in its table: batches wait or "
            "were refused.",
            "See why they are not in the table.",
        ),
        "join_waits": (
            "One input has a unit that another does not have yet; the task is made once every input has it.",
            "See why the other input does not have it.",
        ),
        "own_queue_full": (
            "Its own queue is full: it has as many queued tasks as its threshold allows, gets no new ones, and "
            "stops what feeds it until fewer than half are left.",
            "Let the queue empty: more workers, a higher limit, or fix what is slow.",
        ),
        "source_backing_off": (
            "The run of the source died and starts again at a known time.",
            "Mend what the error names; it is tried again without end, or now by a retry of its task.",
        ),
        "source_never_fired": (
            "Nobody has triggered the source yet, or its first time has not come.",
            "Trigger it, or wait for its schedule.",
        ),
        "source_no_events": (
            "The source is there and has said nothing yet.",
            "See that there is something to say: deliveries, or data for it to follow.",
        ),
        "source_starting": (
            "The run of the source waits to be started.",
            "Wait for a worker that is free, or start one more.",
        ),
        "source_unheard": (
            "The worker that has the run of the source has not been heard of for half of the lease.",
            "See what became of the worker; when the lease ends, the run is started again by itself.",
        ),
        "tasks_at_quota": (
            "Tasks wait because as many tasks of the organisation run as its quota allows.",
            "Wait, cancel tasks that matter less, or ask the platform's operator for a higher quota.",
        ),
        "tasks_backing_off": ("Tasks failed and are tried again by themselves.", "Wait, or see the error."),
        "tasks_limited": (
            "Tasks wait for a limit on running work.",
            "Wait, or raise max_concurrency: of a job in its document, of an operator in the runtimes file.",
        ),
        "tasks_ready": ("Tasks are ready and wait for workers.", "Wait for a worker that is free, or start one more."),
        "tasks_unheard": (
            "Workers have tasks, and have not been heard of for half of the lease.",
            "See what became of the workers; when a lease ends, its task is tried again by itself.",
        ),
    },
    ("job", "working"): {
        "being_built": (
            "Only the version that is being built has it; it becomes active with the cutover.",
            "Wait for the build.",
        ),
        "edge_draining": ("An input is behind and catches up with the events it has not seen.", "Wait."),
        "source_stopping": (
            "The run of the source was asked to stop (somebody cancelled it, or a cutover stops it) and has not yet.",
            "Wait; what was cancelled can be retried once it has stopped.",
        ),
        "tasks_running": ("Tasks are running.", "Wait."),
    },
    ("job", "fine"): {
        "up_to_date": ("Everything that came in is done.", "Nothing to do."),
    },
    ("dataset", "blocked"): {
        "batch_not_sent": (
            "The queue refused the pointer to a batch for good, so no sink hears of it.",
            "Mend the queue and requeue the row.",
        ),
        "dead_letters": (
            "Batches were refused: their rows are not in the table before somebody replays them.",
            "See what is wrong with them, mend it and replay them; or drop them.",
        ),
        "no_sink": (
            "Batches wait, and no sink has asked for work for a minute or more.",
            "Start a sink, or a worker, which has one beside it.",
        ),
        "removed": (
            "The active version does not write it any more; what is there stays as it is.",
            "Roll back, or deploy a document that publishes it.",
        ),
    },
    ("dataset", "waiting"): {
        "backlog_full": (
            "As many batches wait for a sink as its threshold allows, or one waits too long: its writers get no new "
            "tasks until the backlog is less than half full.",
            "Let the backlog empty: see why batches wait, start one more sink, or raise max_queue_depth.",
        ),
        "batches_wait": (
            "Batches were published and are not in the table yet; a sink is there.",
            "Wait; if they grow old, the sink's log says what it waits for.",
        ),
        "dataset_empty": (
            "Its jobs have done everything that came in, and no event of it was among what they said.",
            "See what the job's tasks said; one that has nothing to write says nothing.",
        ),
        "no_producer": ("No DAG writes it.", "See who is meant to write it."),
        "outputs_stale": (
            "Units of it were made from a generation of another dataset that is not current any more: another DAG "
            "rebuilt it.",
            "Make them again: `trace rebuild DAG/JOB`.",
        ),
        "upstream": ("Its own job has done what it can; the cause lies before it.", "Do what the cause asks for."),
    },
    ("dataset", "working"): {
        "batches_await_task": (
            "Running tasks have published batches; sinks get them when the task completes, all of them or none.",
            "Wait for the task. If it fails or is cancelled, nothing of what it published becomes visible.",
        ),
        "events_await_commit": (
            "Running tasks have announced units of files that they have not committed yet.",
            "Wait for the task. What an attempt announced and never committed is kept and goes no further.",
        ),
        "rebuilding": (
            "A new generation is built beside the current one; it takes over when it is finished.",
            "Wait for the build.",
        ),
    },
    ("dataset", "fine"): {
        "events_outdated": (
            "The newest event was said for older inputs than its unit was completed with: the newer files or rows "
            "stay.",
            "Nothing to do.",
        ),
        "fresh": ("It has everything that its job and the jobs before it have to give.", "Nothing to do."),
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

`trace why X` says in one paragraph why a task, a job or a dataset is not running or not fresh, and what to do about it.
X is a task's id, `DAG/JOB`, a dataset, or the name of a job that only one DAG has. With `--json`, or from
`GET /v1/why/task/{task_id}`, `/v1/why/job/{dag}/{job}` and `/v1/why/dataset/{name}`, a program gets the same as a list
of reasons, the worst first: a stable code, a sentence, next steps as commands, and references.

How bad it is: `blocked` does not go on before somebody does something or a full queue empties, `waiting` goes on by
itself when what it waits for comes, `working` is being done, `fine` needs nothing.

A job's reasons may also explain a dataset: `trace why DATASET` looks at the job that writes it and, if that has done
what it can, at the jobs before it, up to the first cause.
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
