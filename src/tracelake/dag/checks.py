"""Reads `checks` of jobs and of published datasets, and compares them with the columns of their outputs.

A check of a published dataset is one of each output that is published as it; so a job has all checks of its rows.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tracelake.catalogue import CATALOGUE
from tracelake.catalogue.check_values import UNIT_KINDS
from tracelake.dag.check_columns import check_known_columns
from tracelake.dag.check_fields import KIND_FIELDS
from tracelake.dag.draft import CheckDraft, Draft, InputDraft, JobDraft, PublishDraft
from tracelake.dag.edges import resolve_dataset
from tracelake.dag.inference import ColumnInference
from tracelake.dag.kinds import INVALID, DocumentPlace, Record
from tracelake.dag.nodes import MapNode
from tracelake.dag.problems import one_of, shown
from tracelake.model.dag import CheckKind, OutputAddress, OutputCheck

_MAX_NAME = 128
MAX_OF_JOB = 200
_ONE = "Give it one of them; write another entry for another check."


def read_checks(draft: Draft) -> None:
    """Collect the valid checks of all jobs, and report what is wrong without looking at columns."""
    for job in draft.jobs:
        for record in job.record.get("checks") or ():
            if record is not INVALID and (output := _output_of(job, record)) is not None:
                _add(draft, record, output, None)
    for entry in draft.publish.values():
        for record in entry.record.get("checks") or ():
            if record is not INVALID:
                # The age of a dataset is one, whoever writes it.
                writers = entry.writers[:1] if record.has(CheckKind.FRESHNESS) else entry.writers
                for number, writer in enumerate(writers):
                    _add(draft, record, writer, entry, repeated=number > 0)
    _check_names(draft)
    _check_number(draft)


def _check_number(draft: Draft) -> None:
    """An attempt reports all of them at once."""
    counts: dict[str, int] = {}
    for check in draft.checks:
        number = counts[check.output.job] = counts.get(check.output.job, 0) + 1
        if number == MAX_OF_JOB + 1:
            message = f"Job `{check.output.job}` has more than {MAX_OF_JOB} checks, with those of its datasets."
            check.record.place.problem(
                "out_of_range", message, "Leave some out, or write several as one of kind `sql`."
            )


def _output_of(job: JobDraft, record: Record) -> OutputAddress | None:
    if job.raw_name is None or job.outputs is None or record.bad("output_index"):
        return None
    index = record.get("output_index", 0)
    if index >= job.outputs:
        place = record.at("output_index") if record.has("output_index") else record.place
        place.problem("unknown_output", f"The job has no output {index}. It has {job.outputs}.")
        return None
    return OutputAddress(job=job.raw_name, output_index=index)


def _add(
    draft: Draft, record: Record, output: OutputAddress, entry: PublishDraft | None, *, repeated: bool = False
) -> None:
    kind = _kind_of(record, report=not repeated)
    if kind is None:
        return
    check = CheckDraft(record, kind, output, entry or draft.publishers.get(output))
    if not _check_output(draft, check) or record.bad(kind) or not _check_shape(check, report=not repeated):
        return
    if kind is CheckKind.RELATIONSHIP and not _resolve_target(draft, check, report=not repeated):
        return
    draft.checks.append(check)


def _kind_of(record: Record, *, report: bool) -> CheckKind | None:
    kinds = [name for name in KIND_FIELDS if record.has(name)]
    if len(kinds) == 1:
        return CheckKind(kinds[0])
    misspelled = isinstance(record.place.node, MapNode) and len(record.place.node.entries) > len(record.places)
    if report and (kinds or not misspelled):
        message = f"A check has one kind, not {one_of(kinds)}." if kinds else "A check needs a kind."
        record.place.problem("check_kind", message, _ONE if kinds else f"It takes {one_of(KIND_FIELDS)}.")
    return None


def _check_output(draft: Draft, check: CheckDraft) -> bool:
    """Whether somebody can evaluate the check on what the job writes."""
    job = draft.by_name[check.output.job]
    place = check.record.at(check.kind)
    if job.only_emits:
        message = f"Job `{check.output.job}` only emits events: it has no rows to check."
        place.problem("check_operator", message, "Check a dataset that is made of them.")
        return False
    operator = CATALOGUE.get(job.record.get("operator", ""))
    if operator is None:
        return True
    entry = check.entry
    if not check.kind.is_of_rows and entry is not None and entry.record.get("storage") in ("live", "postgres"):
        return True
    if operator.output_storage == "none" or (entry is not None and entry.record.get("storage") == "none"):
        message = f"Job `{check.output.job}` runs `{operator.name}`, which writes no rows to check."
        place.problem("check_operator", message, "Check the output of a job that writes rows.")
        return False
    if not check.kind.is_of_rows or operator.checks == "sql":
        return True
    name = check.output.job if entry is None else entry.name
    hint = f"Add a `spark_sql` job that reads {shown(name)}, and check its output instead."
    if operator.checks == "none":
        message = f"Rows of `{operator.name}` are not checked while they are written (job `{check.output.job}`)."
        place.problem("check_operator", message, hint)
        return False
    if operator.checks == "unit":
        return _check_alone(check, operator.name, place, hint)
    if check.kind is CheckKind.SQL:
        message = f"`{operator.name}` runs in a process that orgs share, in which no query of a user runs."
        place.problem("check_operator", message, f"Use another kind of check. Or: {hint}")
        return False
    return True


def _check_alone(check: CheckDraft, operator: str, place: DocumentPlace, hint: str) -> bool:
    """Whether the rows of a unit are enough to evaluate it."""
    of_dataset = check.kind is CheckKind.UNIQUE and check.record.get("scope") == "dataset"
    if check.kind in UNIT_KINDS and not of_dataset:
        return True
    what = "`unique` with `scope: dataset`" if of_dataset else f"`{check.kind}`"
    message = f"`{operator}` runs without Spark and sees the rows of its unit alone, so {what} cannot be evaluated."
    (check.record.at("scope") if of_dataset else place).problem("check_operator", message, hint)
    return False


def _check_shape(check: CheckDraft, *, report: bool) -> bool:
    record, kind = check.record, check.kind
    good = True
    if record.has("scope") and kind is not CheckKind.UNIQUE:
        good = False
        if report:
            record.at("scope").problem("check_kind", f"Only `unique` has a `scope`, not `{kind}`.", "Leave it out.")
    elif record.get("scope") == "dataset" and check.entry is not None and check.entry.buffered:
        good = False
        if report:
            message = "A buffered dataset has one row for each value of `schema.unique`, whatever its units are."
            record.at("scope").problem("check_kind", message, "Leave it out, or change `schema.unique`.")
    if kind in (CheckKind.RANGE, CheckKind.ROW_COUNT):
        below: Record = record.values[kind]
        if not below.has("min") and not below.has("max"):
            good = False
            if report:
                below.place.problem("missing_field", f"`{kind}` needs `min` or `max`.", "Give it one of them, or both.")
        low, high = below.get("min"), below.get("max")
        numbers = all(isinstance(item, int | float) and not isinstance(item, bool) for item in (low, high))
        if numbers and low > high:
            good = False
            if report:
                below.at("max").problem("out_of_range", f"`max` ({high}) is less than `min` ({low}).")
        good = good and not below.bad("min") and not below.bad("max")
        good = good and (kind is CheckKind.ROW_COUNT or "column" in below.values)
    elif kind in (CheckKind.ACCEPTED_VALUES, CheckKind.RELATIONSHIP, CheckKind.FRESHNESS):
        good = good and all(name in record.values[kind].values for name in _REQUIRED[kind])
        if _is_of_data(check) and check.entry is not None and check.entry.buffered:
            good = False
            if report:
                message = "Commits of a buffered dataset do not record the times of blocks."
                record.values[kind].at("of").problem(
                    "check_kind", message, "Leave it out, or check a dataset in files."
                )
    if kind is CheckKind.ACCEPTED_VALUES and good and None in record.values[kind].values["values"]:
        good = False
        if report:
            message = "Null needs no entry: `accepted_values` is about rows that have a value."
            record.values[kind].at("values").problem(
                "invalid_value", message, "Leave it out; add `not_null` to forbid it."
            )
    return good


_REQUIRED = {
    CheckKind.ACCEPTED_VALUES: ("column", "values"),
    CheckKind.RELATIONSHIP: ("column", "to"),
    CheckKind.FRESHNESS: ("max_age",),
}


def _resolve_target(draft: Draft, check: CheckDraft, *, report: bool) -> bool:
    target: Record = check.record.values[check.kind].values["to"]
    if target.bad("dataset") or target.bad("column") or not target.has("dataset") or not target.has("column"):
        return False
    resolved = InputDraft(target.at("dataset"))
    if not resolve_dataset(draft, target, resolved, report=report):
        return False
    if resolved.output is not None and check.output in draft.co_writers(resolved.output):
        if report:
            message = "A relationship is with another dataset, and this is the one that is checked."
            hint = "Write a check of kind `sql` that joins `output` with itself."
            target.at("dataset").problem("cycle", message, hint)
        return False
    if _storage_of(draft, resolved) not in ("s3", "buffered", None):
        if report:
            message = f"The dataset {shown(target.values['dataset'])} has no rows that can be read."
            target.at("dataset").problem("read_storage", message, "Name a dataset in files, or a buffered one.")
        return False
    check.target = resolved
    return True


def _storage_of(draft: Draft, item: InputDraft) -> str | None:
    if item.output is None:
        assert item.dataset is not None
        return draft.surroundings.datasets[item.dataset].storage
    if draft.by_name[item.output.job].only_emits:
        return "none"
    entry = draft.publishers.get(item.output)
    if entry is None:
        return None
    storage: str | None = entry.record.get("storage")
    return "buffered" if entry.buffered else storage


def _default_name(check: CheckDraft) -> str:
    words = [check.kind.value, *columns_of(check)]
    if check.kind is CheckKind.RELATIONSHIP:
        words.append(check.record.values[check.kind].values["to"].values["dataset"])
    elif _is_of_data(check):
        words.append("data")
    return "_".join(words).lower()[:_MAX_NAME].strip("_")


def _is_of_data(check: CheckDraft) -> bool:
    return check.kind is CheckKind.FRESHNESS and check.record.values[check.kind].get("of") == "data"


def columns_of(check: CheckDraft) -> tuple[str, ...]:
    """The columns of the output that it names."""
    value = check.record.values[check.kind]
    if check.kind in (CheckKind.NOT_NULL, CheckKind.UNIQUE):
        return tuple(value)
    if check.kind in (CheckKind.ACCEPTED_VALUES, CheckKind.RANGE, CheckKind.RELATIONSHIP):
        return (value.values["column"],)
    return ()


def _check_names(draft: Draft) -> None:
    first: dict[tuple[OutputAddress, str], CheckDraft] = {}
    reported: set[int] = set()
    for check in draft.checks:
        if check.record.bad("name"):
            continue
        check.name = check.record.get("name") or _default_name(check)
        other = first.setdefault((check.output, check.name), check)
        if other is check or other.record is check.record or id(check.record) in reported:
            continue
        reported.add(id(check.record))
        place = check.record.at("name") if check.record.has("name") else check.record.place
        line = other.record.place.node.line
        message = f"There is a check {shown(check.name)} of this output already, in line {line}."
        hint = "Rename one." if check.record.has("name") else "Give one of them a `name`, or leave one out."
        place.problem("duplicate_check", message, hint)


# --- columns


def compare_checks(draft: Draft, inference: ColumnInference) -> None:
    """Report columns that do not exist, values and types that do not fit, and queries that are refused."""
    done: set[tuple[int, str]] = set()
    for check in draft.checks:
        key = id(check.record), check.output.job
        if key not in done:
            done.add(key)
            check_known_columns(check, columns_of(check), inference)


# --- the result


@dataclass(frozen=True, slots=True)
class JobChecks:
    """The checks of every job."""

    draft: Draft
    _by_job: dict[str, list[CheckDraft]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for check in self.draft.checks:
            self._by_job.setdefault(check.output.job, []).append(check)

    def of(self, job: str) -> tuple[OutputCheck, ...]:
        checks = (_build(check) for check in self._by_job.get(job, ()))
        return tuple(sorted(checks, key=lambda check: (check.output_index, check.name)))


def _build(check: CheckDraft) -> OutputCheck:
    record, kind = check.record, check.kind
    return OutputCheck(
        name=check.name,
        kind=kind,
        severity=record.get("severity", "error"),
        output_index=check.output.output_index,
        columns=columns_of(check),
        scope=record.get("scope", "unit"),
        **dict(_own_fields(kind, record.values[kind])),
    )


def _own_fields(kind: CheckKind, value: Any) -> Iterator[tuple[str, Any]]:
    if kind is CheckKind.ACCEPTED_VALUES:
        yield "values", tuple(value.values["values"])
    elif kind in (CheckKind.RANGE, CheckKind.ROW_COUNT):
        yield from ((name, value.values[name]) for name in ("min", "max") if name in value.values)
    elif kind is CheckKind.RELATIONSHIP:
        target = value.values["to"]
        yield "dataset", target.values["dataset"]
        yield "target", target.values["column"]
    elif kind is CheckKind.FRESHNESS:
        yield "max_age_seconds", value.values["max_age"]
        if value.get("of") == "data":
            yield "age_of", "data"
    elif kind is CheckKind.SQL:
        yield "query", value
