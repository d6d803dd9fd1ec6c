"""Log files of the parts: bounded in size while the parts run.

A part writes to a descriptor that the supervisor opened for appending, so its file cannot be moved away from under it.
Instead the text is copied to a file beside it and the file is cut to nothing; the next line of the part begins it anew.
Lines that a part writes in the moment between the last read and the cut are lost. A crash in between leaves them twice.
"""

import asyncio
import contextlib
import logging
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

logger = logging.getLogger(__name__)

MAX_BYTES = 8 * 1024 * 1024
KEPT_FILES = 3
"""Older texts of a log that are kept, `.1` the newest."""
_CHECK_SECONDS = 5.0


def rotate_log(path: Path) -> None:
    """Sets the text of a log aside if it has grown large; others may write to it meanwhile."""
    try:
        if path.stat().st_size < MAX_BYTES:
            return
    except FileNotFoundError:
        return
    for number in range(KEPT_FILES, 1, -1):
        with contextlib.suppress(FileNotFoundError):
            _numbered(path, number - 1).replace(_numbered(path, number))
    copy = path.with_name(f"{path.name}.copy")
    with path.open("r+b") as log, copy.open("wb") as target:
        os.fchmod(target.fileno(), 0o600)
        shutil.copyfileobj(log, target)
        target.flush()
        # Whatever came during the copy; nothing slow stands between this read and the cut.
        target.write(log.read())
        log.truncate(0)
    copy.replace(_numbered(path, 1))


def _numbered(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")


async def keep_logs_small(paths: Sequence[Path]) -> None:
    """Looks at the logs for ever. One that cannot be rotated (a full disk, say) is tried again."""
    troubled: set[Path] = set()
    while True:
        await asyncio.sleep(_CHECK_SECONDS)
        for path in paths:
            try:
                await asyncio.to_thread(rotate_log, path)
                troubled.discard(path)
            except OSError as error:
                if path not in troubled:
                    logger.warning("the log %s cannot be rotated: %s", path.name, error.strerror)
                troubled.add(path)
