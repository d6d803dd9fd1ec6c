"""The processes of the machine: who started whom, and the memory that each has to itself."""

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

_PAGE = os.sysconf("SC_PAGE_SIZE")


def read_parents() -> dict[int, int]:
    """The parent of each process of the machine."""
    parents: dict[int, int] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with suppress(OSError):
                # After the name of the program, which may contain anything.
                fields = Path(entry.path, "stat").read_text().rpartition(")")[2].split()
                parents[int(entry.name)] = int(fields[1])
    return parents


def family(root: int, parents: Mapping[int, int]) -> list[int]:
    """This process and every one below it."""
    family = [root]
    for pid in family:
        family.extend(child for child, parent in parents.items() if parent == pid)
    return family


def own_bytes(pid: int) -> int:
    """Resident, without what it shares with files and others."""
    try:
        fields = Path(f"/proc/{pid}/statm").read_text().split()
    except OSError:
        return 0
    return max(0, int(fields[1]) - int(fields[2])) * _PAGE
