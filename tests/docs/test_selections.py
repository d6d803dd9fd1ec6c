"""`make test` and `make test-system` share the tests between them: none is in both, and none is in neither."""

import os
import re
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import pytest
from _pytest.mark.expression import Expression

from tests.conftest import LONG, SYSTEM, TESTS

ROOT = Path(__file__).resolve().parents[2]
GOALS = ("test", "test-system")
MARKERS = ("soak", "system", "parametrize", "skip")
MARKED = [frozenset(markers) for size in range(len(MARKERS) + 1) for markers in combinations(MARKERS, size)]

DYING = """\
import os, signal

def test_before(): pass
def test_that_dies(): os.kill(os.getpid(), signal.SIGKILL)
def test_after(): pass
def test_last(): pass
"""


def recipe(goal: str) -> str:
    makefile = (ROOT / "Makefile").read_text()
    match = re.search(rf"^{goal}:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)
    assert match, f"the Makefile has no goal {goal}"
    return match[1]


def selection(goal: str) -> Expression:
    """What the goal gives to `pytest -m`. Anything after it could leave tests out unseen, so there is nothing."""
    (match,) = re.finditer(r'^\t@\$\((?:SYSTEM_)?PYTEST\) -m "([^"]*)"$', recipe(goal), re.MULTILINE)
    return Expression.compile(match[1])


@pytest.mark.parametrize("markers", MARKED, ids=lambda markers: "+".join(sorted(markers)) or "none")
def test_exactly_one_goal_runs_a_test(markers: frozenset[str]) -> None:
    goals = [goal for goal in GOALS if selection(goal).evaluate(lambda name, /, **_: name in markers)]
    assert len(goals) == (0 if "soak" in markers else 1), (set(markers), goals)


def test_a_test_without_a_marker_is_quick() -> None:
    assert selection("test").evaluate(lambda *_, **__: False)


def options(name: str) -> str:
    makefile = (ROOT / "Makefile").read_text()
    (words,) = re.findall(rf"^{name} := \$\(PY\) -m pytest (.*)$", makefile, re.MULTILINE)
    return str(words)


def test_no_option_leaves_tests_out() -> None:
    assert re.fullmatch(r"--numprocesses \d+ --dist worksteal", options("PYTEST"))
    assert re.fullmatch(r"--numprocesses \d+ --dist loadscope --no-loadscope-reorder", options("SYSTEM_PYTEST"))


def test_a_process_that_dies_fails_its_test_and_the_run_ends(tmp_path: Path) -> None:
    (tmp_path / "test_dies.py").write_text(DYING)
    command = [sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", ".", "-p", "no:schemathesis"]
    ended = subprocess.run(
        [*command, *options("PYTEST").split(), "."],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 1, ended.stdout
    assert "crashed while running 'test_dies.py::test_that_dies'" in ended.stdout
    assert "1 failed, 3 passed" in ended.stdout


def test_the_goals_of_a_full_check() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    assert [line for line in script.splitlines() if line.startswith("make ")] == [f"make {goal}" for goal in GOALS]


@pytest.mark.parametrize("pattern", sorted({*SYSTEM, *LONG}))
def test_every_pattern_names_a_file(pattern: str) -> None:
    assert any(TESTS.glob(pattern)), f"no test is called {pattern} any more: say in tests/conftest.py what is it now"
