"""The pages of `docs/`. A wheel has them beside this module, in `tracelake/docs`, a clone in its root."""

from pathlib import Path

_INSTALLED = Path(__file__).with_name("docs")
_CLONED = Path(__file__).resolve().parents[2] / "docs"


def find_page(name: str) -> Path:
    """The path of a page or directory below `docs/`."""
    return (_INSTALLED if _INSTALLED.is_dir() else _CLONED) / name


def installed_directory() -> Path | None:
    """The directory that holds `docs/` and `examples/` of an installed wheel; None in a clone, whose root has them."""
    return _INSTALLED.parent if _INSTALLED.is_dir() else None
