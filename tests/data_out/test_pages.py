"""docs/python.md and docs/reading-files.md: every cell runs, on a whole stack with Spark, and prints what they show.

`TRACE_WRITE_PAGES=1` writes what the cells print into the pages; look at the difference.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.data_out.page import CELL
from tests.support.chain import RECORDING
from tests.support.real_stack import ROOT, SHORT_TIMES, RealStack
from tracelake.spark.java import find_java

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def stack() -> Iterator[RealStack]:
    settings = {**SHORT_TIMES, "lease_seconds": "30", "heartbeat_seconds": "5", "query_service": "true",
                "recorded_chain": str(RECORDING)}  # fmt: skip
    with RealStack(settings=settings).running() as stack:
        (stack.files / "examples").symlink_to(ROOT / "examples")
        shutil.copy(stack.stack.ca_file, stack.files / "lake-ca.pem")
        shutil.copy(stack.stack.admin_token_file, stack.files / "lake.token")
        yield stack


def test_pages_show_what_their_cells_print(stack: RealStack) -> None:
    for name in ("python.md", "reading-files.md"):  # the second one goes on where the first one ends
        page = ROOT / "docs" / name
        outputs = run_page(stack, page)
        if os.environ.get("TRACE_WRITE_PAGES"):
            page.write_text(fill_in(page.read_text(), outputs))
        shown = [text for _, _, text in CELL.findall(page.read_text())]
        assert len(shown) >= 7
        assert list(map(without_sizes, outputs)) == list(map(without_sizes, shown)), stack.report()


def without_sizes(text: str) -> str:
    """Those of files change with the libraries that write them."""
    return re.sub(r"[\d.]+ (?:B|[KM]iB)", "SIZE", text)


def run_page(stack: RealStack, page: Path) -> list[str]:
    assert stack.stack.query_url is not None
    done = subprocess.run(
        [sys.executable, "-m", "tests.data_out.page", str(page), stack.stack.public_url, stack.stack.query_url],
        env=stack.environment | {"JAVA_HOME": str(find_java(stack.root).home), "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        cwd=stack.files,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr + stack.report()
    outputs: list[str] = json.loads(done.stdout)
    return outputs


def fill_in(page: str, outputs: list[str]) -> str:
    """The page with what its cells have printed."""
    remaining = iter(outputs)

    def with_output(match: "re.Match[str]") -> str:
        cell, output = match[0].partition("```text\n")[0], next(remaining)
        return f"{cell}```text\n{output}```\n" if output else cell

    return CELL.sub(with_output, page)
