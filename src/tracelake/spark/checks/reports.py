"""Reports of checks, whoever evaluates them: with Spark here, without it in the process of a feed."""

from collections.abc import Sequence
from dataclasses import dataclass

from tracelake.catalogue.context import NonRetryableError
from tracelake.model.dag import OutputCheck
from tracelake.spark.checks.messages import describe
from tracelake.spark.checks.samples import Sample
from tracelake.wire.task_calls import CheckReport

_MAX_SAMPLE_CHARACTERS = 64 * 1024
_MAX_MESSAGE = 600
_SHOWN_COLUMNS = 20


@dataclass(slots=True)
class SampleBudget:
    """How much of the samples of an attempt its report has room for."""

    _characters: int = 0

    def keep(self, sample: Sample) -> Sample:
        rows = []
        for row in sample:
            size = sum(len(name) + len(text or "") for name, text in row.items())
            if self._characters + size > _MAX_SAMPLE_CHARACTERS:
                break
            self._characters += size
            rows.append(row)
        return rows


def find_columns(check: OutputCheck, names: Sequence[str]) -> list[int]:
    """The positions of the check's columns. Raises NonRetryableError if the output has not all of them."""
    if missing := [name for name in check.columns if name not in names]:
        raise NonRetryableError(f"the output has no column {missing[0]}; it has {', '.join(names[:_SHOWN_COLUMNS])}")
    return [names.index(name) for name in check.columns]


def report_row_count(check: OutputCheck, rows: int) -> CheckReport:
    low, high = (bound if isinstance(bound, int) else None for bound in (check.min, check.max))
    fits = (low is None or rows >= low) and (high is None or rows <= high)
    return report_rows(check, 0 if fits else rows, rows, [], passed=fits)


def report_rows(
    check: OutputCheck, offending: int, rows: int, sample: Sample, *, passed: bool | None = None
) -> CheckReport:
    """Of `rows` rows so many offend. It passed if none does, unless `passed` says otherwise."""
    fits = offending == 0 if passed is None else passed
    return CheckReport(
        output_index=check.output_index,
        name=check.name,
        kind=check.kind,
        severity=check.severity,
        passed=fits,
        rows=rows,
        offending_rows=offending,
        message="" if fits else describe(check, offending, rows)[:_MAX_MESSAGE],
        sample=sample,
    )


def report_unevaluated(check: OutputCheck, error: NonRetryableError) -> CheckReport:
    """A check that cannot be evaluated fails."""
    text = f"it cannot be evaluated: {error}"[:_MAX_MESSAGE].encode("utf-8", "replace").decode()
    return CheckReport(
        output_index=check.output_index,
        name=check.name,
        kind=check.kind,
        severity=check.severity,
        passed=False,
        message=text,
    )
