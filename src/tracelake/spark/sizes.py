"""How much work a unit is, guessed before anything is read from what the manifests say: sizes and names of files.

Most units are small: Spark's ways to spread work cost them more than the work itself. A small input comes as one
partition, so that nothing of it has to be exchanged; a small result is one file. A large one is spread, and has a file
for every few megabytes that were read for it.
"""

import re
from collections.abc import Sequence

from tracelake.ports import ObjectMeta

SMALL_BYTES = 4 * 1024 * 1024
"""One core reads, joins and writes so much in a second or less."""
BYTES_PER_FILE = 32 * 1024 * 1024
MOST_FILES = 64
_NAMED = re.compile(r"_(\d+)_(\d+)(?:\.[0-9a-f]+)?\.parquet$")


def weigh(files: Sequence[ObjectMeta], start: int | None, end: int | None) -> int:
    """Bytes of these files that a range of blocks has to do with; all of a file whose name does not say its blocks."""
    return sum(round(file.size * _share(file.uri, start, end)) for file in files)


def _share(uri: str, start: int | None, end: int | None) -> float:
    match = _NAMED.search(uri)
    if match is None or start is None or end is None:
        return 1.0
    first, last = int(match[1]), int(match[2])
    common = min(last, end) - max(first, start) + 1
    return min(1.0, max(0, common) / max(1, last - first + 1))


def is_small(size: int) -> bool:
    return size <= SMALL_BYTES


def file_count(size: int) -> int:
    """How many files a result gets for which so much was read."""
    return max(2, min(MOST_FILES, -(-size // BYTES_PER_FILE)))
