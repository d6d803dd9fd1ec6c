"""Reading settings: the file of a home, the environment and the command line become typed values.

Anything that cannot be understood is a `SettingsError` in one sentence: an unknown name (with the nearest known one), a
value of the wrong type or out of range.
"""

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import Field
from pathlib import Path
from typing import Any, TypeAlias

from tracelake.doc_pages import find_page
from tracelake.settings.home import Home
from tracelake.settings.kinds import SettingKind

Declared: TypeAlias = Mapping[str, Field[Any]]
"""The settings by name, with their kinds."""

# Set by Trace for its own children and tasks, or read by the commands of people; not settings.
CHILD_VARIABLE = "TRACE_SUPERVISED"
"""Set for children of `trace up`: their settings come from their environment alone, even if the file has changed."""
_INTERNAL = frozenset(
    {"TRACE_LISTEN_FDS", "TRACE_TASK_CAPABILITY_TOKEN", "TRACE_TOKEN", "TRACE_CONTEXT", CHILD_VARIABLE}
)

_MAX_BYTES = 1024 * 1024
SECRET_PREFIX = "TRACE_SECRET_"  # noqa: S105 - of variables
_OTHERS = ("TRACE_RPC_", SECRET_PREFIX)
"""Families of variables that are no settings: RPC endpoints and secrets of jobs."""


class SettingsError(Exception):
    """A setting cannot be used; the message names it and says what was expected."""


def load_values(declared: Declared, overrides: Mapping[str, object], environ: Mapping[str, str]) -> dict[str, Any]:
    """The values that somebody gave, by name; a later source replaces an earlier one."""
    arguments = {name: value for name, value in overrides.items() if value is not None}
    from_environment = _read_environment(declared, environ)
    home = arguments.get("home", from_environment.get("home", "~/.trace"))
    values: dict[str, Any] = {"home": parse(declared, "home", home, "TRACE_HOME")}
    path = Home(values["home"]).settings_file
    for source, texts in (
        (str(path), {} if CHILD_VARIABLE in environ else _read_file(path)),
        ("the environment", from_environment),
        ("the command line", arguments),
    ):
        for name, value in texts.items():
            values[name] = parse(declared, name, value, source)
    return values


def variable_of(name: str) -> str:
    """The environment variable of a setting."""
    return f"TRACE_{name.upper()}"


def parse(declared: Declared, name: str, value: object, source: str) -> Any:
    if name not in declared:
        raise SettingsError(f"{short(name)} (from {source}) is not a setting{_nearest(name, declared)}")
    kind: SettingKind = declared[name].metadata["kind"]
    try:
        return kind.parse(value)
    except ValueError:
        received = "" if kind.secret else f", not {short(value)}"
        raise SettingsError(f"{name} (from {source}): expected {kind.expected}{received}") from None


def _read_environment(declared: Declared, environ: Mapping[str, str]) -> dict[str, str]:
    variables = {variable_of(name): name for name in declared}
    values = {}
    for variable, value in environ.items():
        if not variable.startswith("TRACE_") or variable in _INTERNAL or variable.startswith(_OTHERS):
            continue
        if variable not in variables:
            raise SettingsError(
                f"the environment variable {short(variable)} is not a setting{_nearest(variable, variables)}"
            )
        # Set to nothing is how a shell or a compose file says "not set".
        if value != "":
            values[variables[variable]] = value
    return values


def read_toml(path: Path, name: str) -> dict[str, Any]:
    """The document in the file, which errors call `name`. A file that does not exist raises FileNotFoundError."""
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
        if len(data) > _MAX_BYTES:
            raise SettingsError(f"{name} is larger than {_MAX_BYTES} bytes")
        return tomllib.loads(data.decode("utf-8"))
    except FileNotFoundError:
        raise
    except OSError as error:
        raise SettingsError(f"{name} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SettingsError(f"{name} is not UTF-8 text") from None
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{name} is not valid TOML: {error}") from None
    except (RecursionError, ValueError):
        raise SettingsError(f"{name} is not valid TOML") from None


def _read_file(path: Path) -> dict[str, Any]:
    try:
        document = read_toml(path, str(path)) if path.parent.is_dir() else {}
    except FileNotFoundError:
        return {}
    if "home" in document:
        raise SettingsError(f"home cannot be set in {path}, which lies inside it; use TRACE_HOME or --home")
    return document


def _nearest(name: str, names: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: the known one that is most like it."""
    close = difflib.get_close_matches(name, list(names), n=1)
    return f"; did you mean {close[0]}?" if close else f"; see {find_page('reference/settings.md')}"


def short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
