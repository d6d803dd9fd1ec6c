"""Garbage collection in Spark's Python processes: set up once in each, before its first work."""

import gc


def settle() -> None:
    """Spark collects all garbage after each task: what was imported is not looked at again and again."""
    if not gc.get_freeze_count():
        gc.freeze()
