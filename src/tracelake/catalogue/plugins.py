"""Operators of installed packages: entry points of the group `tracelake.operators`.

An entry point is named after its operator and points to an `OperatorPlugin`:

    [project.entry-points."tracelake.operators"]
    rows_per_block = "acme_operators.rows_per_block:PLUGIN"

Whoever installs packages beside Trace decides what its processes run, so a plugin is code of the platform and not of
its users. A plugin that cannot be used is left out with its reason; it never keeps the other operators from working.
"""

import logging
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import EntryPoint, entry_points

from tracelake.catalogue.operators import SPECS
from tracelake.catalogue.spec import WORKERS, OperatorConfig, OperatorSpec

logger = logging.getLogger(__name__)

GROUP = "tracelake.operators"
_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


@dataclass(frozen=True, slots=True)
class OperatorPlugin:
    """An operator of an installed package: its catalogue entry, and the module with its work."""

    spec: OperatorSpec
    module: str
    """Has `run(work: SparkWork) -> OperatorResult`. Workers import it with the first task; nobody else does."""


@dataclass(frozen=True, slots=True)
class InstalledPlugin:
    """An entry point of an installed package, and what came of loading it."""

    name: str
    package: str
    version: str
    plugin: OperatorPlugin | None
    """None: it cannot be used, because of the problem."""
    problem: str = ""

    @property
    def label(self) -> str:
        """The package with its version, as recorded with the attempts of its operators."""
        return f"{self.package} {self.version}"


class PluginError(ValueError):
    """Why a plugin cannot be used."""


@cache
def installed_plugins() -> tuple[InstalledPlugin, ...]:
    """The plugins of this environment, sorted by name; loaded once per process."""
    plugins = load_plugins(entry_points(group=GROUP), {spec.name for spec in SPECS})
    for item in plugins:
        if item.plugin is None:
            fields = {"operator": item.name, "package": item.label, "reason": item.problem}
            logger.error("an operator of a package cannot be used", extra=fields)
    return plugins


def load_plugins(points: Iterable[EntryPoint], other_names: Collection[str]) -> tuple[InstalledPlugin, ...]:
    """Loads each entry point; `other_names` are those of other operators."""
    ordered = sorted(set(points), key=lambda point: (point.name, _package_of(point)))
    return tuple(
        _load(point, other_names, [other for other in ordered if other.name == point.name and other != point])
        for point in ordered
    )


def _load(point: EntryPoint, other_names: Collection[str], rivals: Sequence[EntryPoint]) -> InstalledPlugin:
    package, version = _package_of(point)
    try:
        _check_name(point, other_names, rivals)
        try:
            plugin = point.load()
        except Exception as error:
            raise PluginError(f"importing {point.value} failed: {type(error).__name__}: {error}") from error
        return InstalledPlugin(point.name, package, version, _check(point, plugin))
    except PluginError as error:
        return InstalledPlugin(point.name, package, version, None, str(error))


def _check_name(point: EntryPoint, other_names: Collection[str], rivals: Sequence[EntryPoint]) -> None:
    if not _NAME.fullmatch(point.name):
        raise PluginError("expected a name of lower-case letters, digits and _, at most 64: rename the entry point")
    if point.name in other_names:
        raise PluginError(f"Trace has an operator {point.name} itself: rename the entry point")
    if rivals:
        packages = ", ".join(sorted(_package_of(other)[0] for other in rivals))
        raise PluginError(f"{packages} has an operator of this name too: uninstall one of the packages")


def _check(point: EntryPoint, plugin: object) -> OperatorPlugin:
    if not isinstance(plugin, OperatorPlugin):
        raise PluginError(f"expected {point.value} to be an OperatorPlugin, received {type(plugin).__name__}")
    spec = plugin.spec
    if not isinstance(spec, OperatorSpec) or not issubclass(spec.config_type, OperatorConfig):
        raise PluginError("expected an OperatorSpec with a subclass of OperatorConfig as spec")
    if spec.name != point.name:
        raise PluginError(f"the entry point is named {point.name}, its operator {spec.name}: use one name for both")
    if not isinstance(plugin.module, str) or not _MODULE.fullmatch(plugin.module):
        raise PluginError("expected the dotted name of the module with `run` as module")
    if refused := [flag for flag in ("control", "fills_tables", "internal", "reads_deliveries") if getattr(spec, flag)]:
        raise PluginError(f"an operator of a package cannot have {', '.join(refused)}: remove it from its OperatorSpec")
    if spec.runtimes is not None and spec.runtimes != WORKERS:
        raise PluginError("an operator of a package runs on workers: remove runtimes from its OperatorSpec")
    if spec.trusted and spec.checks == "sql":
        raise PluginError("checks in SQL need a process of the org: choose checks='rows', or remove trusted")
    return replace(plugin, spec=replace(spec, runtimes=WORKERS))


def _package_of(point: EntryPoint) -> tuple[str, str]:
    if point.dist is None:
        return "unknown", "0"
    return point.dist.name, point.dist.version
