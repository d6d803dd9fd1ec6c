"""Time zones by the rules of the pinned IANA database (the package `tzdata`), never by those of the machine.

`zoneinfo.ZoneInfo(name)` prefers the zone files of the machine. Two processes on machines of different age would then
disagree about when a day begins.
"""

from functools import cache
from importlib import resources
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError


@cache
def time_zone_names() -> frozenset[str]:
    names = resources.files("tzdata").joinpath("zones").read_text(encoding="ascii").split()
    return frozenset(names) - {"Factory"}  # it stands for a machine whose zone was never set


@cache
def time_zone(name: str) -> ZoneInfo:
    """Raises ZoneInfoNotFoundError for a name that the database does not have."""
    if name not in time_zone_names():
        raise ZoneInfoNotFoundError(f"no time zone {name!r} in the package tzdata")
    with resources.files("tzdata").joinpath("zoneinfo", *name.split("/")).open("rb") as rules:
        return ZoneInfo.from_file(rules, key=name)
