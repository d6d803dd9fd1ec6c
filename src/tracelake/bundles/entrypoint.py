"""Whether a language can start a bundle: what its entrypoint names exists, and what clashes with other modules."""

import platform
import re
import struct
import sys
from collections.abc import Sequence
from typing import Literal, TypeAlias

import msgspec

from tracelake.bundles.archive import ArchiveData, ArchiveEntry, ArchiveRefusal, read_content

Language: TypeAlias = Literal["python", "node", "rust"]

ENTRYPOINT_REFUSALS = {
    "bootstrap_invalid": "`bootstrap` is not an executable ELF file for this platform",
    "entrypoint_invalid": "the entrypoint does not have the form of its language",
    "entrypoint_missing": "the archive does not have the file that the entrypoint names",
}
FORMS = {
    "python": "`module.function`, like `main.handler` or `package.module.handler`",
    "node": "`file.function`, like `index.handler` or `dist/index.handler`",
    "rust": "no entrypoint: a Rust bundle starts its `bootstrap`",
}

_IDENTIFIER = r"[A-Za-z_][A-Za-z0-9_]{0,99}"
_PYTHON = re.compile(rf"({_IDENTIFIER}(?:[./]{_IDENTIFIER}){{0,15}})\.({_IDENTIFIER})", re.ASCII)
_SEGMENT = r"[A-Za-z0-9_@-]{1,100}"
_NODE = re.compile(rf"((?:{_SEGMENT}/){{0,15}}{_SEGMENT})\.([A-Za-z_$][A-Za-z0-9_$]{{0,99}})", re.ASCII)
_NODE_SUFFIXES = (".js", ".mjs", ".cjs")
_BOOTSTRAP = "bootstrap"
_MACHINES = {"x86_64": 62, "aarch64": 183}
_ELF = struct.Struct("<4sBBBBB7xHH")
_SDK = "tracelake"
_MAX_WARNINGS = 50


class BundleWarning(msgspec.Struct, frozen=True, kw_only=True):
    """Something that works, and that the author may not expect."""

    code: Literal["shadows_standard_library", "shadows_sdk"]
    entry: str
    message: str


def fits_language(language: Language, entrypoint: str | None) -> bool:
    """Whether the text has the form of an entrypoint of that language."""
    if language == "rust":
        return entrypoint is None
    return entrypoint is not None and (_PYTHON if language == "python" else _NODE).fullmatch(entrypoint) is not None


def check_entrypoint(
    data: ArchiveData,
    entries: Sequence[ArchiveEntry],
    language: Language,
    entrypoint: str | None,
    machine: str | None = None,
) -> list[BundleWarning]:
    """Raises ArchiveRefusal unless the language can start the bundle. `machine`: that of the platform by default."""
    if not fits_language(language, entrypoint):
        raise ArchiveRefusal("entrypoint_invalid", f"expected {FORMS[language]}", entrypoint or "nothing")
    files = {entry.name: entry for entry in entries if not entry.is_directory}
    if language == "rust":
        _check_bootstrap(data, files.get(_BOOTSTRAP), machine or platform.machine())
        return []
    assert entrypoint is not None
    candidates = entrypoint_files(language, entrypoint)
    if not any(candidate in files for candidate in candidates):
        detail = f"expected {' or '.join(candidates)} in the archive, for the entrypoint"
        raise ArchiveRefusal("entrypoint_missing", detail, entrypoint)
    return _python_clashes(files) if language == "python" else []


def entrypoint_files(language: Language, entrypoint: str) -> list[str]:
    """The files, one of which an entrypoint of that form needs."""
    stem = entrypoint.rpartition(".")[0]
    if language == "python":
        stem = stem.replace(".", "/")
        return [f"{stem}.py", f"{stem}/__init__.py"]
    return [f"{stem}{suffix}" for suffix in _NODE_SUFFIXES]


def _python_clashes(files: dict[str, ArchiveEntry]) -> list[BundleWarning]:
    """Modules of the bundle come first inside of it, and never in the runner, which has imported its own before."""
    modules: dict[str, str] = {}
    for name in sorted(files):
        top, _, rest = name.partition("/")
        if not rest and top.endswith(".py"):
            modules.setdefault(top.removesuffix(".py"), name)
        elif rest == "__init__.py":
            modules.setdefault(top, name)
    warnings = []
    for module, name in modules.items():
        if module in sys.stdlib_module_names:
            message = f"code of the bundle that imports `{module}` gets this file, not the standard library's module"
            warnings.append(BundleWarning(code="shadows_standard_library", entry=name, message=message))
        elif module == _SDK:
            message = "code of the bundle that imports `tracelake` gets this copy, not the platform's SDK"
            warnings.append(BundleWarning(code="shadows_sdk", entry=name, message=message))
    return warnings[:_MAX_WARNINGS]


def _check_bootstrap(data: ArchiveData, entry: ArchiveEntry | None, machine: str) -> None:
    if entry is None:
        raise ArchiveRefusal("entrypoint_missing", "expected an executable file at the root of the archive", _BOOTSTRAP)
    if not entry.executable:
        raise ArchiveRefusal("bootstrap_invalid", "expected the mode of an executable file, like 0755", _BOOTSTRAP)
    head = b""
    for piece in read_content(data, entry):
        head += piece
        if len(head) >= _ELF.size:
            break
    expected = _MACHINES.get(machine)
    if expected is None:
        raise ArchiveRefusal("bootstrap_invalid", f"this platform runs no Rust bundles on {machine}", _BOOTSTRAP)
    detail = f"expected a 64-bit ELF executable for {machine}"
    if len(head) < _ELF.size:
        raise ArchiveRefusal("bootstrap_invalid", detail, _BOOTSTRAP)
    mark, width, order, _, _, _, kind, target = _ELF.unpack(head[: _ELF.size])
    if mark != b"\x7fELF" or (width, order) != (2, 1) or kind not in (2, 3):
        raise ArchiveRefusal("bootstrap_invalid", detail, _BOOTSTRAP)
    if target != expected:
        received = next((name for name, number in _MACHINES.items() if number == target), f"machine {target}")
        raise ArchiveRefusal("bootstrap_invalid", f"{detail}, received one for {received}", _BOOTSTRAP)
