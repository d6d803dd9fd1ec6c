"""What the gate lets through is run in a DuckDB that nothing confines, among tripwires: files, other relations,
settings and a catalogue. Nothing of them may be read or changed, whatever the mutations of the corpora come to.
"""

import ctypes
import os
import re
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.query.gate.corpus import PARAMETERS, RELATIONS
from tests.query.gate.sample_data import database
from tests.query.gate.test_fuzz import _FUZZ, _GATE, _HOSTILE, _LEGITIMATE, _STRANGE, _WORD, _WORDS, mutated_queries
from tracelake.errors import TraceError

CANARY = "tripwire_27183"
_SECONDS = 0.5
_PATH = re.compile(r"'[^']*[/.][^']*'")
_IN_OPEN, _IN_CREATE, _IN_NONBLOCK = 0x20, 0x100, 0o4000
_STATE = """
    SELECT (SELECT string_agg(name || '=' || coalesce(value, ''), ';' ORDER BY name) FROM duckdb_settings()),
           (SELECT count(*) FROM duckdb_tables()), (SELECT count(*) FROM duckdb_views() WHERE NOT internal),
           (SELECT count(*) FROM duckdb_functions() WHERE NOT internal), (SELECT count(*) FROM duckdb_databases()),
           (SELECT count(*) FROM duckdb_variables()), (SELECT count(*) FROM duckdb_extensions() WHERE loaded),
           (SELECT count(*) FROM duckdb_secrets()), (SELECT count(*) FROM duckdb_prepared_statements())
"""


class Tripwires:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._connection = database()
        self._connection.execute(f"CREATE TABLE secrets AS SELECT '{CANARY}' AS secret")
        self._connection.execute(f"CREATE SCHEMA other; CREATE TABLE other.blocks AS SELECT '{CANARY}' AS secret")
        for setting in ("threads = 1", "memory_limit = '200MB'", f"temp_directory = '{directory}/spill'"):
            self._connection.execute(f"SET {setting}")
        for name in ("secret.csv", "secret.json", "secret.txt", "secrets"):
            (directory / name).write_text(f'secret\n"{CANARY}"\n')
        self._connection.execute(f"COPY secrets TO '{directory}/secret.parquet'")
        libc = ctypes.CDLL(None, use_errno=True)
        self._watch = libc.inotify_init1(_IN_NONBLOCK)
        assert libc.inotify_add_watch(self._watch, os.fsencode(directory), _IN_OPEN | _IN_CREATE) >= 0
        self._state = self._read_state()

    def close(self) -> None:
        os.close(self._watch)
        self._connection.close()

    def run(self, sql: str, parameters: dict[str, Any]) -> None:
        """Fails if the query touches a tripwire. Its own errors, and its cost, are another matter."""
        timer = threading.Timer(_SECONDS, self._connection.interrupt)
        timer.start()
        try:
            rows = self._connection.execute(sql, parameters or None).fetchmany(1000)
        except duckdb.Error as error:
            rows = [(str(error),)]
        finally:
            timer.cancel()
            timer.join()
        assert CANARY not in str(rows), sql
        assert self.opened_files() == [], sql
        assert self._read_state() == self._state, sql

    def opened_files(self) -> list[str]:
        try:
            events = os.read(self._watch, 65_536)
        except BlockingIOError:
            return []
        names, start = [], 0
        while start < len(events):
            length = struct.unpack_from("iIII", events, start)[3]
            names.append(events[start + 16 : start + 16 + length].rstrip(b"\0").decode())
            start += 16 + length
        return names

    def _read_state(self) -> Any:
        return self._connection.execute(_STATE).fetchall()


@pytest.fixture(scope="module")
def tripwires(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tripwires]:
    wires = Tripwires(tmp_path_factory.mktemp("tripwires"))
    yield wires
    wires.close()


def check(sql: str, tripwires: Tripwires) -> None:
    """Paths of the text are those of the tripwires."""
    for name in ("secret.csv", "secret.parquet"):
        text = _PATH.sub(lambda _: f"'{tripwires.directory}/{name}'", sql)  # noqa: B023
        try:
            query = _GATE.check(text, PARAMETERS, RELATIONS)
        except TraceError:
            continue
        tripwires.run(query.sql, dict(query.parameters))


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_csv('{0}/secret.csv')",
        "SELECT * FROM '{0}/secret.parquet'",
        "FROM secrets",
        "FROM other.blocks",
        "CREATE VIEW v AS SELECT 1",
        "SET VARIABLE x = 1",
        "COPY blocks TO '{0}/out.csv'",
        "SET default_null_order = 'nulls_first'",
    ],
)
def test_the_tripwires_notice(sql: str, tmp_path: Path) -> None:
    wires = Tripwires(tmp_path)
    try:
        with pytest.raises(AssertionError):
            wires.run(sql.format(tmp_path), {})
    finally:
        wires.close()


@_FUZZ
@given(sql=mutated_queries())
def test_mutated_queries_touch_nothing(sql: str, tripwires: Tripwires) -> None:
    check(sql, tripwires)


@st.composite
def disguised_queries(draw: st.DrawFn) -> str:
    """A hostile query of which some words are those of a legitimate one, or whose parts stand in one."""
    words = _WORD.findall(draw(st.sampled_from(_HOSTILE)))
    others = _WORD.findall(draw(st.sampled_from(_LEGITIMATE)))
    for _ in range(draw(st.integers(1, 5))):
        place, other = draw(st.integers(0, len(words))), draw(st.integers(0, len(others)))
        words[place : place + draw(st.integers(0, 4))] = others[other : other + draw(st.integers(0, 4))]
    if draw(st.booleans()):
        place = draw(st.integers(0, len(others)))
        words = [*others[:place], " (", *words, ") ", *others[place:]]
    return "".join(words)


@_FUZZ
@given(sql=disguised_queries())
def test_disguised_queries_touch_nothing(sql: str, tripwires: Tripwires) -> None:
    check(sql, tripwires)


_SOUP = [*_WORDS, *_STRANGE, "secrets", "other", ".", "'secret.csv'", "read_csv", "FROM", "SELECT", "(", ")", ",", "*"]


@_FUZZ
@given(words=st.lists(st.sampled_from(_SOUP), min_size=1, max_size=12))
def test_soups_of_words_touch_nothing(words: list[str], tripwires: Tripwires) -> None:
    for start in ("SELECT ", "FROM ", "WITH x AS (SELECT 1) SELECT * FROM ", "SELECT * FROM blocks WHERE "):
        check(start + " ".join(words), tripwires)
