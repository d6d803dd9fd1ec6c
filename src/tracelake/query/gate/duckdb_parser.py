"""DuckDB as a parser and binder: an empty database in memory, without extensions, files or a configuration to change.

`parse` and `write` convert between a text and its syntax tree. `bind` lets DuckDB resolve every name against empty
tables with the granted columns and tells what the plan reads. No row exists here and no query runs.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import duckdb

from tracelake.query.gate.parameters import BoundValue

_CONFIG: dict[str, str | bool | int | float | list[str]] = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "allow_unsigned_extensions": "false",
    "python_enable_replacements": "false",
    "threads": "1",
    "memory_limit": "256MB",
}
_EXPLAIN = "EXPLAIN (FORMAT JSON) "
_KEYWORDS = "SELECT keyword_name FROM duckdb_keywords() WHERE keyword_category IN ('reserved', 'type_function')"
_USED_OPTIMIZER = "unused_columns"
"""It tells which columns a query needs; the others could compute constants."""


class ParseError(Exception):
    """DuckDB does not parse the text, or the text is no SELECT. `offset` counts bytes."""

    def __init__(self, offset: int | None, *, is_statement: bool = False) -> None:
        super().__init__()
        self.offset = offset
        self.is_statement = is_statement


class BindError(Exception):
    """DuckDB does not accept the names or types of the query. The texts stay inside of the gate."""

    def __init__(self, subtype: str, name: str | None, offset: int | None, text: str) -> None:
        super().__init__()
        self.subtype = subtype
        self.name = name
        self.offset = offset
        self.text = text


@dataclass(frozen=True, slots=True)
class Scan:
    relation: str
    projections: tuple[str, ...]


class DuckDbParser:
    def __init__(self) -> None:
        self._connection = duckdb.connect(":memory:", config=_CONFIG)
        optimizers = [name for (name,) in self._connection.execute("FROM duckdb_optimizers()").fetchall()]
        self.reserved_words = frozenset(word for (word,) in self._connection.execute(_KEYWORDS).fetchall())
        """Words that name no column without quotes."""
        disabled = ",".join(name for name in optimizers if name != _USED_OPTIMIZER)
        for setting in (
            "temp_directory = ''",
            f"disabled_optimizers = '{disabled}'",
            "explain_output = 'physical_only'",
            "errors_as_json = true",
            "enable_external_access = false",
            "lock_configuration = true",
        ):
            self._connection.execute(f"SET {setting}")

    def parse(self, sql: str) -> list[dict[str, Any]]:
        """The statements of the text. Raises ParseError."""
        try:
            row = self._connection.execute("SELECT json_serialize_sql(?::VARCHAR)", [sql]).fetchone()
        except duckdb.OutOfMemoryException:
            raise MemoryError from None
        except duckdb.Error:
            raise ParseError(None) from None
        assert row is not None
        answer = json.loads(row[0])
        if answer["error"]:
            place = answer.get("position")
            raise ParseError(
                int(place) if place is not None else None, is_statement=answer.get("error_type") == "not implemented"
            )
        statements: list[dict[str, Any]] = answer["statements"]
        return statements

    def write(self, statement: Mapping[str, Any]) -> str:
        """The text of a syntax tree. Raises ParseError."""
        tree = json.dumps({"error": False, "statements": [statement]})
        try:
            row = self._connection.execute("SELECT json_deserialize_sql(?::JSON)", [tree]).fetchone()
        except duckdb.Error:
            raise ParseError(None) from None
        assert row is not None
        return str(row[0])

    def bind(
        self, sql: str, parameters: Mapping[str, BoundValue], relations: Mapping[str, Mapping[str, str]]
    ) -> list[Scan]:
        """The scans of the query's plan. Raises BindError."""
        self._connection.execute("BEGIN")
        try:
            for name, columns in relations.items():
                declarations = ", ".join(f"{quote_name(column)} {kind}" for column, kind in columns.items())
                self._connection.execute(f"CREATE TABLE {quote_name(name)} ({declarations})")
            try:
                rows = self._connection.execute(_EXPLAIN + sql, dict(parameters) or None).fetchall()
            except duckdb.OutOfMemoryException:
                raise MemoryError from None
            except duckdb.Error as error:
                raise _bind_error(str(error)) from None
            return [scan for _, plan in rows for scan in _scans(json.loads(plan))]
        finally:
            self._connection.execute("ROLLBACK")


def quote_name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _bind_error(text: str) -> BindError:
    start = text.find("{")
    try:
        details = json.loads(text[start:]) if start >= 0 else {}
    except ValueError:
        details = {}
    place = details.get("position")
    offset = int(place) - len(_EXPLAIN) if isinstance(place, str) and re.fullmatch(r"\d+", place) else None
    return BindError(
        str(details.get("error_subtype", details.get("exception_type", ""))),
        details.get("name"),
        offset,
        str(details.get("exception_message", "")),
    )


def _scans(plan: list[Any]) -> Iterator[Scan]:
    for node in plan:
        info = node.get("extra_info", {})
        if table := info.get("Table"):
            projections = info.get("Projections", [])
            columns = [projections] if isinstance(projections, str) else projections
            name = str(table).removeprefix("memory.main.")
            yield Scan(name.strip('"').replace('""', '"'), tuple(item for item in columns if item))
        yield from _scans(node.get("children", []))
