"""What came out of a run, and what a stack would do with it: the final report, batches as a sink reads them, files as a
commit takes them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tracelake.model.locations import MARKER_FAMILY
from tracelake.rows.reader import BadBatchError, BatchReader
from tracelake.runner.outcome import RunEnding, RunResult, final_report
from tracelake.runner.output import redact
from tracelake.sdk.errors import UnstableKeyError
from tracelake.sdk.keys import KeyRules
from tracelake.udf_test.local_upstream import RefusedRequest
from tracelake.udf_test.sample_task import SampleOutput
from tracelake.udf_test.task_calls import PublishedBatch, SampleTaskCalls
from tracelake.wire.task_calls import CompleteRequest, DatasetPublished
from tracelake.wire.units import EventIn, TaskOutput

_SHOWN_ROWS = 10


class _TrialPart(msgspec.Struct, frozen=True, kw_only=True):
    pass


class TrialError(_TrialPart, frozen=True, kw_only=True):
    type: str
    message: str
    stack: list[str]


class TrialFile(_TrialPart, frozen=True, kw_only=True):
    location: str
    size_bytes: int


class TrialOutput(_TrialPart, frozen=True, kw_only=True):
    name: str
    kind: str
    rows: int
    batches: int
    first_rows: list[dict[str, Any]]
    files: list[TrialFile]


class TrialEvent(_TrialPart, frozen=True, kw_only=True):
    output: str
    cursor: int | None = None
    partition_key: str | None = None


class TrialRefusal(RefusedRequest, frozen=True, kw_only=True):
    count: int


class TrialReport(_TrialPart, frozen=True, kw_only=True):
    """The document of `trace udf test --json`."""

    completed: bool
    """The run completed, and a stack would take its results."""
    ending: str
    message: str
    retryable: bool
    """Of a run that failed: whether a stack would try again."""
    error: TrialError | None
    seconds: float
    peak_bytes: int
    stdout: str
    stderr: str
    outputs: list[TrialOutput]
    files: list[TrialFile]
    """Below the scratch prefix."""
    events: list[TrialEvent]
    refused: list[TrialRefusal]
    problems: list[str]
    """What a stack would refuse after the run."""
    heartbeats: int


def make_report(
    result: RunResult, calls: SampleTaskCalls, refused: Mapping[RefusedRequest, int], started_at: float
) -> TrialReport:
    invocation, problems = calls.task.invocation, list[str]()
    events = list(calls.events)
    published: list[DatasetPublished] = []
    if result.ending is RunEnding.COMPLETED:
        report = final_report(invocation, result, calls.secrets)
        events += [event for event in report.events if event not in events]
        published = list(report.datasets_published)
        problems += _check_report(report, calls)
    rules = KeyRules(
        task_id=str(invocation.task_id),
        attempt=invocation.attempt,
        lease_token=str(invocation.lease_token),
        token=calls.task.token,
        started_at=started_at,
    )
    outputs = [
        _describe_output(output, calls, rules, started_at + result.seconds, problems) for output in invocation.outputs
    ]
    names = {output.dataset_uuid: output.name for output in invocation.outputs}
    error = result.error
    secrets = calls.secrets
    for item in published:
        problems += _check_files(item, names.get(item.dataset_uuid, ""), calls)
    return TrialReport(
        completed=result.ending is RunEnding.COMPLETED and not problems,
        ending=result.ending.value,
        message=redact(result.message, secrets),
        retryable=result.retryable,
        error=None
        if error is None
        else TrialError(
            type=redact(error.error_type, secrets),
            message=redact(error.error_message, secrets),
            stack=[redact(frame.rstrip("\n"), secrets) for frame in error.frames],
        ),
        seconds=round(result.seconds, 3),
        peak_bytes=result.peak_bytes,
        stdout=result.stdout,
        stderr=result.stderr,
        outputs=outputs,
        files=_list_files(calls, calls.task.claims.s3.scratch_prefix),
        events=[
            TrialEvent(
                output=names.get(event.dataset_uuid, str(event.dataset_uuid)),
                cursor=event.cursor,
                partition_key=event.partition_key,
            )
            for event in events
        ],
        refused=[TrialRefusal(**msgspec.structs.asdict(request), count=number) for request, number in refused.items()],
        problems=problems,
        heartbeats=calls.heartbeats,
    )


def _describe_output(
    output: TaskOutput, calls: SampleTaskCalls, rules: KeyRules, ended_at: float, problems: list[str]
) -> TrialOutput:
    described = calls.task.outputs[output.dataset_uuid]
    batches = [batch for batch, _ in calls.batches.values() if batch.dataset_uuid == output.dataset_uuid]
    rows: list[dict[str, Any]] = []
    for batch in batches:
        try:
            batch_rows = _read_batch(batch, described)
            if described.key:
                rules.check(batch_rows, described.key, ended_at)
        except BadBatchError as error:
            problems.append(f"{output.name}: a sink would refuse the batch: {error}")
            continue
        except UnstableKeyError as error:
            problems.append(f"{output.name}: {error}")
        rows += batch_rows
    return TrialOutput(
        name=output.name,
        kind=output.storage.kind,
        rows=len(rows),
        batches=len(batches),
        first_rows=rows[:_SHOWN_ROWS],
        files=_list_files(calls, output.storage.write_prefix) if output.storage.write_prefix else [],
    )


def _read_batch(batch: PublishedBatch, described: SampleOutput) -> list[dict[str, Any]]:
    """Raises BadBatchError, as a sink would."""
    schema = described.schema
    if schema is not None:
        BatchReader(schema).read(batch.data, publish_seq=1, org_id=None, record_count=batch.record_count)
    rows = []
    lines = batch.data.split(b"\n")
    for number, line in enumerate(lines[:-1] if lines[-1] == b"" else lines, 1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            raise BadBatchError("row_invalid", "the line is not JSON", number) from None
        if not isinstance(row, dict):
            raise BadBatchError("row_invalid", "the line is not a JSON object", number)
        rows.append(row)
    if batch.record_count not in (None, len(rows)):
        reason = f"expected {batch.record_count} records as published, received {len(rows)}"
        raise BadBatchError("record_count_wrong", reason)
    return rows


def _check_report(report: CompleteRequest, calls: SampleTaskCalls) -> list[str]:
    """Events and publications of datasets that are not outputs, and events without their data."""
    kinds = {item.dataset_uuid: (item.name, item.storage.kind) for item in calls.task.invocation.outputs}
    published = {item.dataset_uuid for item in report.datasets_published}
    datasets = [item.dataset_uuid for item in report.events]
    datasets += [item.dataset_uuid for item in report.datasets_published]
    datasets += [item.dataset_uuid for item in report.outputs]
    problems = [f"dataset_forbidden: {uuid} is not an output of the task." for uuid in datasets if uuid not in kinds]
    events: Sequence[EventIn] = (*calls.events, *report.events)
    for event in events:
        name, kind = kinds.get(event.dataset_uuid, ("", ""))
        if kind == "s3" and event.dataset_uuid not in published:
            problems.append(f"event_without_publication: {name} was announced, and no files of it were published.")
    return list(dict.fromkeys(problems))


def _check_files(item: DatasetPublished, name: str, calls: SampleTaskCalls) -> list[str]:
    prefix = f"s3://{item.storage_ref.bucket}/{item.storage_ref.prefix}"
    if prefix not in calls.task.claims.s3.write_prefixes or item.storage_ref.glob != "*.parquet":
        return [f"prefix_forbidden: the files of {name} are not below its own prefix, or their glob is not *.parquet."]
    marker = calls.objects.get(f"{prefix}_SUCCESS")
    if marker is None:
        return [f"output_incomplete: the _SUCCESS marker of {name} is missing."]
    if not marker.startswith(MARKER_FAMILY):
        return []
    try:
        files = {file["name"]: file["size"] for file in json.loads(marker)["files"]}
    except (ValueError, KeyError, TypeError, RecursionError):
        return [f"output_incomplete: the _SUCCESS marker of {name} is not a list of files."]
    sizes = {meta.uri.removeprefix(prefix): meta.size for meta in calls.objects.list_below(prefix)}
    absent = [file for file, size in files.items() if sizes.get(file) != size]
    return [f"output_incomplete: {file} of {name} is missing or has another size." for file in absent]


def _list_files(calls: SampleTaskCalls, prefix: str) -> list[TrialFile]:
    return [TrialFile(location=meta.uri, size_bytes=meta.size) for meta in calls.objects.list_below(prefix)]
