"""Checks a single job: its activation, source, operator, runtime, config and outputs."""

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from tracelake.catalogue import CATALOGUE, OperatorSpec, UdfConfig, document_operators, missing_operator, read_config
from tracelake.catalogue.spec import ConfigFieldError
from tracelake.dag.columns import check_column
from tracelake.dag.draft import Draft, JobDraft, PublishDraft
from tracelake.dag.kinds import DocumentPlace, Record
from tracelake.dag.nodes import ListNode, MapNode
from tracelake.dag.problems import one_of, shown
from tracelake.dag.schedule import ScheduleError, parse_schedule
from tracelake.errors import TraceError
from tracelake.model.dag import Activation, OutputAddress, SourceKind, Strategy
from tracelake.model.runtime import DISPATCHER, LAMBDA, Runtime, RuntimeKind
from tracelake.model.time_zones import time_zone_names

UDF_OPERATOR = "udf"
_UNKNOWN_CONFIG_FIELD = re.compile("there is no field `(.+)`")
_IN_QUERY = re.compile(r"^line \d+, column \d+ of the query: ")
_MAX_CONFIG_PROBLEMS = 50
_SOURCE_FIELDS = (
    ("schedule", SourceKind.CRON, True),
    ("time_zone", SourceKind.CRON, False),
    ("catch_up", SourceKind.CRON, False),
    ("webhook_path", SourceKind.WEBHOOK, True),
    ("unit", SourceKind.WEBHOOK, False),
)
"""Field, the kind of source that has it, and whether it is required."""


def check_job(draft: Draft, job: JobDraft, webhook_paths: dict[str, str]) -> None:
    _check_activation(job)
    _check_source(draft, job, webhook_paths)
    operator = _operator(job)
    runtime = _runtime(draft, job)
    if job.only_emits:
        _check_nothing_runs(job, operator)
        return
    _check_written(draft, job)
    _check_udf(draft, job, operator, runtime)
    _check_place_to_run(job, operator, runtime)
    if operator is not None and not job.record.bad("config"):
        _check_config(job.record, operator)
        _check_config_fits_inputs(draft, job, operator)
        _check_config_fits_outputs(job, operator)
        _check_config_fits_secrets(job, operator)
    if operator is not None and operator.reads_deliveries:
        _check_reads_deliveries(draft, job, operator)


def _check_activation(job: JobDraft) -> None:
    record = job.record
    inputs = record.get("inputs", [])
    if job.activation is Activation.REACTIVE:
        if record.has("source"):
            record.at("source").problem(
                "unexpected_source", "A reactive job is started by its inputs.", "Remove it, or use activation: source."
            )
        if not record.bad("inputs") and not inputs:
            hint = "Add `inputs`, or make it a source."
            record.at("inputs").problem("reactive_without_inputs", "A reactive job needs an input.", hint)
    elif job.activation is Activation.SOURCE:
        if inputs:
            hint = "Remove them, or use activation: reactive."
            record.at("inputs").problem("source_with_inputs", "A source has no inputs.", hint)
        if not record.has("source"):
            record.missing("source", "Like `source: {kind: manual}`.")
        if record.get("execution_strategy") == Strategy.PER_PARTITION:
            place = record.at("execution_strategy")
            place.problem("partition_without_inputs", "PerPartition waits for inputs, and a source has none.")


def _check_source(draft: Draft, job: JobDraft, webhook_paths: dict[str, str]) -> None:
    source: Record | None = job.record.get("source")
    kind = job.source_kind
    if source is None or kind is None or not job.is_source:
        return
    for name, owner, required in _SOURCE_FIELDS:
        if kind is owner and required and not source.has(name):
            source.missing(name)
        elif kind is not owner and source.has(name):
            message = f"A source of kind {kind} has no `{name}`."
            source.at(name).problem("source_field", message, f"Remove it, or use kind: {owner}.")
    if kind is SourceKind.CRON and "schedule" in source.values:
        try:
            parse_schedule(source.values["schedule"])
        except ScheduleError as error:
            source.at("schedule").problem("schedule_invalid", str(error), 'Like "*/15 * * * *": every 15 minutes.')
    if kind is SourceKind.CRON and "time_zone" in source.values:
        _check_time_zone(source.values["time_zone"], source.at("time_zone"))
    if kind is SourceKind.WEBHOOK and "webhook_path" in source.values:
        path = source.values["webhook_path"].removeprefix("/")
        place = source.at("webhook_path")
        if path in webhook_paths:
            message = f"{shown(path)} is the path of `{webhook_paths[path]}` already."
            place.problem("duplicate_webhook_path", message, "Choose another path.")
        else:
            webhook_paths[path] = place.path
            path_owner = draft.surroundings.taken_webhook_paths.get(path)
            if path_owner is not None:
                place.problem("webhook_path_taken", path_owner, "Choose another path.")


def _check_time_zone(name: str, place: DocumentPlace) -> None:
    names = time_zone_names()
    if name not in names:
        hint = place.problems.did_you_mean(name, sorted(names)) or "Use a name of the IANA database: `Europe/Berlin`."
        place.problem("unknown_time_zone", f"There is no time zone {shown(name)}.", hint)


def _operator(job: JobDraft) -> OperatorSpec | None:
    name, operators = job.record.get("operator"), document_operators()
    spec = operators.get(name) if name is not None else None
    if name is not None and spec is None:
        place = job.record.at("operator")
        if name in CATALOGUE.plugins:
            hint = "Ask the operator of the platform; the log of the Dispatcher has the reason."
            place.problem("unknown_operator", missing_operator(name), hint)
            return None
        hint = place.problems.did_you_mean(name, operators) or f"There are {one_of(sorted(operators))}."
        hint += " Restart the stack if you have just installed its package."
        place.problem("unknown_operator", f"There is no operator {shown(name)}.", hint)
    return spec


def _runtime(draft: Draft, job: JobDraft) -> Runtime | None:
    name = job.setting("runtime")
    if not isinstance(name, str) or (job.only_emits and not job.record.has("runtime")):
        return None
    runtime = draft.surroundings.runtimes.get(name)
    if runtime is None:
        runtimes = draft.surroundings.runtimes.runtimes
        place = job.place_of("runtime")
        hint = place.problems.did_you_mean(name, runtimes) or f"There are {one_of(sorted(runtimes))}."
        place.problem("unknown_runtime", f"There is no runtime {shown(name)}.", hint)
    return runtime


def _check_nothing_runs(job: JobDraft, operator: OperatorSpec | None) -> None:
    kind = job.source_kind
    if operator is not None and operator.name != "noop":
        name = job.raw_name or "..."
        hint = f"Move it into a reactive job with `inputs: [{{from: {{job: {name}}}}}]`."
        place = job.record.at("operator")
        place.problem("nothing_runs", f"A {kind} source only emits events; it does not run `{operator.name}`.", hint)
    for name in ("config", "secrets", "udf"):
        if job.record.get(name):
            message = f"A {kind} source only emits events: `{name}` has no use."
            job.record.at(name).problem("nothing_runs", message, "Remove it, or move it into a reactive job.")


def _check_written(draft: Draft, job: JobDraft) -> None:
    record = job.record
    appends = job.setting("update_strategy") == "append" and job.outputs != 0 and job.activation is not None
    if appends and not record.bad("unique_key") and not record.get("unique_key"):
        place = record.at("update_strategy") if record.has("update_strategy") else record.at("unique_key")
        hint = "Add `unique_key` with the columns that tell rows apart, or use `replace`."
        place.problem("append_without_unique_key", "`append` needs a `unique_key`.", hint)
    elif appends:
        _check_appended(draft, job)
    if record.get("unique_key") and job.raw_name is not None and job.outputs is not None:
        _check_key(draft, job)


def _published(draft: Draft, job: JobDraft) -> Iterator[PublishDraft | None]:
    """The published dataset of each output; None for an output without a name."""
    assert job.raw_name is not None
    for index in range(job.outputs or 0):
        yield draft.publishers.get(OutputAddress(job=job.raw_name, output_index=index))


def _check_appended(draft: Draft, job: JobDraft) -> None:
    """Only sinks merge rows; files replace what their unit had."""
    if job.raw_name is None or job.record.bad("unique_key") or all(e and e.buffered for e in _published(draft, job)):
        return
    if any(entry is not None and entry.record.bad("write_mode") for entry in _published(draft, job)):
        return
    message = "`append` merges rows, and only buffered datasets are merged."
    hint = "Publish every output with `write_mode: buffered`, or use `update_strategy: replace`."
    place = job.place_of("update_strategy") if job.is_said("update_strategy") else job.record.at("update_strategy")
    place.problem("append_without_merge", message, hint)


def _check_key(draft: Draft, job: JobDraft) -> None:
    """Check that `unique_key` and `schema.unique` agree: readers and sinks rely on the key."""
    record = job.record
    key, place = record.values["unique_key"], record.at("unique_key")
    compared = False
    for entry in _published(draft, job):
        schema = None if entry is None else entry.record.get("schema")
        columns = None if schema is None else schema.get("columns")
        if entry is None or (entry.owner is None and (schema is None or schema.bad("unique"))):
            compared = compared or (entry is not None and entry.record.bad("schema"))
            continue
        compared = True
        if columns is not None:
            valid = [check_column(name, item, columns) for name, item in zip(key, place.items(), strict=True)]
            if not all(valid):
                continue
        unique = entry.schema.unique if entry.schema is not None else ()
        if entry.schema is not None and set(unique) != set(key):
            declaration = f"`unique: [{', '.join(unique)}]`" if unique else "no `unique`"
            message = f"`unique_key` is ({', '.join(key)}), and the schema of {shown(entry.name)} has {declaration}."
            place.problem("unique_key_mismatch", message, "Let both name the same columns.")
    if not compared and not record.bad("outputs"):
        message = "`unique_key` is compared with `schema.unique`, and no output of the job is published with a schema."
        place.problem("unique_key_mismatch", message, "Leave it out, or publish an output with `schema.unique`.")


def _check_udf(draft: Draft, job: JobDraft, operator: OperatorSpec | None, runtime: Runtime | None) -> None:
    record = job.record
    is_udf = operator is not None and operator.name == UDF_OPERATOR
    if operator is not None and not is_udf and record.has("udf"):
        message = f"A `udf` block belongs to `operator: udf`, not to `{operator.name}`."
        record.at("udf").problem("udf_unexpected", message, "Remove it, or use `operator: udf`.")
        return
    if not is_udf and not record.has("udf"):
        return
    if is_udf and not record.has("udf"):
        hint = "Add `udf: {bundle_id: ..., entrypoint: ...}`."
        record.at("operator").problem("udf_missing", "`operator: udf` needs a `udf` block.", hint)
    if runtime is not None and runtime.name != LAMBDA:
        message = f"User functions run on lambda, not on {runtime.name}."
        job.place_of("runtime").problem("udf_runtime", message, "Use `runtime: lambda`.")
    if record.get("secrets"):
        message = "User functions receive no secrets."
        record.at("secrets").problem(
            "udf_secrets", message, "Remove them; let a platform operator fetch what needs one."
        )
    udf: Record | None = record.get("udf")
    if udf is not None:
        _check_bundle(draft, udf)
        memory = udf.get("memory_mb")
        most = draft.surroundings.udf_max_memory_mb
        if isinstance(memory, int) and memory > most:
            udf.at("memory_mb").problem("udf_memory", f"A function has at most {most} MiB of memory.")


def _check_bundle(draft: Draft, udf: Record) -> None:
    bundle_id = udf.get("bundle_id")
    if bundle_id is None:
        return
    bundle = draft.surroundings.bundles.get(bundle_id)
    if bundle is None:
        message = f"The org has no finalized bundle {shown(bundle_id)}."
        udf.at("bundle_id").problem("udf_bundle", message, "Upload it, and use the id that the upload answered with.")
        return
    if not bundle.enabled:
        message = f"The bundle {shown(bundle_id)} is disabled."
        udf.at("bundle_id").problem("udf_bundle_disabled", message, "Use a bundle that is enabled.")
    if bundle.language == "rust":
        return
    if not udf.has("entrypoint"):
        hint = f"Use `{bundle.entrypoint or 'module.function'}`."
        udf.at("entrypoint").problem("udf_entrypoint", f"A {bundle.language} bundle needs an `entrypoint`.", hint)
    elif bundle.entrypoint is not None and udf.get("entrypoint") not in (None, bundle.entrypoint):
        message = f"The bundle was finalized for the entrypoint `{bundle.entrypoint}` of {bundle.language}."
        hint = "Use that one, or finalize another upload for this one."
        udf.at("entrypoint").problem("udf_entrypoint", message, hint)


def _check_place_to_run(job: JobDraft, operator: OperatorSpec | None, runtime: Runtime | None) -> None:
    record = job.record
    knows_what_it_is = job.activation is Activation.REACTIVE or job.source_kind is SourceKind.ALWAYS_ON
    if knows_what_it_is:
        if not record.has("operator"):
            record.missing("operator", "`udf` goes with `operator: udf`." if record.has("udf") else "")
        if not job.is_said("runtime"):
            record.missing("runtime", "Give the job one, or put one in `defaults`.")
    if runtime is None:
        return
    place = job.place_of("runtime")
    if job.is_source and job.source_kind is SourceKind.ALWAYS_ON and runtime.kind is not RuntimeKind.QUEUE:
        place.problem("always_on_runtime", f"An always_on source cannot run on {runtime.name}.")
    elif operator is not None and operator.name != UDF_OPERATOR and not record.has("udf"):
        _check_operator_runs(job, operator, runtime)
    if runtime.kind is RuntimeKind.IN_PROCESS and record.get("secrets"):
        message = f"Only workers get secrets; {runtime.name} runs its jobs without one."
        record.at("secrets").problem("dispatcher_secrets", message, "Remove them: control operators need none.")
    timeout = job.setting("timeout_seconds")
    if isinstance(timeout, int) and runtime.max_timeout_seconds is not None and timeout > runtime.max_timeout_seconds:
        message = f"A task on {runtime.name} runs at most {runtime.max_timeout_seconds} seconds"
        place = job.place_of("timeout_seconds")
        place.problem("timeout_too_long", f"{message} (job {shown(job.raw_name or '?')}).")


def _check_operator_runs(job: JobDraft, operator: OperatorSpec, runtime: Runtime) -> None:
    place = job.record.at("runtime") if job.record.has("runtime") else job.record.at("operator")
    if operator.runs_on(runtime.name):
        return
    where = f"Use {one_of(sorted(operator.runtimes))}." if operator.runtimes else ""
    if runtime.name == DISPATCHER and not operator.control:
        message = f"The Dispatcher runs platform control operators alone, not `{operator.name}`."
        place.problem("dispatcher_runtime", message, where)
    else:
        place.problem("operator_runtime", f"The operator `{operator.name}` does not run on {runtime.name}.", where)


# --- config


def _check_config(record: Record, operator: OperatorSpec) -> None:
    """Report every invalid field. The operator's own check stops at the first, so each is removed in turn."""
    config: dict[str, Any] = dict(record.get("config", {}))
    aside: set[str] = set()
    for _ in range(_MAX_CONFIG_PROBLEMS):
        try:
            read_config(operator.name, config)
        except TraceError as error:
            path = str(error.details["field"]).removeprefix("config")
            unknown = _UNKNOWN_CONFIG_FIELD.search(error.message)
            if any(f"the field `{name}` is missing" in error.message for name in aside):
                return
            detail = error.message.partition(" is not valid: ")[2]
            place = locate(record.at("config"), path, unknown[1] if unknown else None)
            hint = str(error.details.get("suggestion", "")) or _config_hint(place, operator, path, unknown)
            _refuse_config(place, detail, hint, error.details.get("offset"))
            first = unknown[1] if unknown and not path else (re.findall(r"^\.([^.\[]+)", path) or [None])[0]
            if first is None or first not in config:
                return
            aside.add(first)
            del config[first]
        else:
            return


def _refuse_config(place: DocumentPlace, detail: str, hint: str, offset: int | None) -> None:
    """The position is that of the document, so a text need not repeat where in a query it is."""
    detail = detail if offset is None else _IN_QUERY.sub("", detail)
    place.problem_inside("config_invalid", detail[:1].upper() + detail[1:], hint, offset)


def _check_config_fits_inputs(draft: Draft, job: JobDraft, operator: OperatorSpec) -> None:
    """Check a valid config against valid inputs."""
    record = job.record
    config = job.config(operator)
    if config is None or record.bad("inputs") or len(job.inputs) != len(record.get("inputs") or ()):
        return
    names: list[str | None] = []
    for item in job.inputs:
        entry = None if item.output is None else draft.publishers.get(item.output)
        names.append(item.dataset if entry is None else entry.name)
    try:
        config.check_inputs(names)
    except ConfigFieldError as error:
        place = locate(record.at("config"), f".{error.field}", None)
        _refuse_config(place, f"{error}.", error.suggestion, error.offset)
        return
    per_update = not job.has_windows and job.setting("execution_strategy") != Strategy.PER_PARTITION
    if config.joins_inputs and per_update and len({item.output or item.dataset for item in job.inputs}) > 1:
        message = f"A task of PerUpdate has one input, and {operator.name} needs all {len(names)} of the job."
        hint = "Use `execution_strategy: PerPartition`, or `units` and `read` (docs/windows.md)."
        job.place_of("execution_strategy").problem("inputs_one_by_one", message, hint)


def _check_config_fits_outputs(job: JobDraft, operator: OperatorSpec) -> None:
    """Check that a valid config writes a table for each output."""
    record, outputs, config = job.record, job.outputs, job.config(operator)
    writes = None if config is None else config.writes()
    if writes is None or outputs is None or writes.least <= outputs <= writes.most:
        return
    tables = "1 table" if writes.most == 1 else f"{writes.most} tables"
    because = f" (`{writes.because}`)" if writes.because else ""
    place = record.at("outputs") if record.has("outputs") else locate(record.at("config"), f".{writes.field}", None)
    message = f"{operator.name} writes {tables}{because} and the job has `outputs: {outputs}`."
    place.problem("config_invalid", message, f"Use `outputs: {max(writes.least, min(outputs, writes.most))}`.")


def _check_reads_deliveries(draft: Draft, job: JobDraft, operator: OperatorSpec) -> None:
    """Check that its input is a webhook source of this DAG whose units are deliveries, each a task of its own."""
    if job.setting("execution_strategy") == Strategy.PER_PARTITION:
        message = f"{operator.name} has a task for each delivery."
        job.place_of("execution_strategy").problem("delivery_input", message, "Use PerUpdate, or leave it out.")
    for item in job.inputs:
        source = None if item.output is None else draft.by_name[item.output.job]
        if source is None or not source.is_source or source.source_kind not in (SourceKind.WEBHOOK, None):
            message = f"{operator.name} reads deliveries, so its input is a webhook source of this DAG."
            item.place.problem("delivery_input", message, "Name a job with `source: {kind: webhook, ...}`.")
            continue
        if item.where is not None:
            message = "Deliveries have no columns that `where` could name."
            item.place.problem("delivery_input", message, "Filter the rows in a `spark_sql` job that reads them.")
        record: Record | None = source.record.get("source")
        if record is not None and not record.bad("unit") and record.get("unit", "body") != "delivery":
            message = f"The units of `{source.raw_name}` may be named by bodies, so two deliveries could be one unit."
            item.place.problem("delivery_input", message, f"Add `unit: delivery` to the source `{source.raw_name}`.")


def _check_config_fits_secrets(job: JobDraft, operator: OperatorSpec) -> None:
    """Check that the job lists the secrets that a valid config uses."""
    record, config = job.record, job.config(operator)
    if config is None or record.bad("secrets"):
        return
    listed = record.get("secrets") or ()
    for name, field in config.secret_names().items():
        if name not in listed:
            place = locate(record.at("config"), f".{field}", None)
            message = f"The config uses the secret `{name}`, which the job does not list."
            place.problem("config_invalid", message, f"Add `{name}` to the job's `secrets`.")


def _config_hint(place: DocumentPlace, operator: OperatorSpec, path: str, unknown: "re.Match[str] | None") -> str:
    if unknown is None or path:  # the fields of a nested value are unknown here
        return ""
    fields = operator.config_type.__struct_encode_fields__
    takes = f"{operator.name} takes {one_of(fields)}." if fields else f"{operator.name} takes no config."
    return place.problems.did_you_mean(unknown[1], fields) or takes


def locate(place: DocumentPlace, path: str, unknown: str | None) -> DocumentPlace:
    """The place of `.a[2].b` below the config, or of the longest part of that path that exists."""
    for name, index in re.findall(r"\.([^.\[]+)|\[(\d+)\]", path):
        if name and isinstance(place.node, MapNode) and name in place.node.entries:
            place = place.entries()[name][1]
        elif index and isinstance(place.node, ListNode) and int(index) < len(place.node.items):
            place = place.items()[int(index)]
        else:
            return place
    if unknown is not None and isinstance(place.node, MapNode) and unknown in place.node.entries:
        return place.entries()[unknown][0]
    return place


def normal_config(operator: str | None, config: dict[str, Any]) -> dict[str, Any]:
    """A valid config without values that repeat a default, so that equal meaning is equal text."""
    if operator is None:
        return {}
    read = read_config(operator, config)
    if isinstance(read, UdfConfig):
        return config
    values: dict[str, Any] = msgspec.to_builtins(read)
    return values
