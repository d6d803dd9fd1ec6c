"""docs/pictures.md holds what it shows: its examples run, and its pictures are of real sessions (`make pictures`)."""

import json
import math
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tools.terminal_picture import draw

from tests.cli.test_charts import check_picture
from tests.query.person import Person, person_of
from tests.query.support import FILES, commit_blocks, parquet
from tests.query.test_guide import COLUMNS, IMAGES, WRITE, cells, texts
from tests.support.dispatcher import DispatcherHarness
from tests.support.postgres import TestCluster
from tests.support.terminal import TerminalSession

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "pictures.md"
START = datetime(2026, 3, 1, tzinfo=UTC)
HOURS = 72
HOURLY = "SELECT hour, token, amount FROM hourly_flows ORDER BY hour"


@pytest.fixture(scope="module")
def person(
    harness: DispatcherHarness, cluster: TestCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Person]:
    """The org has the dataset `hourly_flows`, and the DAG `token_flows` with work to do and a task that failed."""
    hours = [(number, token) for number in range(HOURS) for token in ("HUSD", "WETH")]
    flows = pa.table(
        {
            "hour": pa.array([START + timedelta(hours=number) for number, _ in hours], pa.timestamp("us", "UTC")),
            "token": pa.array([token for _, token in hours], pa.string()),
            "transfers": pa.array([number * 3 + len(token) for number, token in hours], pa.int64()),
            "amount": pa.array([_amount(number, token) for number, token in hours], pa.float64()),
        }
    )
    with person_of(harness, cluster, tmp_path_factory) as someone:
        flow = someone.flow
        flow.deploy(FILES.replace("blocks:", "hourly_flows:"))
        commit_blocks(flow, 0, 199, parquet(flows))
        text = (ROOT / "examples" / "token_flows" / "flows.yaml").read_text()
        flow.deploy(text.replace("hourly_flows:", "flows_by_hour:"))
        for start in (0, 4000):
            flow.trigger("token_flows", "backfill", range={"start": start, "end": start + 3999})
        flow.fail(next(task["task_id"] for task in flow.tasks("split", "Queued")))
        yield someone


def _amount(hour: int, token: str) -> float | None:
    """Waves; WETH has no prices for some hours."""
    if token == "WETH" and 30 <= hour < 36:
        return None
    phase = hour / 24 * 2 * math.pi
    return round(4e6 + 2e6 * math.sin(phase) + hour * 2e4 if token == "HUSD" else 2e6 + 1e6 * math.cos(phase))


def open_trace(person: Person, *arguments: str) -> TerminalSession:
    command = [sys.executable, "-P", "-m", "tracelake", *arguments]
    return TerminalSession(command, person.environment | {"LANG": "C.UTF-8", "LC_ALL": "C.UTF-8"}, columns=COLUMNS)


def run_trace(person: Person, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-P", "-m", "tracelake", *arguments],
        env=person.environment | {"LC_ALL": "C.UTF-8"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def compare(title: str, terminal: TerminalSession, name: str) -> None:
    assert terminal.process.wait(60) == 0
    picture = draw(title, cells(terminal), COLUMNS)
    if os.environ.get(WRITE):
        (IMAGES / name).write_text(picture)
    assert texts(picture) == texts((IMAGES / name).read_text()), f"{name}: run `make pictures` and look at it"


def test_a_chart_on_the_terminal(person: Person) -> None:
    with open_trace(person, "plot", HOURLY) as terminal:
        terminal.wait_for("One line for each token")
        compare("trace plot", terminal, "plot-terminal.svg")


def test_the_graph_of_a_dag(person: Person) -> None:
    with open_trace(person, "graph", "token_flows") as terminal:
        terminal.wait_for("( flows_by_hour )")
        compare("trace graph", terminal, "graph-terminal.svg")
        assert "1 failed" in terminal.text
        assert "1 queued" in terminal.text


def test_a_chart_in_a_file(person: Person, tmp_path: Path) -> None:
    output = tmp_path / "flows.svg"
    sql = "SELECT hour, token, amount FROM hourly_flows"
    options = ("--unit", "tokens", "--title", "What each token moved", "--output", str(output))
    ended = run_trace(person, "plot", sql, *options)
    assert ended.returncode == 0, ended.stderr
    assert "144 rows as a line chart in" in ended.stdout
    picture = output.read_text()
    check_picture(picture)
    if os.environ.get(WRITE):
        (IMAGES / "plot.svg").write_text(picture)
    assert picture == (IMAGES / "plot.svg").read_text(), "plot.svg: run `make pictures` and look at it"
    again = run_trace(person, "plot", sql, "--output", str(output))
    assert again.returncode == 1
    assert "--force" in again.stderr


def test_examples_run(person: Person, tmp_path: Path) -> None:
    blocks = re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    lines = [line for block in blocks for line in block.splitlines()]
    assert len(lines) == 7
    (tmp_path / "pools.yaml").write_text((ROOT / "examples" / "block_ranges.yaml").read_text())
    trace = shlex.join([sys.executable, "-P", "-m", "tracelake"])
    for number, line in enumerate(lines):
        directory = tmp_path / str(number)
        directory.mkdir()
        (directory / "pools.yaml").symlink_to(tmp_path / "pools.yaml")
        ended = subprocess.run(
            ["bash", "-c", f'trace() {{ {trace} "$@"; }}\nset -e\n{line}'],
            env=person.environment, cwd=directory, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert ended.returncode == 0, (line, ended.stderr)


def test_the_two_lines_of_python(person: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to the drawing, which needs a library that Trace does without."""
    monkeypatch.setenv("TRACE_HOME", str(person.home))
    monkeypatch.delenv("TRACE_TOKEN", raising=False)
    (block,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    first, second = block.strip().splitlines()
    names: dict[str, Any] = {}
    exec(f"{first}\nframe = {second.partition('.plot(')[0]}", names)
    assert list(names["frame"].columns) == ["hour", "transfers"]
    assert len(names["frame"]) == 2 * HOURS


def test_exact_values_for_programs(person: Person) -> None:
    sql = f"SELECT 'a' AS name, '{10**37 + 1}'::hugeint AS amount FROM hourly_flows LIMIT 1"
    printed = json.loads(run_trace(person, "plot", sql, "--json").stdout)
    assert "error" not in printed, printed
    assert printed["series"] == [{"name": "amount", "points": [["a", str(10**37 + 1)]]}]


@pytest.mark.parametrize(
    ("sql", "status", "message"),
    [
        ("SELECT hour FROM hourly_flows WHERE false", 1, "no rows"),
        ("SELECT token FROM hourly_flows", 2, "no column of numbers"),
        ("SELECT tokn FROM hourly_flows", 1, "query_unknown_column"),
    ],
)
def test_what_cannot_be_drawn(person: Person, sql: str, status: int, message: str) -> None:
    ended = run_trace(person, "plot", sql)
    assert ended.returncode == status
    assert message in ended.stderr
    assert "Traceback" not in ended.stderr
