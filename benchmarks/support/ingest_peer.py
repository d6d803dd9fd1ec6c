"""cryo, in a process of its own environment: started once, told what to do, and given its best settings."""

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

TABLES = ("blocks", "transactions", "logs")
MADE = Path(__file__).parents[2] / ".venv-peers" / "bin" / "python"
_TRIES = 3

CRYO_SETTINGS: tuple[dict[str, Any], ...] = (
    {},
    {"max_concurrent_requests": 10},
    {"max_concurrent_requests": 30},
    {"chunk_size": 500},
    {"chunk_size": 500, "max_concurrent_requests": 10},
    {"chunk_size": 4000, "max_concurrent_requests": 10},
    {"inner_request_size": 100, "max_concurrent_requests": 10},
)
"""Its defaults (chunks of 1000 blocks, all of them at a time) and what might be faster on two cores. Its requests are
one call each; there is no setting for batches."""


def find_cryo() -> Path | None:
    """The Python that has cryo: of the environment that `make` makes, or the one that TRACE_CRYO_PYTHON names."""
    named = os.environ.get("TRACE_CRYO_PYTHON")
    if named:
        return Path(named)
    return MADE if MADE.exists() else None


class UnreadError(RuntimeError):
    """Calls of cryo failed, as they do when too many of them wait for a busy server."""


class Cryo:
    def __init__(self, python: Path, url: str, blocks: int) -> None:
        self._settings = CRYO_SETTINGS[0]
        self._usual = {
            "blocks": [f"0:{blocks}"],
            "rpc": url,
            "hex": False,
            "include_columns": ["parent_hash"],
            "compression": ["zstd", "3"],
            "verbose": False,
        }
        script = Path(__file__).with_name("ingest_cryo.py")
        self._process = subprocess.Popen(
            [str(python), str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate()

    def run(self, directory: Path) -> float:
        """Seconds that it took to write all three tables below the directory."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        options = {**self._usual, **self._settings, "output_dir": str(directory)}
        self._process.stdin.write(json.dumps({"tables": TABLES, "options": options}) + "\n")
        self._process.stdin.flush()
        said = json.loads(self._process.stdout.readline())
        if said["failed"]:
            raise UnreadError("cryo did not read everything")
        seconds: float = said["seconds"]
        return seconds

    def choose(self, scratch: Path, count: int, say: Callable[[str], None]) -> None:
        """From now on with the settings that are fastest here, of the first so many, tried in turns."""
        best = [float("inf")] * count
        for _ in range(_TRIES):
            for place, settings in enumerate(CRYO_SETTINGS[:count]):
                self._settings = settings
                directory = Path(tempfile.mkdtemp(dir=scratch))
                with contextlib.suppress(UnreadError):  # a setting with which it gives up is not taken
                    best[place] = min(best[place], self.run(directory))
                shutil.rmtree(directory)
        if min(best) == float("inf"):
            raise UnreadError("cryo did not read everything, with any of its settings")
        chosen = best.index(min(best))
        self._settings = CRYO_SETTINGS[chosen]
        for place, seconds in enumerate(best):
            told = ", ".join(f"{name} {value}" for name, value in CRYO_SETTINGS[place].items()) or "its defaults"
            say(f"  {seconds:.2f} s  {told}{'   <- taken' if place == chosen else ''}")
