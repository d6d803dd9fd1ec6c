"""Results of queries as text: an aligned table with the types of its columns, or one column per line.

Numbers and times are never shortened. If a table is wider than the screen, texts are, down to a least width, and a mark
stands for what is left out; if even that is too wide, every column has a line of its own, where all values are whole,
or the last columns are left out.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from rich.cells import cell_len, chop_cells
from rich.console import Console
from rich.text import Text

from tracelake.cli.text import clean
from tracelake.wire.query import ResultColumn

NULL = "NULL"
_GAP = "  "
_MARK = "\u2026"
_LEAST_WIDTH = 12
"""Of a column whose texts are shortened."""
_NUMBER = re.compile(
    r"U?(TINYINT|SMALLINT|INTEGER|BIGINT|HUGEINT)|FLOAT|DOUBLE|BIGNUM|DECIMAL\(\d+, ?\d+\)", re.IGNORECASE
)
_TIME = re.compile(r"TIMESTAMP.*|DATE|TIME", re.IGNORECASE)
_HEX = re.compile(r"0x[0-9a-f]+")
_SHORT_TYPES = {"timestamp with time zone": "timestamptz", "time with time zone": "timetz"}


@dataclass(frozen=True, slots=True)
class ResultText:
    """A result in lines. The first `headings` of them name the columns and their types."""

    lines: list[str]
    headings: int
    shortened: bool = False
    """Some values are not whole."""
    columns: int = 0
    """How many columns are shown."""


@dataclass(slots=True)
class _TableColumn:
    name: str
    kind: str
    is_number: bool
    is_time: bool
    cells: list[str]
    width: int = 0

    def __post_init__(self) -> None:
        self.width = max(map(cell_len, (self.name, *self.cells)))
        # A long type is cut, it does not widen the column.
        self.width = max(self.width, min(cell_len(self.kind), _LEAST_WIDTH))

    @property
    def least_width(self) -> int:
        """Numbers, times and the column's name are never shortened."""
        is_whole = self.is_number or self.is_time
        return self.width if is_whole else min(self.width, max(_LEAST_WIDTH, cell_len(self.name)))

    def align(self, text: str) -> str:
        text = shorten(text, self.width)
        blanks = " " * (self.width - cell_len(text))
        return blanks + text if self.is_number else text + blanks


def render(
    columns: Sequence[ResultColumn],
    rows: Sequence[Sequence[Any]],
    width: int | None,
    *,
    expanded: bool = False,
    types: bool = True,
    leave_out: bool = False,
) -> ResultText:
    """`width` is that of the screen; without one, nothing is shortened. `types`: a line below the names has them.
    `leave_out`: if the columns do not fit, the last ones are left out."""
    if not columns:
        return ResultText([], 0)
    table = [
        _TableColumn(
            name=clean(column.name),
            kind=clean(type_text(column.type)) if types else "",
            is_number=is_number_type(column.type),
            is_time=_TIME.fullmatch(column.type) is not None,
            cells=[cell_text(row[place]) for row in rows],
        )
        for place, column in enumerate(columns)
    ]
    if width is not None and leave_out:
        table = table[: _fitting(table, width)]
    if width is None:  # nothing is shortened, and a type is longer than its column's values now and then
        for column in table:
            column.width = max(column.width, cell_len(column.kind))
    gaps = len(_GAP) * (len(table) - 1)
    too_wide = width is not None and sum(column.least_width for column in table) + gaps > width
    if expanded or (too_wide and not leave_out):
        return ResultText(list(_expand(table, len(rows))), 0, columns=len(table))
    shortened = width is not None and _narrow(table, width - gaps)
    lines = [_line([column.align(column.name) for column in table])]
    if types:
        lines.append(_line([column.align(column.kind) for column in table]))
    headings = len(lines)
    aligned = [[column.align(cell) for cell in column.cells] for column in table]
    lines += [_line(cells) for cells in zip(*aligned, strict=True)]
    return ResultText(lines, headings, shortened, len(table))


def _fitting(table: Sequence[_TableColumn], width: int) -> int:
    """How many of the first columns fit, at least one."""
    room = width + len(_GAP)
    for place, column in enumerate(table):
        room -= column.least_width + len(_GAP)
        if room < 0:
            return max(place, 1)
    return len(table)


def show_result(console: Console, text: ResultText) -> None:
    for place, line in enumerate(text.lines[: text.headings]):
        console.print(Text(line, style="dim" if place else "bold"), soft_wrap=True)
    if body := text.lines[text.headings :]:
        console.out("\n".join(body), highlight=False)


def is_number_type(kind: str) -> bool:
    return _NUMBER.fullmatch(kind) is not None


def cell_text(value: Any) -> str:
    """The value in one line."""
    if value is None:
        return NULL
    return clean(value if isinstance(value, str) else msgspec.json.encode(value).decode())


def type_text(kind: str) -> str:
    lower = kind.lower()
    return _SHORT_TYPES.get(lower, lower)


def shorten(text: str, width: int) -> str:
    """At most so many cells; of hex numbers, which are told apart by both ends, the middle is left out."""
    if cell_len(text) <= width:
        return text
    if _HEX.fullmatch(text):
        tail = (width - 1) // 3
        return text[: width - 1 - tail] + _MARK + text[len(text) - tail :]
    return chop_cells(text, width - 1)[0] + _MARK


def _narrow(table: Sequence[_TableColumn], width: int) -> bool:
    """Narrows the widest texts first, until the columns have at most this width together; whether it had to."""
    if sum(column.width for column in table) <= width:
        return False
    least, most = _LEAST_WIDTH, max(column.width for column in table)
    while least < most:  # the largest cap under which everything fits
        cap = (least + most + 1) // 2
        if sum(_capped(column, cap) for column in table) <= width:
            least = cap
        else:
            most = cap - 1
    for column in table:
        column.width = _capped(column, least)
    return True


def _capped(column: _TableColumn, cap: int) -> int:
    return max(min(column.width, cap), column.least_width)


def _expand(table: Sequence[_TableColumn], rows: int) -> Iterator[str]:
    width = max(cell_len(column.name) for column in table)
    for row in range(rows):
        yield f"-- row {row + 1:,}"
        for column in table:
            yield f"{column.name}{' ' * (width - cell_len(column.name))}{_GAP}{column.cells[row]}".rstrip()


def _line(cells: Sequence[str]) -> str:
    return _GAP.join(cells).rstrip()
