"""docs/operators/adding.md, done step by step: the template is installed as a package, checked in a DAG, and run."""

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tools.docs import ROOT

from tests.dag.support import SURROUNDINGS
from tests.spark.support import Bench
from tests.support.template_package import TEMPLATE, install_template
from tracelake.catalogue import CATALOGUE
from tracelake.catalogue.plugins import installed_plugins
from tracelake.dag import DagInvalidError, read_dag
from tracelake.spark.operators import operator_modules
from tracelake.spark.testing import Trial

PAGE = ROOT / "docs/operators/adding.md"
NAME = "rows_per_block"
FILES = {
    "acme_operators/__init__.py",
    "acme_operators/rows_per_block.py",
    "acme_operators/rows_per_block_work.py",
    "dag.yaml",
    "pyproject.toml",
    "tests/conftest.py",
    "tests/test_rows_per_block.py",
}


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install_template(tmp_path_factory.mktemp("package"))


@pytest.fixture
def installed(package: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(package)
    monkeypatch.setattr(CATALOGUE, "_plugins", None)
    installed_plugins.cache_clear()
    yield
    installed_plugins.cache_clear()
    for name in [name for name in sys.modules if name.startswith("acme_operators")]:
        del sys.modules[name]


def test_the_page_names_the_files_of_the_template() -> None:
    page = PAGE.read_text()
    for name in FILES - {"acme_operators/__init__.py", "tests/conftest.py"}:
        assert name in page
    entry_point = 'rows_per_block = "acme_operators.rows_per_block:PLUGIN"'
    assert entry_point in page
    assert entry_point in (TEMPLATE / "pyproject.toml").read_text()
    paths = (path for path in TEMPLATE.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    assert {str(path.relative_to(TEMPLATE)) for path in paths} == FILES


def test_a_dag_with_it_is_checked(installed: None) -> None:
    document = (TEMPLATE / "dag.yaml").read_bytes()
    assert read_dag(document, SURROUNDINGS).job("count").operator == NAME
    assert CATALOGUE.package_of(NAME) == "acme-operators 0.1.0"
    with pytest.raises(DagInvalidError) as refused:
        read_dag(document.replace(b"least: 10", b"least: 0"), SURROUNDINGS)
    assert [problem.path for problem in refused.value.problems] == ["jobs[2].config.least"]


def test_a_job_of_it_may_choose_its_units(installed: None) -> None:
    document = (TEMPLATE / "dag.yaml").read_text()
    days = document.replace(
        "    execution_strategy: PerPartition\n    config: {least",
        "    units: {by: time, grain: day}\n    config: {least",
    )
    assert days != document
    units = read_dag(days.encode(), SURROUNDINGS).job("count").units
    assert units is not None
    assert units.grain == "day"


def test_without_the_package_nobody_knows_it() -> None:
    with pytest.raises(DagInvalidError):
        read_dag((TEMPLATE / "dag.yaml").read_bytes(), SURROUNDINGS)


def test_its_own_tests_pass(installed: None, spark: SparkSession, tmp_path: Path) -> None:
    """On the session that tests share; the fixtures of the template open one like it."""
    spec = importlib.util.spec_from_file_location("template_tests", TEMPLATE / "tests/test_rows_per_block.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert operator_modules()[NAME] == module.run.__module__
    tests: list[Callable[[Trial], None]] = [found for name, found in vars(module).items() if name.startswith("test_")]
    assert len(tests) == 3
    for number, test in enumerate(tests):
        directory = tmp_path / str(number)
        directory.mkdir()
        test(Trial(spark, directory))


def test_the_helper_of_the_page(bench: Bench) -> None:
    """What stands there as an example, on the session that tests share."""
    code = PAGE.read_text().rpartition("```python\n")[2].partition("```")[0]
    lines = [line.removeprefix("    ") for line in code.splitlines() if not line.startswith("with ")]
    told: list[object] = []
    code = "\n".join(lines).replace("Trial(session, directory)", "bench").replace("print(", "told.append(")
    exec(code, {"bench": bench, "told": told})
    assert told == [pa.table(bench.table()).to_pylist()]
    assert [row["check"] for row in bench.table().to_pylist()] == ["gap"]
