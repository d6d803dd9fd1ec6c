"""The last lines of a part's log, and following it through rotations."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelake.stack import log_files
from tracelake.stack.log_files import rotate_log
from tracelake.stack.log_tail import LogTail, list_logs, read_last

LINE = st.text(st.characters(codec="utf-8", exclude_characters="\n"), min_size=1, max_size=40)


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(log_files, "MAX_BYTES", 1)
    path = tmp_path / "part.log"
    path.touch()
    return path


def write(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_the_last_lines_reach_into_older_texts(log: Path) -> None:
    for number in range(5):
        write(log, f"old {number}\n")
    rotate_log(log)
    write(log, "new 0\nnew 1\n")
    assert read_last(log, 1) == ["new 1"]
    assert read_last(log, 4) == ["old 3", "old 4", "new 0", "new 1"]
    assert len(read_last(log, 100)) == 7
    assert read_last(log.with_name("absent.log"), 3) == []


@given(st.lists(LINE), st.integers(1, 20))
def test_the_last_lines_are_those_of_the_whole_text(lines: list[str], number: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "x.log")
        path.write_bytes("".join(f"{line}\n" for line in lines).encode())
        assert read_last(path, number) == lines[-number:]


def test_no_line_is_lost_or_repeated_over_rotations(log: Path) -> None:
    write(log, "before\n")
    tail = LogTail(log)
    seen: list[str] = []
    written: list[str] = []
    for number in range(40):
        write(log, f"line {number}\n")
        written.append(f"line {number}")
        if number % 7 == 3:
            rotate_log(log)
            write(log, f"after {number}\n")
            written.append(f"after {number}")
        if number % 3 == 0 or number % 7 == 6:
            seen += tail.read()
    assert seen + tail.read() == written


def test_a_line_appears_when_it_is_complete(log: Path) -> None:
    tail = LogTail(log)
    write(log, "half")
    assert tail.read() == []
    rotate_log(log)
    write(log, " of it\nnext\n")
    assert tail.read() == ["half of it", "next"]


def test_a_cut_whose_copy_is_not_there_yet_is_waited_for(log: Path) -> None:
    write(log, "one\n")
    tail = LogTail(log)
    write(log, "two\n")
    text = log.read_bytes()
    log.write_bytes(b"")  # cut, and the copy follows
    assert tail.read() == []
    write(log, "3\n")
    log.with_name("part.log.1").write_bytes(text)
    assert tail.read() == ["two", "3"]
    log.write_bytes(b"")  # cut by hand: no copy follows
    write(log, "4")
    assert [tail.read() for _ in range(9)] == [[]] * 9
    write(log, "\n5\n")
    assert tail.read() == ["4", "5"]


def test_parts_with_a_log(tmp_path: Path) -> None:
    for name in ("worker-2.log", "dispatcher.log", "dispatcher.log.1", "java-crash-12.log", "notes.txt"):
        (tmp_path / name).touch()
    assert list_logs(tmp_path) == ["dispatcher", "worker-2"]
