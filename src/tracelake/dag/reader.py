"""Reads a document: its parts in the order of their dependencies, then the result.

A check runs only if its subject could be read; so one mistake is one problem, and all mistakes are reported at once.
"""

from typing import Literal

import msgspec

from tracelake.dag.chains import expand_chains
from tracelake.dag.checks import JobChecks, compare_checks, read_checks
from tracelake.dag.columns import MAX_COLUMNS
from tracelake.dag.draft import Draft, JobDraft, PublishDraft
from tracelake.dag.edges import Graph, resolve_inputs
from tracelake.dag.fields import DOCUMENT
from tracelake.dag.inference import ColumnInference
from tracelake.dag.jobs import check_job, normal_config
from tracelake.dag.kinds import INVALID, DocumentPlace, Record
from tracelake.dag.nodes import parse
from tracelake.dag.problems import DagInvalidError, ProblemList, shown
from tracelake.dag.publishing import read_publish
from tracelake.dag.schedule import normal_schedule
from tracelake.dag.surroundings import Surroundings
from tracelake.dag.windows import build_input, build_units, check_windows
from tracelake.model.columns import DatasetColumns
from tracelake.model.dag import (
    Activation,
    CatchUp,
    Dag,
    JobDocument,
    OutputAddress,
    Publish,
    Source,
    SourceKind,
    Strategy,
    Udf,
)

_UTC = Source(kind=SourceKind.CRON).time_zone


class OutputColumns(msgspec.Struct, frozen=True, kw_only=True):
    output: OutputAddress
    columns: DatasetColumns


class TypedDag(msgspec.Struct, frozen=True, kw_only=True):
    """A DAG, and the columns of its outputs as far as they are known before anything runs."""

    dag: Dag
    columns: list[OutputColumns]


def read_dag(text: bytes, surroundings: Surroundings) -> Dag:
    """The DAG that the text describes. Raises DagInvalidError with every problem, in the order of the text."""
    return read_typed_dag(text, surroundings).dag


def read_typed_dag(text: bytes, surroundings: Surroundings) -> TypedDag:
    """The DAG with its columns. Raises DagInvalidError."""
    problems = ProblemList()
    root = parse(text, problems)
    is_expanded = root is not None and expand_chains(root, problems)
    record = INVALID if root is None else DOCUMENT.read(DocumentPlace(root, "", problems))
    if record is not INVALID and not record.has("jobs") and not record.has("chains"):
        record.missing("jobs")
    if record is INVALID or not is_expanded:
        raise DagInvalidError(problems.sorted())
    draft, graph = _read_draft(record, surroundings)
    inference = ColumnInference(draft)
    inference.run(graph.in_order())
    compare_checks(draft, inference)
    if problems:
        raise DagInvalidError(problems.sorted())
    checks = JobChecks(draft)
    dag = Dag(
        name=record.values["name"],
        jobs=tuple(_build_job(draft, draft.by_name[name], checks) for name in graph.in_order()),
        publish=tuple(_build_publish(draft.publish[name]) for name in sorted(draft.publish)),
    )
    outputs = (OutputAddress(job=job.name, output_index=index) for job in dag.jobs for index in range(job.outputs))
    columns = ((output, inference.of_output(output)) for output in outputs)
    return TypedDag(
        dag=dag,
        columns=[
            OutputColumns(output=output, columns=_bounded(item))
            for output, item in columns
            if item.complete or item.columns
        ],
    )


def _bounded(columns: DatasetColumns) -> DatasetColumns:
    """As many columns as are recorded."""
    if len(columns.columns) <= MAX_COLUMNS:
        return columns
    return DatasetColumns(columns=columns.columns[:MAX_COLUMNS], complete=False)


def _read_draft(record: Record, surroundings: Surroundings) -> tuple[Draft, Graph]:
    defaults: Record | None = record.get("defaults")
    jobs = [JobDraft(item, defaults) for item in record.get("jobs", ()) if item is not INVALID]
    draft = Draft(record, surroundings, jobs)
    draft.knows_all_names = len(jobs) == len(record.get("jobs", (None,))) and all(job.raw_name for job in jobs)
    for job in jobs:
        name = job.raw_name
        if name is None:
            continue
        first = draft.by_name.setdefault(name, job)
        if first is not job:
            line = first.record.at("name").node.line
            place = job.record.at("name")
            place.problem("duplicate_job", f"There is a job {shown(name)} already, in line {line}.", "Rename one.")
    read_publish(draft)
    for job in jobs:
        resolve_inputs(draft, job)
    webhook_paths: dict[str, str] = {}
    for job in jobs:
        check_job(draft, job, webhook_paths)
        check_windows(draft, job)
    read_checks(draft)
    graph = Graph(draft)
    graph.report_cycles()
    return draft, graph


def _build_job(draft: Draft, job: JobDraft, checks: JobChecks) -> JobDocument:
    record = job.record
    name, activation, outputs = record.values["name"], Activation(record.values["activation"]), job.outputs
    assert outputs is not None
    reset_outputs = bool(record.get("bootstrap") and record.values["bootstrap"].get("reset_outputs"))
    priority: Literal["normal", "bulk"] = job.setting("priority") or "normal"
    source = _build_source(record) if job.is_source else None
    if job.only_emits:
        # Nothing runs, so no other field of the job or of `defaults` has a meaning.
        return JobDocument(
            name=name,
            activation=activation,
            outputs=outputs,
            source=source,
            priority=priority,
            reset_outputs=reset_outputs,
        )
    strategy = None if job.is_source else job.setting("execution_strategy")
    scaling = job.setting("scaling")
    operator = record.values["operator"]
    return JobDocument(
        name=name,
        activation=activation,
        runtime=job.setting("runtime"),
        operator=operator,
        outputs=outputs,
        inputs=tuple(build_input(item) for item in job.inputs),
        execution_strategy=Strategy.PER_WINDOW if job.has_windows else Strategy(strategy or Strategy.PER_UPDATE),
        update_strategy=job.setting("update_strategy") or "replace",
        unique_key=tuple(record.get("unique_key", ())),
        source=source,
        config=normal_config(operator, record.get("config", {})),
        udf=_build_udf(draft, record),
        secrets=tuple(sorted(record.get("secrets", ()))),
        max_concurrency=scaling.get("max_concurrency") if scaling else None,
        priority=priority,
        max_queue_depth=job.setting("max_queue_depth"),
        max_queue_age_seconds=job.setting("max_queue_age"),
        timeout_seconds=job.setting("timeout_seconds"),
        heartbeat_timeout_seconds=job.setting("heartbeat_timeout_seconds"),
        max_attempts=job.setting("max_attempts"),
        reset_outputs=reset_outputs,
        units=build_units(record.get("units")),
        checks=checks.of(name),
    )


def _build_source(record: Record) -> Source:
    source = record.values["source"]
    schedule, path = source.get("schedule"), source.get("webhook_path")
    zone: str = source.get("time_zone", _UTC)
    return Source(
        kind=SourceKind(source.values["kind"]),
        schedule=None if schedule is None else normal_schedule(schedule),
        # The very object of the default: encoders that leave out defaults compare by identity.
        time_zone=_UTC if zone == _UTC else zone,
        catch_up=CatchUp(source.get("catch_up", CatchUp.LAST)),
        webhook_path=None if path is None else path.removeprefix("/"),
        unit=source.get("unit", "body"),
    )


def _build_udf(draft: Draft, record: Record) -> Udf | None:
    udf: Record | None = record.get("udf")
    if udf is None:
        return None
    bundle_id = udf.values["bundle_id"]
    # A Rust bundle has one entrypoint, so naming it changes nothing.
    rust = draft.surroundings.bundles[bundle_id].language == "rust"
    return Udf(bundle_id=bundle_id, entrypoint=None if rust else udf.get("entrypoint"), memory_mb=udf.get("memory_mb"))


def _build_publish(entry: PublishDraft) -> Publish:
    rule, newest = entry.record.get("on_conflict", ("update", None))
    return Publish(
        name=entry.name,
        sources=tuple(entry.writers),
        storage=entry.record.values["storage"],
        write_mode=entry.record.get("write_mode", "direct"),
        owner=entry.owner,
        schema=entry.schema if entry.owner is None else None,
        on_conflict=rule,
        version_column=None if newest is None else newest.values["newest"],
        on_change=entry.record.get("on_change", "rebuild"),
        writers=tuple(sorted(entry.record.get("writers", ()))),
        max_queue_depth=entry.record.get("max_queue_depth"),
        max_queue_age_seconds=entry.record.get("max_queue_age"),
        description=entry.record.get("description", ""),
        contact=entry.record.get("owner", ""),
        column_descriptions=entry.record.get("columns", {}),
    )
