"""The names of time zones that a schedule may have: those of the pinned IANA database, so the same on every machine."""

from functools import cache
from importlib import resources


@cache
def time_zone_names() -> frozenset[str]:
    names = resources.files("tzdata").joinpath("zones").read_text(encoding="ascii").split()
    return frozenset(names) - {"Factory"}  # it stands for a machine that was never told where it is
