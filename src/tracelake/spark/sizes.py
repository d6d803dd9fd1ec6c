"""How much work a unit is, guessed before anything is read from what the manifests say: sizes and names of files.

Most units are small: Spark's ways to spread work cost them more than the work itself. A small input comes as one
partition, so that nothing of it has to be exchanged; a small result is one file. A large one is spread, and has a file
for every few megabytes that were read for it.

Settings of Spark are those of a session, and several tasks run in one at a time. So small units have a session of their
own beside the large ones' (`session_for_small`), in the same Java process, on the same executors.
"""

import re
import threading
import weakref
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from tracelake.ports import ObjectMeta

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SMALL_BYTES = 4 * 1024 * 1024
"""One core reads, joins and writes so much in a second or less."""
BYTES_PER_FILE = 32 * 1024 * 1024
MOST_FILES = 64
_SPLIT_BYTES, _OPEN_BYTES = 128 * 1024 * 1024, 4 * 1024 * 1024
"""How Spark cuts files for its tasks, unless it is told otherwise."""
_LEAST_BYTES = 2 * 1024 * 1024
"""Of a file, on average, that a result may have files of the same blocks as what was read."""
_SMALL_SETTINGS = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    # Each side of a join is one partition: to send one of them to the other would be a job of its own.
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    # To write, compile and warm up classes takes longer than to evaluate expressions for a few thousand rows.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    # Nobody looks at descriptions of plans.
    "spark.sql.ui.explainMode": "simple",
}
_small_sessions: "weakref.WeakKeyDictionary[SparkSession, SparkSession]" = weakref.WeakKeyDictionary()
_small_sessions_lock = threading.Lock()
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


def session_for_small(session: "SparkSession") -> "SparkSession":
    """A session beside this one with settings for small units; over Spark Connect this one."""
    if not hasattr(session, "_jsparkSession"):
        return session
    with _small_sessions_lock:
        small = _small_sessions.get(session)
        if small is None:
            small = session.newSession()
            for name, value in _SMALL_SETTINGS.items():
                small.conf.set(name, value)
            _small_sessions[session] = small
        return small


def file_ranges(
    files: Sequence[ObjectMeta], start: int | None, end: int | None, cores: int
) -> tuple[tuple[int, int], ...]:
    """Which blocks of the unit each file holds, if none are in two files, and Spark reads each file in one task;
    otherwise, and where files are many and small, nothing."""
    matches = [_NAMED.search(file.uri) for file in files]
    if start is None or end is None or None in matches or sum(file.size for file in files) < len(files) * _LEAST_BYTES:
        return ()
    most = min(_SPLIT_BYTES, max(_OPEN_BYTES, sum(file.size + _OPEN_BYTES for file in files) // max(1, cores)))
    names = sorted((int(match[1]), int(match[2])) for match in matches if match is not None)
    ranges = tuple((max(start, first), min(end, last)) for first, last in names if first <= end and last >= start)
    apart = all(one[1] < other[0] for one, other in pairwise(ranges))
    return ranges if apart and max(file.size for file in files) <= most else ()


def file_count(size: int) -> int:
    """How many files a result gets for which so much was read."""
    return max(2, min(MOST_FILES, -(-size // BYTES_PER_FILE)))
