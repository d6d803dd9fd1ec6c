"""Garbage collection in Spark's Python processes: set up once in each, before its first work."""

import gc
from functools import cache


@cache
def settle() -> None:
    """Spark collects all garbage after each task: what was imported is not looked at again and again.

    Later calls do nothing: to tell that objects are frozen already means to count them, tens of milliseconds.
    """
    if not gc.get_freeze_count():
        gc.freeze()
