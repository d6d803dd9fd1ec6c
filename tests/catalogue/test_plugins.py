"""Operators of installed packages: which are taken, which are refused and why, and that none harms the others."""

import importlib
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from tests.dag.support import SURROUNDINGS
from tracelake.catalogue import CATALOGUE, read_config
from tracelake.catalogue.plugins import GROUP, InstalledPlugin, installed_plugins, load_plugins
from tracelake.catalogue.spec import WORKERS
from tracelake.dag import DagInvalidError, read_dag
from tracelake.dispatcher.views.operators import list_operators
from tracelake.errors import TraceError
from tracelake.spark.operators import OPERATORS, operator_modules

MODULE = """
from typing import Annotated
from msgspec import Meta
from tracelake.catalogue.plugins import OperatorPlugin
from tracelake.catalogue.spec import OperatorConfig, OperatorSpec

class {config}(OperatorConfig, frozen=True, kw_only=True):
    least: Annotated[int, Meta(ge=1)] = 1

PLUGIN = OperatorPlugin(OperatorSpec("{name}", {config}, "Counts."{more}), module="{module}")
"""
Install = Callable[..., None]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory of installed packages. Other tests see none of them, before and after."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(CATALOGUE, "_plugins", None)
    installed_plugins.cache_clear()
    yield tmp_path
    installed_plugins.cache_clear()
    for name in [name for name in sys.modules if name.startswith("plugin_")]:
        del sys.modules[name]


@pytest.fixture
def install(site: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Writes a package as an installer does: a module, and metadata with an entry point."""

    def write(
        package: str,
        name: str,
        *,
        spec_name: str | None = None,
        more: str = "",
        text: str | None = None,
        module: str = "plugin_work",
    ) -> None:
        stem = package.replace("-", "_")
        config = f"{stem.title().replace('_', '')}Config"
        source = MODULE.format(config=config, name=spec_name or name, more=more, module=module)
        (site / f"{stem}.py").write_text(source if text is None else text)
        info = site / f"{stem}-1.2.3.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2.3\n")
        (info / "entry_points.txt").write_text(f"[{GROUP}]\n{name} = {stem}:PLUGIN\n")
        importlib.invalidate_caches()

    return write


def load() -> dict[tuple[str, str], InstalledPlugin]:
    points = [point for point in entry_points(group=GROUP) if point.dist is not None]
    return {(item.name, item.package): item for item in load_plugins(points, set(OPERATORS) | {"noop"})}


def test_a_package_adds_an_operator(install: Install) -> None:
    install("plugin-one", "count_rows")
    assert CATALOGUE["count_rows"].runtimes == WORKERS
    assert "count_rows" in set(CATALOGUE)
    assert CATALOGUE.package_of("count_rows") == "plugin-one 1.2.3"
    assert CATALOGUE.package_of("spark_sql") is None
    assert operator_modules() == OPERATORS | {"count_rows": "plugin_work"}
    assert read_config("count_rows", {"least": 3}) == CATALOGUE["count_rows"].config_type(least=3)
    with pytest.raises(TraceError) as refused:
        read_config("count_rows", {"least": 0})
    assert refused.value.details["field"] == "config.least"
    row = next(row for row in list_operators().operators if row.name == "count_rows")
    assert (row.package, row.available) == ("plugin-one 1.2.3", True)


REFUSED = {
    "a failing import": ({"text": "import a_module_that_is_missing"}, "ModuleNotFoundError"),
    "no such attribute": ({"text": "OTHER = 1"}, "AttributeError"),
    "another type": ({"text": "PLUGIN = 1"}, "expected plugin_two:PLUGIN to be an OperatorPlugin, received int"),
    "another name": ({"spec_name": "other"}, "use one name for both"),
    "a control operator": ({"more": ", control=True"}, "cannot have control"),
    "a writer of tables": ({"more": ", fills_tables=True"}, "cannot have fills_tables"),
    "another runtime": ({"more": ", runtimes=frozenset({'lambda'})"}, "runs on workers"),
    "SQL beside other orgs": ({"more": ", trusted=True, checks='sql'"}, "checks in SQL"),
    "no module": ({"module": "not a module"}, "dotted name"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case: str, install: Install) -> None:
    """It has a reason, and the other package works."""
    options, reason = REFUSED[case]
    install("plugin-one", "count_rows")
    install("plugin-two", "count_more", **options)
    plugins = load()
    assert plugins["count_rows", "plugin-one"].plugin is not None
    broken = plugins["count_more", "plugin-two"]
    assert broken.plugin is None
    assert reason in broken.problem
    assert CATALOGUE.get("count_more") is None
    assert CATALOGUE.get("count_rows") is not None


@pytest.mark.parametrize(
    ("name", "reason"), [("spark_sql", "Trace has an operator"), ("Count-Rows", "expected a name")]
)
def test_names_that_are_refused(name: str, reason: str, install: Install) -> None:
    builtin = CATALOGUE.get(name)
    install("plugin-one", name)
    item = load()[name, "plugin-one"]
    assert item.plugin is None
    assert reason in item.problem
    assert CATALOGUE.get(name) is builtin


def test_two_packages_with_one_name_are_both_refused(install: Install) -> None:
    """Which of them ran would depend on the order of directories."""
    install("plugin-one", "count_rows")
    install("plugin-two", "count_rows")
    plugins = load()
    assert "plugin-two" in plugins["count_rows", "plugin-one"].problem
    assert "plugin-one" in plugins["count_rows", "plugin-two"].problem
    assert CATALOGUE.get("count_rows") is None


def test_a_document_that_names_one_that_cannot_be_used(install: Install) -> None:
    """Its author learns the package; the reason, which may hold paths, stays in the log."""
    install("plugin-one", "count_rows", text="raise RuntimeError('/etc/a/secret/place')")
    document = b"""
        name: d
        jobs:
        - {name: j, activation: source, source: {kind: manual}}
        - {name: k, activation: reactive, operator: count_rows, inputs: [{from: {job: j}}]}
    """
    with pytest.raises(DagInvalidError) as refused:
        read_dag(document, SURROUNDINGS)
    problem = next(item for item in refused.value.problems if item.code == "unknown_operator")
    assert "plugin-one 1.2.3 could not be loaded" in problem.message
    assert "secret" not in f"{problem}"
    row = next(row for row in list_operators().operators if row.name == "count_rows")
    assert (row.available, row.package) == (False, "plugin-one 1.2.3")
