"""`trace` whose restore is killed at one moment: `python -m tests.runbooks.crash before|after restore FILE ...`.

The moment is the one that decides: right before, or right after, the new state takes the old one's place.
"""

import os
import signal
import sys
from typing import Any

from tracelake.processes.main import main
from tracelake.stack import restore

_change_names = restore._change_names


async def _dies_before(*_arguments: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def _dies_after(*arguments: Any) -> None:
    await _change_names(*arguments)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    restore._change_names = {"before": _dies_before, "after": _dies_after}[sys.argv[1]]  # type: ignore[assignment]
    main(sys.argv[2:])
