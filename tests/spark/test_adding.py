"""docs/operators/adding.md, done step by step: the template is copied, registered, checked in a DAG, and run."""

import importlib.util
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tools.docs import ROOT

from tests.dag.support import SURROUNDINGS
from tests.spark.support import Bench
from tracelake.catalogue import CATALOGUE
from tracelake.dag import DagInvalidError, read_dag
from tracelake.spark.operators import OPERATORS
from tracelake.spark.testing import Trial

TEMPLATE = ROOT / "examples/operator_template"
NAME = "rows_per_block"
PLACES = {
    "config.py": f"src/tracelake/catalogue/{NAME}.py",
    "operator.py": f"src/tracelake/spark/operators/{NAME}.py",
    "test_operator.py": f"tests/spark/test_{NAME}.py",
}


@pytest.fixture
def added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    """The files under the names that they have in their places, and the two lines that make them known."""
    modules = {}
    for source, place in PLACES.items():
        target = tmp_path / place
        target.parent.mkdir(parents=True)
        shutil.copy(TEMPLATE / source, target)
        name = place.removeprefix("src/").removesuffix(".py").replace("/", ".")
        spec = importlib.util.spec_from_file_location(name, target)
        assert spec is not None
        assert spec.loader is not None
        modules[source] = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, modules[source])
        spec.loader.exec_module(modules[source])
    entry = modules["config.py"].SPEC
    monkeypatch.setitem(CATALOGUE, entry.name, entry)
    monkeypatch.setitem(OPERATORS, entry.name, modules["operator.py"].__name__)
    return modules


def test_the_page_names_the_files_and_their_places() -> None:
    page = (ROOT / "docs/operators/adding.md").read_text()
    for source, place in PLACES.items():
        assert f"`{source}` to `{place}`" in page
    assert f'"{NAME}": "tracelake.spark.operators.{NAME}",' in page
    assert {path.name for path in TEMPLATE.iterdir() if path.is_file()} == {*PLACES, "dag.yaml"}


def test_a_dag_with_it_is_checked(added: dict[str, ModuleType]) -> None:
    document = (TEMPLATE / "dag.yaml").read_bytes()
    assert read_dag(document, SURROUNDINGS).job("count").operator == NAME
    with pytest.raises(DagInvalidError) as refused:
        read_dag(document.replace(b"least: 10", b"least: 0"), SURROUNDINGS)
    assert [problem.path for problem in refused.value.problems] == ["jobs[2].config.least"]


def test_without_the_two_lines_nobody_knows_it() -> None:
    with pytest.raises(DagInvalidError):
        read_dag((TEMPLATE / "dag.yaml").read_bytes(), SURROUNDINGS)


def test_its_own_tests_pass(added: dict[str, ModuleType], spark: SparkSession, tmp_path: Path) -> None:
    tests: list[Callable[[Trial], None]] = [
        found for name, found in vars(added["test_operator.py"]).items() if name.startswith("test_")
    ]
    assert len(tests) == 3
    for number, test in enumerate(tests):
        directory = tmp_path / str(number)
        directory.mkdir()
        test(Trial(spark, directory))


def test_the_helper_of_the_page(bench: Bench) -> None:
    """What stands there as an example, on the session that tests share."""
    page = (ROOT / "docs/operators/adding.md").read_text()
    code = page.rpartition("```python\n")[2].partition("```")[0]
    lines = [line.removeprefix("    ") for line in code.splitlines() if not line.startswith("with ")]
    told: list[object] = []
    code = "\n".join(lines).replace("Trial(session, directory)", "bench").replace("print(", "told.append(")
    exec(code, {"bench": bench, "told": told})
    assert told == [pa.table(bench.table()).to_pylist()]
    assert [row["check"] for row in bench.table().to_pylist()] == ["gap"]
