"""Estimates of how much work a call is: roughly the rows that its transaction touches.

The group commit bounds its batches by the sum, and keeps heavy calls away from light ones. Estimates only: a wrong one
costs time, never correctness.
"""

from collections.abc import Sequence

from tracelake.dispatcher.engine.file_publications import PublicationRequest
from tracelake.wire.units import EventIn

LIGHT = 1
_INVALIDATION = 128
"""An invalidation makes up to `AT_ONCE` units of each reader anew; how many is known only while it is routed."""
_FILES_A_ROW = 16
"""Files of a publication are one array, not a row each."""


def weigh_events(events: Sequence[EventIn], readers: int) -> int:
    """Weighs each event as a row of its own, and a task for each of its readers."""
    invalidations = sum(event.invalidates is not None for event in events)
    return len(events) * (1 + readers) + invalidations * _INVALIDATION * readers


def weigh_files(publications: Sequence[PublicationRequest]) -> int:
    return sum(1 + len(item.objects) // _FILES_A_ROW for item in publications)
