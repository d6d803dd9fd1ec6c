"""The rule by which one of several rows with the same key is the visible one, as SQL.

Every row has a place in one total order, so the winner does not depend on the order of arrival: `update` takes the
highest `(publish_seq, line)`, `nothing` the lowest, and `newest` the highest `(version column, publish_seq, line)`.
"""

from tracelake.model.buffered import quoted
from tracelake.rows.values import kind_of
from tracelake.wire.buffers import BufferedDataset


def _places(dataset: BufferedDataset, row: str, *, staged: bool = False) -> list[str]:
    """The values by which a row is compared, the most important first. `staged`: as a staging table holds them."""
    places = [f"{row}._publish_seq", f"{row}._line"]
    if dataset.version_column is not None:
        column = dataset.schema.column(dataset.version_column)
        assert column is not None  # a deploy checks it
        places.insert(0, f"{row}.{quoted(column.name)}{kind_of(column).cast if staged else ''}")
    return places


def best_first(dataset: BufferedDataset, row: str, *, staged: bool = False) -> str:
    """What follows ORDER BY for the winner to come first."""
    direction = "ASC" if dataset.on_conflict == "nothing" else "DESC"
    return ", ".join(f"{place} {direction}" for place in _places(dataset, row, staged=staged))


def wins(dataset: BufferedDataset, row: str, over: str) -> str:
    """The condition that one row wins over another."""
    sign = "<" if dataset.on_conflict == "nothing" else ">"
    return f"({', '.join(_places(dataset, row))}) {sign} ({', '.join(_places(dataset, over))})"
