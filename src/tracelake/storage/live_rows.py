"""Reading a live dataset: files up to a boundary, rows of a table above it, each row once.

Whoever reads asks for the files first, which come with the boundary, and then opens a snapshot of Postgres data. Rows
leave the table only after their files were committed and the boundary moved over them. So in the snapshot every row
above the boundary is in the table, unless rows were removed beyond the boundary meanwhile. `Snapshot.check_boundary`
notices that, and the reader begins again with the newer list of files (`wire.content.LOOKS` times at most).
"""

from tracelake.model.buffered import quoted


def position_conditions(position: str, boundary: int | None, start: int | None = None, end: int | None = None) -> str:
    """What a row of the table must fulfil: above the boundary, and from `start` to `end`. Empty: nothing."""
    name = quoted(position)
    least = start if boundary is None else max(boundary + 1, start or 0)
    conditions = [] if least is None else [f"{name} >= {least:d}"]
    conditions += [] if end is None else [f"{name} <= {end:d}"]
    return " AND ".join(conditions)
