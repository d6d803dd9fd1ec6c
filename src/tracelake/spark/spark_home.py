"""Where Java loads Spark from: the installed package, or the same files at a path that Java's class archive can name.

Java notes for each archived class the address of its jar, as a URL, and compares it with a path. The two differ for a
path with a space, an umlaut or another character that URLs encode, and Java then loads each class from its jar again.
It resolves symbolic links first. So an installation at such a path has a directory of links to the jars elsewhere, made
with the archive (`spark/class_archive.py`).
"""

import hashlib
import os
import re
import shutil
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from tracelake.private_files import private_directory

_PLAIN = re.compile(r"[A-Za-z0-9/._-]+")
_PLACES = ("~/.cache", "/var/tmp")  # noqa: S108 - the owner is checked


def find_spark_home() -> Path:
    """The directory for SPARK_HOME."""
    package = _package()
    with suppress(OSError):
        linked = Path(_note().read_text().strip())
        if linked.name == _name(package) and linked.stat().st_uid == os.geteuid():
            return linked
    return package


def link_spark_home() -> Path:
    """Makes the directory of links, if the package is at a path that needs one and some place does not."""
    package = _package()
    _note().unlink(missing_ok=True)
    if _is_plain(package):
        return package
    for place in (os.environ.get("XDG_CACHE_HOME", ""), *_PLACES):
        base = Path(place).expanduser()
        if place and base.is_absolute() and _is_plain(base):
            with suppress(OSError):
                linked = _link(package, base / f"tracelake-{os.geteuid()}")
                _note().parent.mkdir(parents=True, exist_ok=True)
                _note().write_text(f"{linked}\n")
                return linked
    return package


def _link(package: Path, directory: Path) -> Path:
    private_directory(directory)
    if directory.is_symlink() or directory.stat().st_uid != os.geteuid():
        raise OSError(f"{directory} belongs to somebody else")
    linked = directory / _name(package)
    for old in directory.glob(f"{linked.name.rpartition('-')[0]}-*"):
        shutil.rmtree(old, ignore_errors=True)
    aside = Path(tempfile.mkdtemp(dir=directory))
    (aside / "jars").mkdir()
    for jar in (package / "jars").glob("*.jar"):
        try:
            os.link(jar, aside / "jars" / jar.name)
        except OSError:  # another file system
            shutil.copy2(jar, aside / "jars" / jar.name)
    for name in ("bin", "python"):
        (aside / name).symlink_to(package / name)
    return aside.rename(linked)


def _package() -> Path:
    import pyspark

    return Path(pyspark.__file__).parent


def _name(package: Path) -> str:
    """Names the package and its version: links to another one are not used."""
    import pyspark

    return f"spark-{hashlib.sha256(os.fsencode(package.resolve())).hexdigest()[:16]}-{pyspark.__version__}"


def _note() -> Path:
    return Path(sys.prefix, "share", "tracelake", "spark-home")


def _is_plain(path: Path) -> bool:
    return _PLAIN.fullmatch(str(path.resolve())) is not None
