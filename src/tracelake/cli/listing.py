"""Tables that fit the terminal: aligned columns if there is room, folded columns if there is less, else a few lines
per row.

Nothing is cut off, least of all an id that somebody wants to copy into the next command. Columns without any
content are left out. Plain strings are cleaned; a `Text` is taken as it is.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tracelake.cli.text import clean

Cell = str | int | Text | None
R = TypeVar("R")

_GAP = 2
_FOLDED_WIDTH = 14
"""The least width into which a column is folded, unless it declares another."""
_WORD_WIDTH = 40
"""Words up to this length are not broken: a row that has no room for them is shown in lines."""


@dataclass(frozen=True, slots=True)
class ListingColumn(Generic[R]):
    """A heading, and what the column shows of a row."""

    name: str
    cell: Callable[[R], Cell]
    right: bool = False
    whole: bool = False
    """Never folded: ids, numbers, states."""
    style: str = ""
    least: int = _FOLDED_WIDTH
    """It is not folded into less than this: a row that has no more room for it is shown in lines."""
    breaks: bool = False
    """Its words may be broken if there is no other way to show a table."""


class Listing:
    def __init__(self, rows: Iterable[R], *columns: ListingColumn[R]) -> None:
        self.columns = columns
        self.rows = [[_text(column.cell(row)) for column in columns] for row in rows]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        indexes = [index for index in range(len(self.columns)) if any(row[index].plain for row in self.rows)]
        if not indexes:
            return
        widths = self._fit(indexes, options.max_width)
        if widths is None:
            yield from self._blocks(indexes, options.max_width)
        else:
            yield self._table(indexes, widths)

    def fits(self, room: int, *, broken: bool = False) -> bool:
        """Whether it can be shown as a table in this width; with `broken` also if words have to be broken."""
        indexes = [index for index in range(len(self.columns)) if any(row[index].plain for row in self.rows)]
        return not indexes or self._widths(indexes, room, broken=broken) is not None

    def _fit(self, indexes: list[int], room: int) -> list[int] | None:
        return self._widths(indexes, room) or self._widths(indexes, room, broken=True)

    def _widths(self, indexes: list[int], room: int, *, broken: bool = False) -> list[int] | None:
        """The width of each column; None if not even folding helps."""
        natural = [
            max(cell_len(self.columns[index].name), *(_width(row[index]) for row in self.rows)) for index in indexes
        ]
        least = [
            width
            if self.columns[index].whole or self.columns[index].right
            else min(width, self._least(index, broken=broken))
            for index, width in zip(indexes, natural, strict=True)
        ]
        spare = room - sum(least) - _GAP * (len(indexes) - 1)
        if spare < 0:
            return None
        # The columns that lack least are served first, so that as few as possible are folded.
        for place in sorted(range(len(indexes)), key=lambda place: natural[place] - least[place]):
            more = min(spare, natural[place] - least[place])
            least[place] += more
            spare -= more
        return least

    def _least(self, index: int, *, broken: bool) -> int:
        column = self.columns[index]
        word = 0 if broken and column.breaks else max(_word(row[index]) for row in self.rows)
        return max(column.least, min(_WORD_WIDTH, word))

    def _table(self, indexes: list[int], widths: list[int]) -> Table:
        table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="dim")
        for index, width in zip(indexes, widths, strict=True):
            column = self.columns[index]
            table.add_column(
                Text(column.name),
                justify="right" if column.right else "left",
                width=width,
                overflow="fold",
                style=column.style,
            )
        for row in self.rows:
            table.add_row(*(row[index] for index in indexes))
        return table

    def _blocks(self, indexes: list[int], room: int) -> Iterator[Text | Padding]:
        """Each row as lines: the first cell, and below it the others, each with the name of its column."""
        for row in self.rows:
            yield whole_line(row[indexes[0]])
            line = Text()
            for index in indexes[1:]:
                if not row[index].plain:
                    continue
                pair = Text.assemble((f"{self.columns[index].name} ", "dim"), row[index])
                if line.plain and _width(line) + _GAP + _width(pair) > room - _GAP:
                    yield Padding(line, (0, 0, 0, _GAP))
                    line = Text()
                line = Text.assemble(line, " " * _GAP, pair) if line.plain else pair
                line.overflow = "fold"
            if line.plain:
                yield Padding(line, (0, 0, 0, _GAP))


def fields(pairs: Sequence[tuple[str, Cell]]) -> Table:
    """Names and values, one pair a line; pairs without a value are left out."""
    grid = Table.grid(padding=(0, _GAP, 0, 0))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in pairs:
        text = _text(value)
        if text.plain:
            grid.add_row(Text(name), text)
    return grid


def sections(*parts: tuple[str, Listing]) -> list[RenderableType]:
    """Listings with their titles; those without rows are left out."""
    return [item for title, rows in parts if rows.rows for item in (Text(f"\n{title}", style="bold"), rows)]


def whole_line(text: Text) -> Text:
    """A line that only the terminal wraps, so that it can be copied whole."""
    line = text.copy()
    line.no_wrap, line.overflow = True, "ignore"
    return line


def _text(cell: Cell) -> Text:
    if isinstance(cell, Text):
        return cell
    return Text("" if cell is None else clean(str(cell)))


def _word(text: Text) -> int:
    return max(map(cell_len, text.plain.split()), default=0)


def _width(text: Text) -> int:
    return max((cell_len(line) for line in text.plain.split("\n")), default=0)
