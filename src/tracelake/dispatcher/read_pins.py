"""What an attempt reads of its inputs, fixed when it is claimed: files as of a moment, and for a live dataset the
boundary of that moment."""

from collections.abc import Mapping
from datetime import datetime
from uuid import UUID

import msgspec


class LivePin(msgspec.Struct, frozen=True, omit_defaults=True):
    """The pin of a live dataset. Both are of one moment."""

    as_of: datetime | None = None
    """None: it had no files."""
    boundary: int | None = None
    """None: no file had rows of the table."""


ReadPin = datetime | LivePin | None
"""Of a dataset of files: the time of its newest commit, or None if it had none."""

_DECODER = msgspec.json.Decoder(dict[str, ReadPin])


def encode_pins(pins: Mapping[UUID, ReadPin]) -> str:
    """By dataset_version."""
    return msgspec.json.encode({str(version): pin for version, pin in pins.items()}).decode()


def decode_pins(text: str | None) -> dict[UUID, ReadPin]:
    return {} if text is None else {UUID(version): pin for version, pin in _DECODER.decode(text).items()}


def moment_of(pin: ReadPin) -> datetime | None:
    """The moment whose files are read; None: there were none."""
    return pin.as_of if isinstance(pin, LivePin) else pin
