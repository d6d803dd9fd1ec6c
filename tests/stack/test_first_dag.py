"""The first minutes: a wheel in an empty environment, `trace init`, and docs/first-dag.md as it stands.

The wheel is installed outside of the repository. Its dependencies are those of this environment, so that no network is
needed; the package itself comes from the wheel.
"""

import re
import shlex
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.real_stack import ROOT, RealStack
from tracelake import __version__

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]

PAGE = ROOT / "docs/first-dag.md"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
DEMO = """
from pathlib import Path
from tracelake.demo.functions import FUNCTIONS, HOSTILE, build
from tracelake.demo.live_plan import plan_live
from tracelake.demo.plan import recorded

plan = recorded(None)
assert plan.document(without_mints=True)
archives = [build(function, Path("projects")) for function in (*FUNCTIONS, HOSTILE)]
print(plan.blocks, plan_live(plan).document().decode().partition("name: ")[2].split()[0], len(archives))
"""
WAITED_FOR = "trace read "
"""Of these commands the output is what the page shows once all work is done."""


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel."""
    directory = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", directory)
    (wheel,) = directory.glob("*.whl")
    environment = directory / "environment"
    run(sys.executable, "-m", "venv", "--without-pip", environment)
    python = environment / "bin/python"
    install = ("install", "--quiet", "--no-deps", "--no-index", "--no-compile", wheel)
    run(sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python, *install)
    (packages,) = environment.glob("lib/python*/site-packages")
    # Path files in there are not read: the editable install of this repository is not found.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    (environment / "bin/weed").symlink_to(Path(sys.executable).with_name("weed"))
    return environment


@pytest.fixture(scope="module")
def stack(environment: Path) -> Iterator[RealStack]:
    settings = {"recorded_chain": "example", "query_service": "true", "spark_master": "local[2]"}
    stack = RealStack(settings=settings, variables={"PYTHONPATH": ""})
    for name in ("python", "trace"):
        program = stack.root / "bin" / name
        program.write_text(f'#!/bin/sh\nexec {shlex.quote(str(environment / "bin" / name))} "$@"\n')
        program.chmod(0o755)
    with stack.running():
        yield stack


def test_the_package_is_that_of_the_wheel(environment: Path, tmp_path: Path) -> None:
    assert run(environment / "bin/trace", "--version", cwd=tmp_path).strip() == f"trace, version {__version__}"
    places = "import tracelake, tracelake.example_files as e; print(tracelake.__file__); print(e.find_example(''))"
    package, examples = run(environment / "bin/python", "-c", places, cwd=tmp_path).split()
    assert Path(package).is_relative_to(environment)
    assert Path(examples).is_relative_to(environment)
    assert files_below(Path(examples)) == files_below(ROOT / "examples")
    assert files_below(Path(package).parent / "docs") == files_below(ROOT / "docs")


def test_help_and_messages_lead_to_the_pages_of_the_wheel(environment: Path, tmp_path: Path) -> None:
    (directory,) = environment.glob("lib/python*/site-packages/tracelake")
    program = environment / "bin/trace"
    for arguments in ((), ("logs",), ("up",), ("operators",)):
        shown = run(program, *arguments, "--help", cwd=tmp_path)
        assert shown.endswith(f"\n  docs/ and examples/ are in\n  {directory}\n"), arguments
        pages = [page for page in re.findall(r"docs/[\w/-]+\.md", shown) if not (directory / page).is_file()]
        assert not pages, "they are there"
    assert "docs/ and" not in run(program, "read", "--help", cwd=tmp_path), "it names no page"
    wrong = subprocess.run(
        [program, "up", "--set", "xyzzy=1"], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    (page,) = re.findall(r"; see (\S+)$", wrong.stderr.strip())
    assert page == str(directory / "docs/reference/settings.md")


def files_below(root: Path) -> list[str]:
    paths = (path.relative_to(root) for path in root.rglob("*") if path.is_file())
    return sorted(path.as_posix() for path in paths if "__pycache__" not in path.parts)


def test_the_demo_finds_its_files(environment: Path, tmp_path: Path) -> None:
    (tmp_path / "demo.py").write_text(DEMO)
    assert run(environment / "bin/python", "demo.py", cwd=tmp_path).split() == ["4000", "live_chain", "4"]


def test_the_page(stack: RealStack) -> None:
    """Whoever follows it has the rows that it shows."""
    directory, output, last = ".", "", ""
    lines = 0
    for language, text in BLOCK.findall(PAGE.read_text()):
        if language == "sh":
            output = ""
            for line in text.splitlines():
                lines += 1
                if line.startswith("trace up "):
                    assert line == "trace up --detach --set recorded_chain=example", (
                        "the stack of this test has this setting"
                    )
                elif line.startswith("cd "):
                    directory = line.removeprefix("cd ")
                else:
                    last = f"cd {directory} && {line}"
                    output += stack.shell(last)
                    if line.startswith("trace why "):
                        stack.wait_until(lambda again=last: stack.shell(again).startswith("fine"), line, 300)  # type: ignore[misc]
        elif language == "":
            if WAITED_FOR in last:
                stack.wait_until(lambda again=last, rows=text: rows in stack.shell(again), f"{last}\n{text}", 300)  # type: ignore[misc]
            else:
                assert text in output
    assert lines >= 12
