"""The number of visible blocks. The rest of a recording is the future, and can be made visible while serving."""

import mmap
import struct

_COUNT = struct.Struct("q")


class Visible:
    """The number of visible blocks, shared by the processes that serve (they are forked after this is made)."""

    def __init__(self, blocks: int, of: int) -> None:
        if of < 1:
            raise ValueError("a chain has at least one block")
        self._shared = mmap.mmap(-1, _COUNT.size)
        self._of = of
        self.set(blocks)

    def set(self, blocks: int) -> None:
        """Shows so many blocks: at least the first, and never more than were recorded."""
        _COUNT.pack_into(self._shared, 0, max(1, min(blocks, self._of)))

    def grow(self, blocks: int) -> None:
        self.set(self.count + blocks)

    @property
    def count(self) -> int:
        count: int = _COUNT.unpack_from(self._shared)[0]
        return count

    @property
    def head(self) -> int:
        """The number of the newest visible block."""
        return self.count - 1
