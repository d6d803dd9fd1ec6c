"""Rules of time zones are those of the pinned package, whatever the machine has."""

import zoneinfo
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path

import pytest

from tracelake.dag.slots import ScheduleSlots
from tracelake.model.dag import UnitGrid
from tracelake.model.time_zones import time_zone, time_zone_names
from tracelake.model.windows import window_at

ZONE = "Europe/Busingen"


@pytest.fixture
def other_machine(tmp_path: Path) -> Iterator[None]:
    """Its zone files take the zone for another one."""
    rules = resources.files("tzdata").joinpath("zoneinfo", "Asia", "Tokyo").read_bytes()
    (tmp_path / "Europe").mkdir()
    (tmp_path / ZONE).write_bytes(rules)
    zoneinfo.reset_tzpath([str(tmp_path)])
    zoneinfo.ZoneInfo.clear_cache()
    time_zone.cache_clear()
    ScheduleSlots.of.cache_clear()
    yield
    zoneinfo.reset_tzpath()
    zoneinfo.ZoneInfo.clear_cache()


@pytest.mark.usefixtures("other_machine")
def test_the_zone_files_of_the_machine_change_nothing() -> None:
    noon = datetime(2026, 3, 3, 12, tzinfo=UTC)
    assert noon.astimezone(zoneinfo.ZoneInfo(ZONE)).hour == 21, "the machine would say so"
    start = datetime.fromtimestamp(
        window_at(UnitGrid(by="time", grain="day", time_zone=ZONE), int(noon.timestamp())).start, UTC
    )
    assert start == datetime(2026, 3, 2, 23, tzinfo=UTC)
    slot = ScheduleSlots.of("0 13 * * *", ZONE).after(datetime(2026, 3, 3, 11, tzinfo=UTC))
    assert slot == noon


def test_every_name_has_rules() -> None:
    assert {name for name in time_zone_names() if time_zone(name).key != name} == set()
    for name in ("Factory", "Europe/Nowhere", "../UTC", "/etc/localtime"):
        with pytest.raises(zoneinfo.ZoneInfoNotFoundError):
            time_zone(name)
