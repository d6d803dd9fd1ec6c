"""Tests of a group run in one process."""

import os
import subprocess
import sys
from pathlib import Path

from tests.support.scheduling import group_of

ROOT = Path(__file__).resolve().parent.parent.parent
CONFTEST = """
from tests.support.scheduling import GroupScheduling

def pytest_xdist_make_scheduler(config, log):
    return GroupScheduling(config, log)
"""
TESTS = """
import os
import pathlib
import pytest

@pytest.mark.parametrize("number", range(3))
def test_it(number):
    name = pathlib.Path(__file__).stem
    (pathlib.Path(__file__).parent / f"{name}{number}-{os.getpid()}").touch()
"""


def test_a_group_has_one_process(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    for number in range(4):
        (tmp_path / f"test_group_{number}.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "2", "--dist", "loadscope", str(tmp_path)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert "12 passed" in ended.stdout, ended.stdout
    marks = [path.name.rpartition("-") for path in tmp_path.glob("test_group_*-*")]
    for number in range(4):
        assert len({process for name, _, process in marks if name.startswith(f"test_group_{number}")}) == 1


def test_what_is_slow_to_start_is_shared() -> None:
    assert group_of("tests/runbooks/test_dispatcher.py::test_the_page") == "one stack"
    assert group_of("tests/stack/test_end_to_end.py::test_it") == "one stack"
    assert group_of("tests/spark/sql/test_bombs.py::test_it[a::b]") == "Spark SQL"
    assert group_of("tests/spark/test_engine.py::test_it") == "Spark"
    assert group_of("tests/spark/cluster/test_connect.py::test_it") == "Spark elsewhere"
    assert group_of("tests/api/test_costs.py::test_it") == "api/test_costs.py"
    for test in ("tests/stack/test_up.py::test_it", "tests/runbooks/test_restore.py::test_the_page"):
        assert group_of(test) == test
