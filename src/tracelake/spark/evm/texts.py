"""Columns of text in one piece: what was many strings is one, a line for each."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

END = "\n0"
"""After each value. Whoever decodes them counts line ends, so a value that has one itself is noticed. It has two
letters, so that whole bytes of hex stay whole bytes."""
Flags = npt.NDArray[np.bool_]


class Texts:
    """The values of a column, which may be null."""

    __slots__ = ("_nulls", "count", "parts")

    def __init__(self, parts: list[bytes], count: int, nulls: list[bool] | None = None) -> None:
        self.parts = parts
        """Which follow one another."""
        self.count = count
        """Of those that are not null."""
        self._nulls = nulls

    def __len__(self) -> int:
        return self.count if self._nulls is None else len(self._nulls)

    @property
    def nulls(self) -> Flags | None:
        """Where there are nulls: at which places."""
        return None if self._nulls is None else np.array(self._nulls, np.bool_)

    @classmethod
    def of(cls, values: Sequence[str | None]) -> "Texts":
        try:
            lines = END.join((*values, ""))  # type: ignore[arg-type]
        except TypeError:  # the quickest way to hear of a null
            present = [value for value in values if value is not None]
            return cls([END.join((*present, "")).encode()], len(present), [value is None for value in values])
        return cls([lines.encode()], len(values))

    @classmethod
    def concat(cls, texts: Sequence["Texts"]) -> "Texts":
        nulls = None
        if any(one._nulls is not None for one in texts):
            nulls = []
            for one in texts:
                nulls += [False] * one.count if one._nulls is None else one._nulls
        return cls([part for one in texts for part in one.parts], sum(one.count for one in texts), nulls)

    @property
    def is_sound(self) -> bool:
        """Whether no value has an end in it."""
        return sum(part.count(b"\n") for part in self.parts) == self.count

    def to_list(self) -> list[str | None]:
        present = b"".join(self.parts).decode().split(END)[:-1]
        if self._nulls is None:
            return list(present)
        following = iter(present)
        return [None if null else next(following) for null in self._nulls]
