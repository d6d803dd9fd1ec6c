"""File descriptors: raised as far as the system allows, and shared out before anybody connects.

The connections of all listeners together stay below the limit of open files, less a reserve for databases, the object
store, child processes and files. So a flood at a listener finds the limit of that listener and nothing else.
"""

import logging
import resource
from collections.abc import Mapping
from contextlib import suppress

logger = logging.getLogger(__name__)

RESERVED = 256
MOST = 65_536
"""The highest limit that is set: more is of no use, and some programs that inherit it try every number."""
LEAST = 8
"""Connections that a listener has in any case."""


def raise_limit() -> int:
    """Raise the limit of open files to the hard limit; answers what it is then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    if soft == resource.RLIM_INFINITY:
        return MOST
    if soft < target:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
            soft = target
    return soft


def share_connections(limits: Mapping[str, int], open_files: int) -> dict[str, int]:
    """The limits as they are if they fit, else each one's share of what there is."""
    available = max(open_files - RESERVED, open_files // 2)
    total = sum(limits.values())
    if total <= available:
        return dict(limits)
    shares = {name: max(limit * available // total, LEAST) for name, limit in limits.items()}
    logger.warning(
        "the limit of open files is too low for the limits of connections: they were lowered; raise the hard limit "
        "(ulimit -Hn) or lower public_connections, task_connections and internal_connections",
        extra={"open_files": open_files, "reserved": RESERVED, "connections": shares},
    )
    return shares
