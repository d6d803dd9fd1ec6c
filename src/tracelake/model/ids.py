"""Identifiers.

Rows that are inserted at a high rate use time-ordered UUIDs (version 7), so that an index grows at its
right edge and a million finished rows do not slow the next insert.
"""

import secrets
import time
from uuid import UUID

_RANDOM_BITS = 74


def new_id() -> UUID:
    """A time-ordered UUID (RFC 9562, version 7)."""
    millis = time.time_ns() // 1_000_000
    random = secrets.randbits(_RANDOM_BITS)
    high = random >> 62  # 12 bits beside the version
    low = random & ((1 << 62) - 1)
    return UUID(int=(millis << 80) | (0x7 << 76) | (high << 64) | (0b10 << 62) | low)


def new_secret_id() -> UUID:
    """A fully random UUID, for values that must not be guessed (lease tokens)."""
    return UUID(int=(secrets.randbits(128) & ~(0xF << 76) & ~(0b11 << 62)) | (0x4 << 76) | (0b10 << 62))
