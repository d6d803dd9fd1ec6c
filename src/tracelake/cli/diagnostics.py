"""What is wrong with a DAG document, shown as compilers do: place, code, reason, the line and a mark below it."""

import re
from collections.abc import Iterator

from rich.cells import cell_len
from rich.text import Text

from tracelake.cli.listing import whole_line
from tracelake.cli.text import clean, count
from tracelake.model.dag import Problem

_WORD = re.compile(r"[\w.-]+|[^\w\s]")
_ADDRESS = re.compile(r"(?<=://)[^\s'\",}\]]+")
_ROOM = 160
"""Of a longer line only the surroundings of the mark are shown."""


def problem_lines(problems: list[Problem], file_name: str, source: bytes) -> Iterator[Text]:
    """All of them, in the order of the document, and how many there are."""
    lines = re.split("\r\n|\r|\n", source.decode("utf-8", errors="replace"))
    for problem in sorted(problems, key=lambda problem: (problem.line, problem.column)):
        yield whole_line(_headline(problem, file_name))
        if 1 <= problem.line <= len(lines):
            yield from _quoted(lines[problem.line - 1], problem)
    yield whole_line(
        Text(f"{count(len(problems), 'error')} in {clean(file_name)}; nothing was deployed.", style="bold")
    )


def _headline(problem: Problem, file_name: str) -> Text:
    place = f"{clean(file_name)}:{problem.line}:{problem.column}: "
    text = Text.assemble((place, "bold"), ("error", "bold red"), (f"[{clean(problem.code)}] ", "red"))
    if problem.path:
        text.append(f"{clean(problem.path)}: ", style="cyan")
    text.append(clean(problem.message))
    if problem.suggestion:
        text.append(f" ({clean(problem.suggestion)})", style="green")
    return text


def _quoted(line: str, problem: Problem) -> Iterator[Text]:
    # An address may hold a key, and what is shown here is kept by whoever keeps logs.
    line = _ADDRESS.sub(lambda address: "*" * len(address[0]), line)
    place = min(max(problem.column - 1, 0), len(line))
    first = max(0, place - _ROOM // 2) if len(line) > _ROOM else 0
    before, after = clean(line[first:place]), clean(line[place : first + _ROOM])
    word = _WORD.match(after)
    number = f"{problem.line:>5}"
    yield whole_line(Text.assemble((f"{number} | ", "dim"), before, after.rstrip()))
    mark = "^" * (cell_len(word[0]) if word else 1)
    yield whole_line(Text.assemble((" " * len(number) + " | ", "dim"), " " * cell_len(before), (mark, "bold red")))
