"""Errors of failed tasks for people: tasks with the same error in one group, and the error whole."""

from collections.abc import Sequence

from rich.text import Text

from tracelake.cli.listing import whole_line
from tracelake.cli.text import clean, clean_lines, count
from tracelake.wire.failures import ErrorGroup, FailuresReply

_JOBS_NAMED = 3


def failure_lines(failures: FailuresReply) -> list[Text]:
    """The groups, and how many failed tasks are in none of them."""
    lines = group_lines(failures.groups)
    if failures.other_groups:
        lines.append(Text(f"{count(failures.other_groups, 'other error')} with fewer tasks", style="dim"))
    if failures.tasks > failures.grouped:
        more = "or more " if failures.more else ""
        lines.append(
            Text(f"Of {failures.tasks:,} {more}failed tasks, the newest {failures.grouped:,} are grouped.", style="dim")
        )
    return lines


def group_lines(groups: Sequence[ErrorGroup]) -> list[Text]:
    """`8 tasks of pools/decode, same error:`, the error below it, and a task to look at."""
    lines: list[Text] = []
    for group in groups:
        same = ", same error" if group.tasks > 1 else ""
        lines.append(
            whole_line(
                Text.assemble((count(group.tasks, "task"), "bold red"), f" of {clean(_name_jobs(group))}{same}:")
            )
        )
        lines += [whole_line(Text(f"  {line}")) for line in clean_lines(group.error.strip()).split("\n")]
        unit = "" if group.unit is None else f", unit {clean(group.unit)}"
        which = "newest task" if group.tasks > 1 else "task"
        lines.append(whole_line(Text(f"  {which} {group.task_id}{unit}", style="dim")))
    return lines


def _name_jobs(group: ErrorGroup) -> str:
    first, rest = group.jobs[:_JOBS_NAMED], len(group.jobs) - _JOBS_NAMED
    return ", ".join(first) + (f" and {count(rest, 'other job')}" if rest > 0 else "")
