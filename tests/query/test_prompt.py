"""`trace query` as a person uses it: a real process on a pseudo-terminal, against the real service."""

import json
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.query.person import Person, person_of
from tests.query.support import FILES, blocks_table, commit_blocks, parquet
from tests.support.dispatcher import DispatcherHarness
from tests.support.postgres import TestCluster, wait_until
from tests.support.terminal import CTRL_C, CTRL_D, ENTER, TAB, UP, TerminalSession

SLOW = "SELECT count(*) FROM range(100000000) a, range(100000) b"
"""Takes hours."""


@pytest.fixture(scope="module")
def person(
    harness: DispatcherHarness, cluster: TestCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Person]:
    """The org has the dataset `blocks`."""
    with person_of(harness, cluster, tmp_path_factory) as someone:
        someone.flow.deploy(FILES)
        for start in (0, 10):
            commit_blocks(someone.flow, start, start + 9, parquet(blocks_table(start, start + 9)))
        yield someone


def test_a_session(person: Person) -> None:
    with person.open() as terminal:
        terminal.wait_for("trace>")
        terminal.send("select count(*) as blocks," + ENTER)
        terminal.wait_for("..>")
        terminal.send("max(chain_id) as top from blocks;" + ENTER)
        text = terminal.wait_for("ms)")
        lines = [line.rstrip() for line in text.splitlines()]
        place = lines.index("blocks     top")
        assert lines[place : place + 3] == ["blocks     top", "bigint  bigint", "    20      10"]

        terminal.send("select hsh from blocks;" + ENTER)
        text = terminal.wait_for("^^^")
        assert "error: query_unknown_column: There is no column `hsh` here. Did you mean\n`hash`?" in text
        lines = text.splitlines()
        mark = next(number for number, line in enumerate(lines) if line.strip() == "^^^")
        assert lines[mark - 1][lines[mark].index("^") :].startswith("hsh from")

        terminal.send("\\d" + ENTER)
        terminal.wait_for(lambda text: "blocks                4  files" in text)
        terminal.send("\\d blocks" + ENTER)
        terminal.wait_for(lambda text: "value         varchar" in text)
        terminal.send("\\x" + ENTER)
        terminal.wait_for("Expanded display is on.")
        terminal.send("select hash from blocks where block_number = 3;" + ENTER)
        terminal.wait_for("-- row 1\nhash  0x00000003")
        terminal.send(CTRL_D)
        assert terminal.wait_for_end() == 0


def test_names_are_completed(person: Person) -> None:
    with person.open() as terminal:
        terminal.wait_for("trace>")
        # The catalog arrives while one types: Tab is pressed until it is there.
        terminal.send("select 1 from blo")
        terminal.wait_for("from blo")
        wait_until(lambda: _press(terminal, TAB, "from blocks"), "the dataset to be completed")
        terminal.send(" b where b.chain" + TAB)
        terminal.wait_for("b.chain_id")
        terminal.send(" = approx_count_d" + TAB)
        terminal.wait_for("approx_count_distinct(")
        terminal.send(CTRL_C)
        terminal.wait_for(lambda text: text.endswith("trace>"))
        terminal.send("\\tim" + TAB + ENTER)
        terminal.wait_for("Timing is off.")
        terminal.send(CTRL_D)
        assert terminal.wait_for_end() == 0


def _press(terminal: TerminalSession, key: str, expected: str) -> bool:
    terminal.send(key)
    return expected in terminal.text


def test_ctrl_c_cancels_the_query_at_the_service(person: Person) -> None:
    before = len(person.outcomes())
    with person.open() as terminal:
        terminal.wait_for("trace>")
        terminal.send(SLOW + ";" + ENTER)
        wait_until(lambda: person.running_queries > 0, "the query to run")
        terminal.send(CTRL_C)
        terminal.wait_for("Canceled.")
        wait_until(lambda: not person.service.running, "the query to end")
        wait_until(lambda: person.outcomes()[before:] == ["query_canceled"], "its record")
        terminal.send("select 40 + 2 as again;" + ENTER)
        terminal.wait_for("   42")
        terminal.send("select 'left behind" + CTRL_C)
        terminal.send("select 'next' as a;" + ENTER)
        terminal.wait_for("varchar\nnext")
        terminal.send("\\q" + ENTER)
        assert terminal.wait_for_end() == 0


def test_ctrl_c_cancels_a_query_of_the_command_line(person: Person) -> None:
    before = len(person.outcomes())
    with person.open(SLOW) as terminal:
        wait_until(lambda: person.running_queries > 0, "the query to run")
        terminal.send(CTRL_C)
        assert terminal.wait_for_end() == 130
        assert "Canceled." in terminal.text
    wait_until(lambda: person.outcomes()[before:] == ["query_canceled"], "its record")
    assert not person.service.running


def test_history_outlives_the_session_and_is_private(person: Person) -> None:
    with person.open() as terminal:
        terminal.wait_for("trace>")
        terminal.send("select 1\n as first;" + ENTER)
        terminal.wait_for("ms)")
        terminal.send(" select 2 as secret;" + ENTER)
        terminal.wait_for(lambda text: text.count("ms)") == 2)
        terminal.send(CTRL_D)
        terminal.wait_for_end()
    file = person.home / "state" / "trace" / "query_history.jsonl"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert json.loads(file.read_text().splitlines()[-1]) == "select 1\n as first;"
    with person.open() as terminal:
        terminal.wait_for("trace>")
        terminal.send(UP)
        terminal.wait_for("as first;")
        terminal.send(ENTER)
        terminal.wait_for("ms)")


def test_a_terminal_that_cannot_move_its_cursor(person: Person) -> None:
    with person.open(TERM="dumb") as terminal:
        terminal.wait_for("trace>")
        terminal.send("select 1 +\n")
        terminal.wait_for("..>")
        terminal.send("1 as two;\n")
        terminal.wait_for("integer\n      2")
        terminal.send("select 'dropped")
        terminal.send(CTRL_C)
        terminal.wait_for(lambda text: text.endswith("trace>"))
        terminal.send("select 3 as three;\n")
        terminal.wait_for("      3")
        terminal.send(CTRL_D)
        assert terminal.wait_for_end() == 0
        assert "\x1b" not in terminal.text


def test_statements_on_standard_input_run_in_turn(person: Person) -> None:
    ended = person.run("--format", "csv", stdin="select 1 as a; select ';' as b -- ;\n;\n\\d blocks\nselect 3 as c")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[:4] == ["a", "1", "b", ";"]
    assert ended.stdout.splitlines()[-2:] == ["c", "3"]
    failed = person.run("--json", stdin="select 1;\nselect nothing;\nselect 2;\n")
    assert failed.returncode == 1
    documents = [json.loads(line) for line in failed.stdout.splitlines()]
    assert documents[0]["rows"] == [[1]]
    assert documents[1]["error"]["code"] == "query_unknown_column"
    assert len(documents) == 2
    assert person.run(stdin="").returncode == 0


@pytest.mark.parametrize("rows", [3, 12_000], ids=["in the reply", "exported"])
def test_files_by_their_ending(person: Person, rows: int, tmp_path: Path) -> None:
    sql = f"SELECT i, '{2**200}'::BIGNUM + i::BIGNUM AS big, 'a' AS a, 'b' AS a FROM range({rows}) t(i) ORDER BY i;\n"
    files = [tmp_path / f"out.{ending}" for ending in ("parquet", "csv", "json", "jsonl", "arrow")]
    ended = person.run(stdin="".join(f"\\o {file}\n{sql}" for file in files))
    assert ended.returncode == 0, ended.stderr
    for file in files:
        assert f"{rows:,} rows in {file}.\n" in ended.stdout
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert _last_row(file, rows) == [rows - 1, str(2**200 + rows - 1), "a", "b"]
    assert list(tmp_path.glob(".*")) == []


def test_no_file_is_replaced_silently(person: Person, tmp_path: Path) -> None:
    file = tmp_path / "out.csv"
    file.write_text("mine")
    refused = person.run("SELECT 1 AS one", "--output", str(file))
    assert refused.returncode == 1
    assert "exists: replace it with --force" in refused.stderr
    assert file.read_text() == "mine"
    assert person.run("SELECT 1 AS one", "--output", str(file), "--force").returncode == 0
    assert file.read_text() == "one\n1\n"
    wrong = person.run("SELECT 1 AS one", "--output", str(tmp_path / "out.xlsx"))
    assert wrong.returncode == 2
    assert ".parquet, .csv, .json, .jsonl, .arrow" in wrong.stderr


def _last_row(file: Path, rows: int) -> list[Any]:
    if file.suffix == ".parquet":
        table = pq.ParquetFile(file).read()
    elif file.suffix == ".arrow":
        with pa.ipc.open_file(file) as reader:
            table = reader.read_all()
    elif file.suffix == ".csv":
        heading, *lines = file.read_text().splitlines()
        assert (heading, len(lines)) == ("i,big,a,a_1", rows)
        number, *texts = lines[-1].split(",")
        return [int(number), *texts]
    else:
        text = file.read_text()
        documents = json.loads(text) if file.suffix == ".json" else [json.loads(line) for line in text.splitlines()]
        assert len(documents) == rows
        assert list(documents[-1]) == ["i", "big", "a", "a_1"]
        return list(documents[-1].values())
    assert table.num_rows == rows
    return [column[-1].as_py() for column in table.columns]
