"""What a worker writes into the log of an attempt, beside what the operator and Spark log."""

from collections.abc import Sequence

from tracelake.catalogue.context import Batch, LiveInput, OperatorResult, TableInput
from tracelake.ports import ObjectMeta
from tracelake.wire.run_logs import LogLevel
from tracelake.wire.task_calls import CheckReport
from tracelake.wire.units import EventIn, PayloadInput, Unit
from tracelake.worker.attempt import Attempt


def describe_start(attempt: Attempt, worker_id: str) -> None:
    task = attempt.task
    attempt.note(f"attempt {attempt.number} of {task.operator} claimed by worker {worker_id}")
    for item in task.inputs:
        attempt.note(f"input {item.name}: unit {_unit(item.unit)}")
    for output in task.outputs:
        attempt.note(f"output {output.name}")


def describe_files(attempt: Attempt, item: PayloadInput, content: list[ObjectMeta] | TableInput | LiveInput) -> None:
    if isinstance(content, TableInput):
        text = "a table"
    elif isinstance(content, LiveInput):
        text = f"{_files(content.files)}, and a table above position {content.boundary}"
    else:
        text = _files(content)
    attempt.note(f"input {item.name}: {text}")


def describe_batch(attempt: Attempt, batch: Batch) -> None:
    attempt.note(f"output {batch.output.name}: published a batch of {_count(batch.records, 'row')}")


def describe_events(attempt: Attempt, events: Sequence[EventIn]) -> None:
    attempt.note(f"announced {_count(len(events), 'event')}")


def describe_result(attempt: Attempt, result: OperatorResult) -> None:
    names = {output.output_index: output.name for output in attempt.task.outputs}
    by_dataset = {output.dataset_uuid: output.name for output in attempt.task.outputs}
    for report in result.outputs:
        name = by_dataset.get(report.dataset_uuid, "?")
        rows = "" if report.row_count is None else f" {_count(report.row_count, 'row')}"
        files = "" if report.file_count is None else f" in {_count(report.file_count, 'file')}"
        size = "" if report.size_bytes is None else f", {_bytes(report.size_bytes)}"
        attempt.note(f"output {name}: wrote{rows}{files}{size}")
    if result.spark is not None:
        spark = result.spark
        attempt.note(
            f"Spark: {_count(spark.jobs, 'job')}, {_count(spark.tasks, 'task')}, {spark.failed_tasks} failed,"
            f" {spark.run_ms / 1000:.1f} s in executors"
        )
    for check in result.checks:
        _describe_check(attempt, names.get(check.output_index, "?"), check)
    if result.events:
        attempt.note(f"announces {_count(len(result.events), 'event')}")


def _describe_check(attempt: Attempt, name: str, check: CheckReport) -> None:
    if check.passed:
        attempt.note(f"check {check.name} of {name}: passed")
        return
    level: LogLevel = "error" if check.severity == "error" else "warning"
    attempt.note(f"check {check.name} of {name}: failed: {check.message}", level)


def describe_end(attempt: Attempt) -> str:
    """The last line. Returns how the attempt ended, in a word."""
    if attempt.heard is None:
        if attempt.fenced.done():
            attempt.note("ended: a newer attempt has taken its place, or the task is gone", "warning")
            return "fenced"
        attempt.note("ended: its final report was not taken; the next attempt starts when the lease expires", "error")
        return "lost"
    final, reply = attempt.heard
    if final.status == "Completed":
        attempt.note("completed")
        return "completed"
    if final.status == "Canceled":
        attempt.note("canceled")
        return "canceled"
    text = (final.error_message or "").rstrip()
    retry = "no further attempt is planned"
    if reply.next_retry_at is not None:
        retry = f"the next attempt starts at {reply.next_retry_at:%Y-%m-%d %H:%M:%S}Z"
    if final.error_code == "worker_stopping":
        attempt.note(f"stopped: {text}", "warning")
        return "stopped"
    attempt.note(f"failed: {text}\n{retry}", "error")
    return "failed"


def _files(files: Sequence[ObjectMeta]) -> str:
    return f"{_count(len(files), 'file')}, {_bytes(sum(file.size for file in files))}"


def _unit(unit: Unit) -> str:
    return f"({unit.cursor.after}, {unit.cursor.to}]" if unit.cursor is not None else unit.partition_key or ""


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _bytes(number: int) -> str:
    if number < 1000:
        return f"{number} bytes"
    if number < 1_000_000:
        return f"{number / 1000:.1f} kB"
    return f"{number / 1_000_000:.1f} MB"
