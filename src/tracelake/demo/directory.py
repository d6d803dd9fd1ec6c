"""The directories of a demo: a temporary one, and the home of its stack.

The home is below the temporary directory, unless TRACE_HOME names a directory that is absent or empty: then that is the
home, so that with `--keep` other commands find the stack without `--home`. A directory that holds anything, such as the
home of a stack, is left alone; nothing is ever removed that the demo did not create.
"""

import os
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tracelake.settings.home import Home


@dataclass(frozen=True, slots=True)
class DemoDirectory:
    scratch: Path
    home: Path
    was_there: bool = False
    """Whether the home was there before, empty: it stays."""
    refused: Path | None = None
    """The directory that TRACE_HOME names, if it holds something and is not used."""

    @classmethod
    def make(cls, environment: Mapping[str, str] = os.environ) -> "DemoDirectory":
        scratch = Path(tempfile.mkdtemp(prefix="trace-demo-"))
        variable = environment.get("TRACE_HOME")
        if not variable:
            return cls(scratch, scratch / "home")
        home = Path(variable).expanduser().absolute()
        was_there = home.is_dir()
        if not _claim(home):
            return cls(scratch, scratch / "home", refused=home)
        return cls(scratch, home, was_there)

    def remove(self) -> None:
        shutil.rmtree(self.scratch, ignore_errors=True)
        if self.home.is_relative_to(self.scratch):
            return
        with suppress(OSError):
            for path in self.home.iterdir():
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)
            if not self.was_there:
                self.home.rmdir()


def _claim(root: Path) -> bool:
    """Makes an absent or empty directory the home of this demo; False if it is not to be had.

    Of two demos, or a demo and `trace up`, one creates the directory of the lock, and the other one sees it.
    """
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(root.iterdir()):
            return False
        Home(root).run.mkdir(mode=0o700)
    except OSError:
        return False
    return True
