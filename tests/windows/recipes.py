"""What the page about the recipes shows."""

import re
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

PAGE = Path(__file__).parents[2] / "docs" / "recipes.md"

_DOCUMENT = re.compile(r"\[(\w+)\.yaml\]\(\.\./examples/recipes/\1\.yaml\).*?```yaml\n(.*?)```", re.DOTALL)
_ROWS = re.compile(r"Rows of `(\w+)`, (.+):\n\n((?:\|.*\n)+)")


class ShownRows(NamedTuple):
    dataset: str
    unit: str
    """As the page spells it, like `2026-03-03`."""
    columns: list[str]
    rows: list[list[str]]


def shown_documents() -> dict[str, str]:
    """The documents in the page, by the names of their files."""
    return dict(_DOCUMENT.findall(PAGE.read_text(encoding="utf-8")))


def shown_rows() -> list[ShownRows]:
    tables = []
    for dataset, unit, table in _ROWS.findall(PAGE.read_text(encoding="utf-8")):
        header, _, *rows = (
            [cell.strip().strip("`") for cell in line.strip("| \n").split("|")] for line in table.splitlines()
        )
        tables.append(ShownRows(dataset, unit, header, rows))
    return tables


def cell_text(value: Any) -> str:
    """A value as the page shows it."""
    if isinstance(value, float):
        return f"{value:,.2f}"
    return f"{value:%Y-%m-%d %H:%M}" if isinstance(value, datetime) else str(value)
