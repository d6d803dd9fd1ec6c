"""Columns of text in one piece: what was many strings is one, a line for each."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

END = "\n"
"""After each value. Whoever decodes them counts their ends, so a value that has one itself is noticed."""
Flags = npt.NDArray[np.bool_]


class Texts:
    """The values of a column, which may be null."""

    __slots__ = ("count", "lines", "nulls")

    def __init__(self, lines: str, count: int, nulls: Flags | None = None) -> None:
        self.lines = lines
        self.count = count
        """Of those that are not null."""
        self.nulls = nulls
        """Where there are nulls: at which places."""

    def __len__(self) -> int:
        return self.count if self.nulls is None else len(self.nulls)

    @classmethod
    def of(cls, values: Sequence[str | None]) -> "Texts":
        nulls = None
        if None in values:
            nulls = np.fromiter([value is None for value in values], np.bool_, len(values))
            values = [value for value in values if value is not None]
        return cls(END.join([*values, ""]), len(values), nulls)  # type: ignore[list-item]

    @classmethod
    def concat(cls, parts: Sequence["Texts"]) -> "Texts":
        nulls = None
        if any(part.nulls is not None for part in parts):
            nulls = np.concatenate(
                [np.zeros(len(part), np.bool_) if part.nulls is None else part.nulls for part in parts]
            )
        return cls("".join([part.lines for part in parts]), sum(part.count for part in parts), nulls)

    @property
    def is_sound(self) -> bool:
        """Whether no value has an end in it."""
        return self.lines.count(END) == self.count

    def to_list(self) -> list[str | None]:
        present = self.lines.split(END)[:-1]
        if self.nulls is None:
            return list(present)
        following = iter(present)
        return [None if null else next(following) for null in self.nulls.tolist()]
