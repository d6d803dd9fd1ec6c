"""docs/query.md holds what it shows: examples run, and pictures are of real sessions (`make pictures` draws them)."""

import os
import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tools.terminal_picture import Cell, draw

from tests.query.person import Person, person_of
from tests.query.support import FILES, commit_blocks, parquet
from tests.support.dispatcher import DispatcherHarness
from tests.support.postgres import TestCluster, wait_until
from tests.support.terminal import ENTER, TAB, TerminalSession

PAGE = Path(__file__).resolve().parents[2] / "docs" / "query.md"
IMAGES = PAGE.parent / "images"
WRITE = "TRACE_WRITE_PICTURES"
COLUMNS = 80
TOKENS = [
    bytes.fromhex("5fbdb2315678afecb367f032d93f642f64180aa3"),
    bytes.fromhex("e7f1725e7734ce288f8367e1bb143e90bb3f0512"),
]
_COSTS = re.compile(r"[\d.]+ (B|KiB) read, [\d,]+ ms")


@pytest.fixture(scope="module")
def person(
    harness: DispatcherHarness, cluster: TestCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Person]:
    """The org has the dataset `transfers`."""
    numbers = list(range(1000))
    transfers = pa.table(
        {
            "block_number": pa.array([number // 7 for number in numbers], pa.int64()),
            "log_index": pa.array([number % 7 for number in numbers], pa.int64()),
            "token": pa.array([TOKENS[number % 3 == 0] for number in numbers], pa.binary()),
            "from_address": pa.array([bytes([number % 11 + 1] * 20) for number in numbers], pa.binary()),
            "amount_string": pa.array([str(number**3 * 10**18) for number in numbers], pa.string()),
        }
    )
    with person_of(harness, cluster, tmp_path_factory) as someone:
        someone.flow.deploy(FILES.replace("blocks:", "transfers:"))
        commit_blocks(someone.flow, 0, 199, parquet(transfers))
        yield someone


def blocks_of(language: str) -> list[str]:
    """The fenced examples of interactive queries in a language; those of batch queries stand behind the errors."""
    guide, _, _ = PAGE.read_text().partition("\n## Errors\n")
    return re.findall(rf"^```{language}\n(.*?)^```", guide, re.DOTALL | re.MULTILINE)


def test_examples_in_sql_are_answered(person: Person) -> None:
    examples = blocks_of("sql")
    assert len(examples) >= 2
    for example in examples:
        assert person.service.rows(person.flow.org, example)


def test_examples_of_the_shell_run(person: Person, tmp_path: Path) -> None:
    lines = [line for block in blocks_of("sh") for line in block.replace("\\\n", " ").splitlines()]
    assert len(lines) >= 4
    trace = shlex.join(person.command()[:-1])
    for line in lines:
        script = f'trace() {{ {trace} "$@"; }}\nset -e\n{line}'
        ended = subprocess.run(
            ["bash", "-c", script],
            env=person.environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert ended.returncode == 0, (line, ended.stderr)
    assert pq.read_table(tmp_path / "transfers.parquet").num_rows == 1000


def test_the_notebook_runs(person: Person, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Cell after cell, as a person would: each sees what those before it made."""
    monkeypatch.setenv("TRACE_HOME", str(person.home))
    monkeypatch.delenv("TRACE_TOKEN", raising=False)
    names: dict[str, Any] = {}
    cells = blocks_of("python")
    assert len(cells) >= 4
    for cell in cells:
        exec(compile(cell, str(PAGE), "exec"), names)
    transfers = names["transfers"]
    assert isinstance(transfers, pa.Table)
    assert transfers.num_rows == 700
    assert transfers.column("amount")[-1].as_py() == str(699**3 * 10**18)
    assert names["busiest"].row(0) == ("01" * 20, 64)
    assert names["largest"].fetchall() == [
        (TOKENS[0].hex(), str(698**3 * 10**18)),
        (TOKENS[1].hex(), str(699**3 * 10**18)),
    ]
    (comment,) = re.findall(r"# (query_unknown_column .*)", PAGE.read_text())
    assert comment in capsys.readouterr().out


def test_a_session(person: Person) -> None:
    with person.open(columns=COLUMNS) as terminal:
        terminal.wait_for("trace>")
        terminal.send("\\d transfers" + ENTER)
        terminal.wait_for("amount_string  varchar")
        terminal.send("select token, count(*) as transfers, max(amount_string::bignum) as most" + ENTER)
        terminal.wait_for("..>")
        terminal.send("from transfers group by token order by transfers desc;" + ENTER)
        terminal.wait_for("ms)")
        terminal.send("select tokn from transfers;" + ENTER)
        terminal.wait_for(lambda text: text.count("trace>") == 4)
        compare(terminal, "query-prompt.svg")


def test_completion(person: Person) -> None:
    with person.open(columns=COLUMNS) as terminal:
        terminal.wait_for("trace>")
        terminal.send("select t.token from tr")
        wait_until(lambda: _completes(terminal), "the catalog to arrive")
        terminal.send(" t where t." + TAB)
        terminal.wait_for("column varchar")
        compare(terminal, "query-completion.svg")


def _completes(terminal: TerminalSession) -> bool:
    terminal.send(TAB)
    return "from transfers" in terminal.text


def compare(terminal: TerminalSession, name: str) -> None:
    picture = draw("trace query", cells(terminal), COLUMNS)
    if os.environ.get(WRITE):
        (IMAGES / name).write_text(picture)
    assert texts(picture) == texts((IMAGES / name).read_text()), f"{name}: run `make pictures` and look at it"


def texts(picture: str) -> list[str]:
    """What it says: colours and places may change with the libraries."""
    return re.findall(r"<text [^>]*>([^<]*)</text>", picture)


def cells(terminal: TerminalSession) -> list[list[Cell]]:
    """The screen up to its last line, with costs that do not differ from run to run."""
    lines = []
    for number, text in enumerate(terminal.text.split("\n")):
        row = terminal.screen.buffer[number]
        line = [
            Cell(row[place].data, row[place].fg, row[place].bg, row[place].bold, row[place].reverse)
            for place in range(max(len(text), _last_background(row)))
        ]
        if costs := _COSTS.search(text):
            line = [*line[: costs.start()], *(Cell(character) for character in "8.0 KiB read, 9 ms)")]
        lines.append(line)
    return lines


def _last_background(row: Mapping[int, object]) -> int:
    return max((place + 1 for place in range(COLUMNS) if getattr(row[place], "bg", "default") != "default"), default=0)
