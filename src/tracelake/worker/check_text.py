"""The error of a task whose rows failed a check: which check, how many rows, some of them, and what to do."""

from collections.abc import Mapping, Sequence

from tracelake.wire.task_calls import CheckReport

_SHOWN_CHECKS = 3
_SHOWN_ROWS = 2
_SHOWN_COLUMNS = 4


def explain_checks(names: Mapping[int, str], checks: Sequence[CheckReport]) -> str:
    """Begins with the code `check_failed`. `names`: of the datasets, by output."""
    failed = [report for report in checks if not report.passed and report.severity == "error"]
    parts = [
        f"{report.name} of {names.get(report.output_index) or f'output {report.output_index}'}: {_explain(report)}"
        for report in failed[:_SHOWN_CHECKS]
    ]
    more = f" {len(failed) - _SHOWN_CHECKS} more checks failed." if len(failed) > _SHOWN_CHECKS else ""
    advice = "Nothing was committed. Correct the query or the check, deploy, and retry the task."
    return f"check_failed: {' '.join(parts)}{more} {advice}"


def _explain(report: CheckReport) -> str:
    rows = [
        "(" + ", ".join(f"{name}: {_show(value)}" for name, value in list(row.items())[:_SHOWN_COLUMNS]) + ")"
        for row in report.sample[:_SHOWN_ROWS]
    ]
    return f"{report.message}{', such as ' + ' and '.join(rows) if rows else ''}."


def _show(value: str | None) -> str:
    return "null" if value is None else value
