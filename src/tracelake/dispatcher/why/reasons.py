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
    upstream: bool = False
    """The cause lies before it: what explains a dataset goes on looking there."""


_KINDS = (
    # Tasks
    ReasonKind(
        "backing_off",
        "task",
        "waiting",
        "The last attempt failed; the next one starts by itself at a known time.",
        "Wait, or retry it now.",
    ),
    ReasonKind(
        "canceled",
        "task",
        "fine",
        "Somebody cancelled it.",
        "Retry it if it is wanted after all.",
    ),
    ReasonKind("completed", "task", "fine", "It is done.", "Nothing to do."),
    ReasonKind(
        "failed",
        "task",
        "blocked",
        "It failed for good: no attempt is left, or the error cannot be retried.",
        "Mend what the error names and retry it, or skip it and accept the gap.",
    ),
    ReasonKind(
        "holds_edge",
        "task",
        "blocked",
        "Its unit failed for good, and what comes after it on the same input waits so that no gap is left behind.",
        "Retry or skip it; then the input goes on by itself.",
    ),
    ReasonKind(
        "limited",
        "task",
        "waiting",
        "As many tasks run as a limit allows; it gets the next place that is free and its turn.",
        "Wait, or raise max_concurrency: of a job in its document, of an operator in the runtimes file.",
    ),
    ReasonKind(
        "at_quota",
        "task",
        "waiting",
        "As many tasks of its organisation run as its quota allows; it gets the next place that is free and its turn.",
        "Wait, cancel tasks that matter less, or ask the platform's operator for a higher quota.",
    ),
    ReasonKind(
        "ready",
        "task",
        "waiting",
        "It is ready and its wake-up was sent; no worker has taken it yet.",
        "Wait for a worker that is free, or start one more.",
    ),
    ReasonKind(
        "returning",
        "task",
        "waiting",
        "It was told to stop by a cutover, and its version is active again: it becomes ready once it has stopped.",
        "Wait.",
    ),
    ReasonKind("running", "task", "working", "A worker has it, and its lease holds.", "Wait, or cancel it."),
    ReasonKind(
        "lease_overdue",
        "task",
        "waiting",
        "A worker had it and has not been heard of since its lease ran out; it is about to be judged timed out.",
        "Wait, and see what became of the worker.",
    ),
    ReasonKind(
        "skipped",
        "task",
        "fine",
        "It failed for good and somebody accepted the gap.",
        "Retry it if its unit is wanted after all.",
    ),
    ReasonKind(
        "stopping",
        "task",
        "working",
        "It was asked to stop and has not yet; its lease ends it if it does not.",
        "Wait.",
    ),
    ReasonKind(
        "superseded",
        "task",
        "fine",
        "Another version of the DAG is active and has no use for it. It comes back when its version is active again.",
        "Nothing to do, or roll back.",
    ),
    ReasonKind(
        "unheard",
        "task",
        "waiting",
        "A worker has it, and has not been heard of for half of the lease; heartbeats come three times in a lease.",
        "See what became of the worker; when the lease ends, it is tried again by itself.",
    ),
    ReasonKind(
        "wakeup_failed",
        "task",
        "blocked",
        "It is ready, but the queue refused its wake-up for good, so no worker hears of it.",
        "Mend the queue and requeue the row.",
    ),
    ReasonKind(
        "wakeup_pending",
        "task",
        "waiting",
        "It is ready, and its wake-up (or its start) waits in the outbox.",
        "Wait; if it stays so, see whether the queue answers.",
    ),
    # Jobs
    ReasonKind(
        "being_built",
        "job",
        "working",
        "Only the version that is being built has it; it becomes active with the cutover.",
        "Wait for the build.",
    ),
    ReasonKind(
        "cursor_passed",
        "job",
        "waiting",
        "The newest event of a source is below the cursor that its reader has come to, and has no `revision`. It "
        "counts as read, and so does every event until one is above that cursor.",
        "Send a larger cursor, or the event with a `revision`; make its task by hand; or, when the cursor that is too "
        "high was a mistake, deploy the source under another name: it begins anew.",
    ),
    ReasonKind(
        "edge_draining", "job", "working", "An input is behind and catches up with the events it has not seen.", "Wait."
    ),
    ReasonKind(
        "edge_held",
        "job",
        "blocked",
        "A unit of an input failed for good, and what comes after it waits.",
        "Retry or skip the task.",
    ),
    ReasonKind(
        "input_empty",
        "job",
        "waiting",
        "An input has no event yet, so there is nothing to make tasks of.",
        "See why the input has nothing.",
        upstream=True,
    ),
    ReasonKind(
        "input_waits",
        "job",
        "waiting",
        "An input is a buffered dataset, and rows that were published are not in its table: batches wait or were "
        "refused.",
        "See why they are not in the table.",
        upstream=True,
    ),
    ReasonKind(
        "join_waits",
        "job",
        "waiting",
        "One input has a unit that another does not have yet; the task is made once every input has it.",
        "See why the other input does not have it.",
        upstream=True,
    ),
    ReasonKind("no_active_version", "job", "blocked", "No version of the DAG is active.", "Activate one."),
    ReasonKind(
        "not_in_active_version",
        "job",
        "blocked",
        "The active version does not have the job.",
        "Deploy a document that has it, or roll back.",
    ),
    ReasonKind(
        "over_quota",
        "job",
        "blocked",
        "Its organisation has used up its quota of queued tasks or of stored bytes, so no tasks are made of what comes "
        "in. Events are kept, and become tasks when less than 80 % of the quota is used.",
        "Let queued tasks run, or cancel some; of stored bytes, remove what is not needed; or ask the platform's "
        "operator for more.",
    ),
    ReasonKind(
        "own_queue_full",
        "job",
        "waiting",
        "Its own queue is full: it has as many queued tasks as its threshold allows, gets no new ones, and stops what "
        "feeds it until fewer than half are left.",
        "Let the queue empty: more workers, a higher limit, or fix what is slow.",
    ),
    ReasonKind(
        "pressure",
        "job",
        "blocked",
        "A queue downstream is full, so no tasks are made of what comes in. Events are "
        "kept, and become tasks when the queue is less than half full.",
        "Let the queue empty: more workers, a higher limit, or fix what is slow.",
    ),
    ReasonKind(
        "source_backing_off",
        "job",
        "waiting",
        "The run of the source died and starts again at a known time.",
        "Mend what the error names; it is tried again without end, or now by a retry of its task.",
    ),
    ReasonKind(
        "source_dead",
        "job",
        "blocked",
        "The run of the source failed for good.",
        "Mend what the error names and retry its task.",
    ),
    ReasonKind(
        "source_ended",
        "job",
        "blocked",
        "The run of the source ended by itself or was cancelled, and no other is started.",
        "Nothing, if it was meant to end. What was cancelled can be retried; for what ended, deploy the job changed.",
    ),
    ReasonKind(
        "source_never_fired",
        "job",
        "waiting",
        "Nobody has triggered the source yet, or its first time has not come.",
        "Trigger it, or wait for its schedule.",
    ),
    ReasonKind(
        "source_no_events",
        "job",
        "waiting",
        "The source is there and has said nothing yet.",
        "See that there is something to say: deliveries, or data for it to follow.",
    ),
    ReasonKind(
        "source_paused",
        "job",
        "blocked",
        "A person paused the source. What it emits all the same is kept.",
        "Let it go on.",
    ),
    ReasonKind(
        "source_starting",
        "job",
        "waiting",
        "The run of the source waits to be started.",
        "Wait for a worker that is free, or start one more.",
    ),
    ReasonKind(
        "source_stopping",
        "job",
        "working",
        "The run of the source was asked to stop (somebody cancelled it, or a cutover stops it) and has not yet.",
        "Wait; what was cancelled can be retried once it has stopped.",
    ),
    ReasonKind(
        "source_unheard",
        "job",
        "waiting",
        "The worker that has the run of the source has not been heard of for half of the lease.",
        "See what became of the worker; when the lease ends, the run is started again by itself.",
    ),
    ReasonKind(
        "tasks_backing_off",
        "job",
        "waiting",
        "Tasks failed and are tried again by themselves.",
        "Wait, or see the error.",
    ),
    ReasonKind(
        "tasks_failed",
        "job",
        "blocked",
        "Tasks failed for good. They hold nothing up, but their units are missing.",
        "Retry or skip them.",
    ),
    ReasonKind(
        "tasks_limited",
        "job",
        "waiting",
        "Tasks wait for a limit on running work.",
        "Wait, or raise max_concurrency: of a job in its document, of an operator in the runtimes file.",
    ),
    ReasonKind(
        "tasks_at_quota",
        "job",
        "waiting",
        "Tasks wait because as many tasks of the organisation run as its quota allows.",
        "Wait, cancel tasks that matter less, or ask the platform's operator for a higher quota.",
    ),
    ReasonKind(
        "tasks_ready",
        "job",
        "waiting",
        "Tasks are ready and wait for workers.",
        "Wait for a worker that is free, or start one more.",
    ),
    ReasonKind("tasks_running", "job", "working", "Tasks are running.", "Wait."),
    ReasonKind(
        "tasks_unheard",
        "job",
        "waiting",
        "Workers have tasks, and have not been heard of for half of the lease.",
        "See what became of the workers; when a lease ends, its task is tried again by itself.",
    ),
    ReasonKind("up_to_date", "job", "fine", "Everything that came in is done.", "Nothing to do."),
    # Datasets
    ReasonKind(
        "backlog_full",
        "dataset",
        "waiting",
        "As many batches wait for a sink as its threshold allows, or one waits too long: its writers get no new tasks "
        "until the backlog is less than half full.",
        "Let the backlog empty: see why batches wait, start one more sink, or raise max_queue_depth.",
    ),
    ReasonKind(
        "batch_not_sent",
        "dataset",
        "blocked",
        "The queue refused the pointer to a batch for good, so no sink hears of it.",
        "Mend the queue and requeue the row.",
    ),
    ReasonKind(
        "batches_await_task",
        "dataset",
        "working",
        "Running tasks have published batches; sinks get them when the task completes, all of them or none.",
        "Wait for the task. If it fails or is cancelled, nothing of what it published becomes visible.",
    ),
    ReasonKind(
        "batches_wait",
        "dataset",
        "waiting",
        "Batches were published and are not in the table yet; a sink is there.",
        "Wait; if they grow old, the sink's log says what it waits for.",
    ),
    ReasonKind(
        "events_await_commit",
        "dataset",
        "working",
        "Running tasks have announced units of files that they have not committed yet.",
        "Wait for the task. What an attempt announced and never committed is kept and goes no further.",
    ),
    ReasonKind(
        "events_outdated",
        "dataset",
        "fine",
        "The newest event was said for older inputs than its unit was completed with: the newer files or rows stay.",
        "Nothing to do.",
    ),
    ReasonKind(
        "dataset_empty",
        "dataset",
        "waiting",
        "Its jobs have done everything that came in, and no event of it was among what they said.",
        "See what the job's tasks said; one that has nothing to write says nothing.",
    ),
    ReasonKind(
        "dead_letters",
        "dataset",
        "blocked",
        "Batches were refused: their rows are not in the table before somebody replays them.",
        "See what is wrong with them, mend it and replay them; or drop them.",
    ),
    ReasonKind(
        "fresh",
        "dataset",
        "fine",
        "It has everything that its job and the jobs before it have to give.",
        "Nothing to do.",
    ),
    ReasonKind(
        "no_sink",
        "dataset",
        "blocked",
        "Batches wait, and no sink has asked for work for a minute or more.",
        "Start a sink, or a worker, which has one beside it.",
    ),
    ReasonKind("no_producer", "dataset", "waiting", "No DAG writes it.", "See who is meant to write it."),
    ReasonKind(
        "rebuilding",
        "dataset",
        "working",
        "A new generation is built beside the current one; it takes over when it is finished.",
        "Wait for the build.",
    ),
    ReasonKind(
        "outputs_stale",
        "dataset",
        "waiting",
        "Units of it were made from a generation of another dataset that is not current any more: another DAG "
        "rebuilt it.",
        "Make them again: `trace rebuild DAG/JOB`.",
    ),
    ReasonKind(
        "removed",
        "dataset",
        "blocked",
        "The active version does not write it any more; what is there stays as it is.",
        "Roll back, or deploy a document that publishes it.",
    ),
    ReasonKind(
        "upstream",
        "dataset",
        "waiting",
        "Its own job has done what it can; the cause lies before it.",
        "Do what the cause asks for.",
    ),
)

REASONS: dict[str, ReasonKind] = {kind.code: kind for kind in _KINDS}


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
            for kind in sorted(_KINDS, key=lambda kind: kind.code)
            if kind.subject == subject
        ]
    return "\n".join(lines) + "\n"
