"""What `trace read --output` writes: the format by the ending, one whole private file, and nothing that was there."""

import io
import json
import os
import stat
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import click
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from tracelake.cli import export, read
from tracelake.cli.export import write_rows

ROWS = pa.table(
    {
        "block_number": pa.array([1, 2], pa.uint64()),
        "hash": pa.array([b"\x01" * 20, None], pa.binary(20)),
        "amount": pa.array([Decimal("12345678901234567890.5"), None], pa.decimal128(38, 1)),
        "name": pa.array(['a,"b"\n\x9b2J', ""], pa.string()),
        "topics": pa.array([[b"\x02"], []], pa.list_(pa.binary())),
        "at": pa.array([datetime(2026, 1, 2, tzinfo=UTC), None], pa.timestamp("us", "UTC")),
    }
)


def pieces() -> Iterator[pa.Table]:
    yield ROWS.slice(0, 0)
    yield ROWS.slice(0, 1)
    yield ROWS.slice(1, 1)


def test_parquet_is_the_rows(tmp_path: Path) -> None:
    assert write_rows(pieces(), tmp_path / "x.parquet", force=False) == 2
    assert pq.read_table(tmp_path / "x.parquet").equals(ROWS)


def test_csv_is_what_people_read(tmp_path: Path) -> None:
    assert write_rows(pieces(), tmp_path / "x.CSV", force=False) == 2
    options = pa.csv.ConvertOptions(
        column_types={"amount": pa.string(), "hash": pa.string(), "name": pa.string()},
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    parsing = pa.csv.ParseOptions(newlines_in_values=True)
    table = pa.csv.read_csv(tmp_path / "x.CSV", parse_options=parsing, convert_options=options)
    assert table.column("hash").to_pylist() == ["0x" + "01" * 20, None]
    assert table.column("amount").to_pylist() == ["12345678901234567890.5", None]
    assert table.column("name").to_pylist() == ['a,"b"\n\x9b2J', ""]
    assert table.column("topics").to_pylist() == ['["0x02"]', "[]"]


def test_jsonl_is_an_object_a_line(tmp_path: Path) -> None:
    assert write_rows(pieces(), tmp_path / "x.jsonl", force=False) == 2
    text = (tmp_path / "x.jsonl").read_text()
    first, second = (json.loads(line) for line in text.splitlines())
    assert first["hash"] == "0x" + "01" * 20
    assert first["topics"] == ["0x02"]
    assert first["name"] == 'a,"b"\n\x9b2J'
    assert "\x9b" not in text
    assert second == {"block_number": 2, "hash": None, "amount": None, "name": "", "topics": [], "at": None}


@pytest.mark.parametrize("name", ["x", "x.txt", "parquet", "x.parquet.gz"])
def test_the_ending_is_the_format(tmp_path: Path, name: str) -> None:
    with pytest.raises(click.UsageError, match=r"\.parquet, \.csv, \.json, \.jsonl, \.arrow, \.feather, received"):
        write_rows(pieces(), tmp_path / name, force=True)
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_replaced_only_when_asked(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("mine")
    with pytest.raises(click.ClickException, match="exists: replace it with --force"):
        write_rows(pieces(), path, force=False)
    assert path.read_text() == "mine"
    write_rows(pieces(), path, force=True)
    assert path.read_text() != "mine"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_appears_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"

    def slow_pieces() -> Iterator[pa.Table]:
        path.write_text("mine")
        yield ROWS

    with pytest.raises(click.ClickException, match="exists: replace"):
        write_rows(slow_pieces(), path, force=False)
    assert path.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("kind", ["fifo", "link", "dangling link", "directory"])
def test_only_regular_files_are_replaced(tmp_path: Path, kind: str) -> None:
    path, other = tmp_path / "x.csv", tmp_path / "other"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to(other)
        if kind == "link":
            other.write_text("mine")
    before = path.lstat().st_mode
    for force in (False, True):
        with pytest.raises(click.ClickException, match="is not a regular file"):
            write_rows(pieces(), path, force=force)
    assert path.lstat().st_mode == before
    assert kind != "link" or other.read_text() == "mine"
    assert not list(tmp_path.glob(".*"))


def test_a_directory_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(click.ClickException, match="there is no directory"):
        write_rows(pieces(), tmp_path / "none" / "x.csv", force=False)


def test_it_is_its_owners(tmp_path: Path) -> None:
    umask = os.umask(0)
    try:
        for name in ("x.csv", "x.parquet", "x.jsonl"):
            write_rows(pieces(), tmp_path / name, force=False)
            assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
    finally:
        os.umask(umask)


def test_a_failure_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.parquet"

    def broken_pieces() -> Iterator[pa.Table]:
        yield ROWS
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_rows(broken_pieces(), path, force=False)
    with pytest.raises(click.ClickException, match="nothing to write"):
        write_rows(iter([]), path, force=False)

    def refuse(_beside: Path, _output: Path, *, force: bool, endings: Sequence[str]) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(export, "_put_in_place", refuse)
    with pytest.raises(click.ClickException, match=r"x\.parquet cannot be written: No space left on device"):
        write_rows(pieces(), path, force=False)
    assert list(tmp_path.iterdir()) == []


class Terminal(io.BytesIO):
    def isatty(self) -> bool:
        return True


def test_standard_output_of_a_terminal_gets_no_control_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    for ending in (".csv", ".json", ".jsonl"):
        terminal = Terminal()
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(terminal))
        assert read._write(pieces(), Path("-"), ending, force=False) == 2
        text = terminal.getvalue().decode()
        assert "0x" + "01" * 20 in text
        assert r"\x9b" in text or r"\u009b" in text
        assert text.replace("\n", "").isprintable()
