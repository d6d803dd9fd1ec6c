"""The runtime registry of a process: what is built in, changed by the TOML file that `runtimes_file` names.

    [runtimes.ecs_spark]
    kind = "queue"
    memory_mb = 16384

    [operators.range_splitter]
    max_concurrency = 4

A table of a known runtime changes the fields it names. As with settings, what cannot be understood is a `SettingsError`
in one sentence that says where.
"""

import difflib
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tracelake.catalogue import CATALOGUE
from tracelake.model.job import BUFFER_QUEUES, FUNCTION_OPERATOR
from tracelake.model.runtime import BUILT_IN, LAMBDA, Runtime, RuntimeKind, RuntimeRegistry
from tracelake.settings.declarations import Settings
from tracelake.settings.loading import SettingsError, read_toml, short

_NAME = re.compile(r"[a-z][a-z0-9_-]{0,63}")
_QUEUE = re.compile(r"[a-z][a-z0-9._-]{0,79}")
_MAX_SECONDS = 7 * 24 * 3600


@dataclass(frozen=True, slots=True)
class _Field:
    """How one field is read. `expected` completes the sentence "expected ..."."""

    expected: str
    fits: Callable[[Any], bool]


def _whole(least: int, most: int) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _is_cpu(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and math.isfinite(value) and 0 < value <= 1024


def _is_queue(value: Any) -> bool:
    return isinstance(value, str) and _QUEUE.fullmatch(value) is not None and not f"{value}.".startswith(BUFFER_QUEUES)


def _is_image(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= 500 and value.isprintable() and " " not in value


_KINDS = tuple(kind.value for kind in RuntimeKind)
_SECONDS = _Field(f"a whole number of seconds from 1 to {_MAX_SECONDS}", _whole(1, _MAX_SECONDS))
_RUNTIME_FIELDS: Mapping[str, _Field] = {
    "kind": _Field(f"one of {', '.join(_KINDS)}", lambda value: isinstance(value, str) and value in _KINDS),
    "queue": _Field("the name of a task queue, like tasks.ecs_spark", _is_queue),
    "image": _Field("the name of an image", _is_image),
    "cpu": _Field("a number of CPUs above 0", _is_cpu),
    "memory_mb": _Field("a whole number of megabytes from 1 to 16777216", _whole(1, 2**24)),
    "default_timeout_seconds": _SECONDS,
    "max_timeout_seconds": _SECONDS,
}
_OPERATOR_FIELDS: Mapping[str, _Field] = {
    "max_concurrency": _Field("a whole number from 1 to 1000000", _whole(1, 1_000_000)),
}


def load_runtimes(settings: Settings) -> RuntimeRegistry:
    """The runtimes that this process knows. The file is read once; a change needs a restart."""
    runtimes = dict(BUILT_IN.runtimes)
    lambda_default = math.ceil(settings.lambda_timeout_seconds)
    runtimes[LAMBDA] = replace(runtimes[LAMBDA], default_timeout_seconds=lambda_default)
    # Functions beyond the slots of the runner wait as queued tasks: whoever waits there has not begun an attempt.
    limits = {**BUILT_IN.operator_limits, FUNCTION_OPERATOR: settings.runner_slots}
    path = settings.runtimes_file
    if path is not None:
        document = _read(path)
        _check_names(document, ("runtimes", "operators"), path, "")
        for name, table in _tables(document, "runtimes", path).items():
            runtimes[name] = _runtime(name, table, runtimes.get(name), path)
        for name, table in _tables(document, "operators", path).items():
            limits[name] = _operator_limit(name, table, path)
    default, most = runtimes[LAMBDA].default_timeout_seconds, runtimes[LAMBDA].max_timeout_seconds
    if default is not None and most is not None and default > most:  # not by the file: it was compared above
        raise SettingsError(f"lambda_timeout_seconds must not be above {most}, the limit of the runtime lambda")
    return RuntimeRegistry(runtimes, limits)


def worker_queue(settings: Settings, registry: RuntimeRegistry) -> str:
    """The queue that a worker with these settings receives from."""
    name = settings.worker_runtime
    runtime = registry.get(name)
    if runtime is None:
        raise SettingsError(f"worker_runtime: there is no runtime {name!r}{_nearest(name, registry.runtimes)}")
    if runtime.queue is None:
        raise SettingsError(f"worker_runtime: tasks of {name} are started by the Dispatcher, not taken from a queue")
    return runtime.queue


def _read(path: Path) -> dict[str, Any]:
    try:
        return read_toml(path, f"{path} (runtimes_file)")
    except FileNotFoundError:
        raise SettingsError(f"{path} (runtimes_file) does not exist") from None


def _tables(document: Mapping[str, Any], key: str, path: Path) -> dict[str, dict[str, Any]]:
    """The tables `[key.NAME]`, each with a name that may be one."""
    tables = document.get(key, {})
    if not isinstance(tables, dict):
        raise SettingsError(f"{key} (from {path}): expected tables like [{key}.NAME], not {short(tables)}")
    for name, table in tables.items():
        if not _NAME.fullmatch(name):
            raise SettingsError(
                f"{short(name)} (from {path}) is no name for {key}: expected a lower-case letter, then at most 63 "
                "lower-case letters, digits, '_' or '-'"
            )
        if not isinstance(table, dict):
            raise SettingsError(f"{key}.{name} (from {path}): expected a table, not {short(table)}")
    return tables


def _runtime(name: str, table: Mapping[str, Any], built_in: Runtime | None, path: Path) -> Runtime:
    where = f"runtimes.{name}"
    _check_fields(table, _RUNTIME_FIELDS, where, path)
    if "kind" not in table and built_in is None:
        raise SettingsError(f"{where} (from {path}): a new runtime needs a kind, one of {', '.join(_KINDS)}")
    kind = built_in.kind if "kind" not in table and built_in is not None else RuntimeKind(table["kind"])
    if kind is not RuntimeKind.QUEUE and "queue" in table:
        raise SettingsError(f"{where} (from {path}): a runtime of kind {kind} has no queue")
    if kind is RuntimeKind.IN_PROCESS:
        for key in ("image", "cpu", "memory_mb"):
            if key in table:
                raise SettingsError(f"{where} (from {path}): a runtime of kind {kind} has no {key}")
    base = built_in if built_in is not None and built_in.kind is kind else Runtime(name, kind)
    runtime = replace(base, **{**table, "kind": kind})
    if kind is RuntimeKind.QUEUE and runtime.queue is None:
        runtime = replace(runtime, queue=f"tasks.{name}")
    if kind is RuntimeKind.INVOKE:
        runtime = replace(runtime, lease_is_timeout=True)
    default, most = runtime.default_timeout_seconds, runtime.max_timeout_seconds
    if default is not None and most is not None and default > most:
        raise SettingsError(
            f"{where} (from {path}): default_timeout_seconds ({default}) must not be above max_timeout_seconds ({most})"
        )
    return runtime


def _operator_limit(name: str, table: Mapping[str, Any], path: Path) -> int:
    where = f"operators.{name}"
    if name not in CATALOGUE:
        raise SettingsError(f"{where} (from {path}) is not an operator{_nearest(name, CATALOGUE)}")
    _check_fields(table, _OPERATOR_FIELDS, where, path)
    if "max_concurrency" not in table:
        raise SettingsError(f"{where} (from {path}): max_concurrency is missing")
    limit: int = table["max_concurrency"]
    return limit


def _check_fields(table: Mapping[str, Any], fields: Mapping[str, _Field], where: str, path: Path) -> None:
    _check_names(table, fields, path, f"{where}.")
    for key, value in table.items():
        if not fields[key].fits(value):
            raise SettingsError(f"{where}.{key} (from {path}): expected {fields[key].expected}, not {short(value)}")


def _check_names(present: Iterable[str], allowed: Iterable[str], path: Path, prefix: str) -> None:
    names = list(allowed)
    for name in present:
        if name not in names:
            quoted = short(prefix + name) if not name.isprintable() or len(name) > 64 else prefix + name
            raise SettingsError(f"{quoted} (from {path}) is not known{_nearest(name, names)}")


def _nearest(name: str, candidates: Iterable[str]) -> str:
    names = list(candidates)
    close = difflib.get_close_matches(name[:100], names, n=1)
    return f"; did you mean {close[0]}?" if close else f"; known: {', '.join(sorted(names))}"
