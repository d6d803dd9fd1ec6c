"""From bytes to records: JSON, JSON lines, CSV. Strict: what two readers could understand differently is refused.

Numbers keep their text, so that no digit is lost. An object with a key twice, NaN, a lone surrogate, bytes that are not
of the encoding, a line with more fields than the first: all refused, with the place.
"""

import codecs
import csv
import io
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from tracelake.catalogue.feeds.mapping import FeedConfig
from tracelake.catalogue.feeds.paths import MISSING, JsonPath
from tracelake.feeds.errors import BadRowError

MAX_DEPTH = 64
_CODECS = {"utf-8": "utf-8", "utf-16": "utf-16", "iso-8859-1": "iso-8859-1", "windows-1252": "cp1252"}
_MAX_FIELD = 10 * 2**20
_SHOWN = 80


class BadDocumentError(ValueError):
    """A document that has no records as it is."""


class JsonNumber(str):
    """A number as it was written."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class FeedRecord:
    value: Any
    row: int
    """In its document, from 1."""
    key: str | None = None
    """Of a member of an object."""
    document: Any = None
    problem: str | None = None
    """Why it is no record at all; `value` is its text then."""


@dataclass(frozen=True, slots=True)
class FeedDocument:
    value: Any
    """Of `json`: all of it; else None."""
    records: Iterator[FeedRecord]


def read_document(data: bytes, config: FeedConfig) -> FeedDocument:
    """Raises BadDocumentError."""
    text = decode_text(data, config.encoding)
    if config.format == "json":
        value = parse_json(text)
        return FeedDocument(value, _json_records(value, config.rows_path()))
    if config.format == "jsonl":
        return FeedDocument(None, _lines(text))
    return FeedDocument(None, _csv_records(text, config))


def decode_text(data: bytes, encoding: str) -> str:
    """Without the mark of its byte order. Raises BadDocumentError."""
    if encoding == "utf-8" and data.startswith(codecs.BOM_UTF8):
        data = data[len(codecs.BOM_UTF8) :]
    try:
        return data.decode(_CODECS[encoding])
    except UnicodeError as error:
        place = f" at byte {error.start:,}" if isinstance(error, UnicodeDecodeError) else ""
        raise BadDocumentError(f"it is not {encoding}{place}: set `encoding`, or ask the sender") from None


def parse_json(text: str) -> Any:
    """Raises BadDocumentError."""
    try:
        value = _DECODER.decode(text)
    except BadDocumentError:
        raise
    except json.JSONDecodeError as error:
        raise BadDocumentError(f"it is not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None
    except RecursionError:
        raise BadDocumentError(f"it is nested deeper than {MAX_DEPTH} levels") from None
    _check_depth(value)
    return value


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise BadDocumentError(f"an object has the key {shorten(_repeated(name for name, _ in pairs))} twice")
    return members


def _constant(word: str) -> Any:
    raise BadDocumentError(f"{word} is not a number of JSON")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_pairs, parse_float=JsonNumber, parse_int=JsonNumber, parse_constant=_constant
)


def _check_depth(value: Any) -> None:
    """Without recursion, since others wrote it."""
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise BadDocumentError(f"it is nested deeper than {MAX_DEPTH} levels")
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                below += [member for member in item.values() if isinstance(member, dict | list)]
            elif isinstance(item, list):
                below += [member for member in item if isinstance(member, dict | list)]
        level = below


def _json_records(value: Any, path: JsonPath) -> Iterator[FeedRecord]:
    records = path.find(value)
    if records is MISSING:
        raise BadDocumentError(f"it has nothing at `rows: {path}`")
    if path.members:
        if not isinstance(records, dict):
            raise BadDocumentError(f"expected an object at `rows: {path}`, received {kind_of_json(records)}")
        members = enumerate(records.items(), 1)
        return (FeedRecord(member, row, key, value) for row, (key, member) in members)
    if path.steps == () and isinstance(records, dict):
        return iter([FeedRecord(records, 1, None, value)])  # a document that is one record
    if not isinstance(records, list):
        hint = "; write .* behind it for the members of an object" if isinstance(records, dict) else ""
        raise BadDocumentError(f"expected a list at `rows: {path}`, received {kind_of_json(records)}{hint}")
    return (FeedRecord(record, row, None, value) for row, record in enumerate(records, 1))


def _lines(text: str) -> Iterator[FeedRecord]:
    row = 0
    for line in text.split("\n"):
        if not line.strip():
            continue
        row += 1
        try:
            yield FeedRecord(parse_json(line.removesuffix("\r")), row)
        except BadDocumentError as error:
            yield FeedRecord(line, row, problem=str(error))


def _csv_records(text: str, config: FeedConfig) -> Iterator[FeedRecord]:
    csv.field_size_limit(_MAX_FIELD)
    if "\0" in text:
        raise BadDocumentError("it has a zero character")
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=config.delimiter, strict=True)
    names = _header(reader) if config.header else None
    row, width = 0, None if names is None else len(names)
    while True:
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            # Nobody knows where the next line begins.
            raise BadDocumentError(f"it is not CSV: {error} at line {reader.line_num}") from None
        if not fields:
            continue
        row += 1
        if width is None:
            width = len(fields)
        if len(fields) != width:
            problem = f"expected {width} fields, received {len(fields)}"
            yield FeedRecord(fields, row, problem=problem)
        else:
            yield FeedRecord(fields if names is None else dict(zip(names, fields, strict=True)), row)


def _header(reader: "Iterator[list[str]]") -> list[str]:
    try:
        names = next(reader)
    except StopIteration:
        raise BadDocumentError("it is empty: expected a first line with the names of fields") from None
    except csv.Error as error:
        raise BadDocumentError(f"it is not CSV: {error} in the first line") from None
    if len(set(names)) != len(names):
        name = shorten(_repeated(names))
        raise BadDocumentError(f"two fields are called {name}; set `header: false` and use their places")
    return names


def _repeated(names: Iterable[str]) -> str:
    """The first name that comes a second time."""
    earlier_names: set[str] = set()
    for name in names:
        if name in earlier_names:
            return name
        earlier_names.add(name)
    raise AssertionError("no name is there twice")


def kind_of_json(value: Any) -> str:
    """A value in words."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, JsonNumber):
        return f"the number {value if len(value) <= _SHOWN else value[:_SHOWN] + '...'}"
    if isinstance(value, str):
        return f"the text {shorten(value)}"
    return "a list" if isinstance(value, list) else "an object"


def shorten(text: str) -> str:
    return ascii(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")


def encode_json(value: Any) -> str:
    """The value as JSON, with each number as it was written. Raises BadRowError."""
    parts: list[str] = []
    _write_json(value, parts)
    text = "".join(parts)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadRowError("holds half of a character (a lone surrogate)") from None
    return text


def _write_json(value: Any, parts: list[str]) -> None:
    """Depth is bounded by MAX_DEPTH."""
    if isinstance(value, JsonNumber):
        parts.append(str(value))
    elif isinstance(value, dict):
        parts.append("{")
        for number, (key, member) in enumerate(value.items()):
            parts.append(("," if number else "") + json.dumps(key, ensure_ascii=False) + ":")
            _write_json(member, parts)
        parts.append("}")
    elif isinstance(value, list):
        parts.append("[")
        for number, member in enumerate(value):
            if number:
                parts.append(",")
            _write_json(member, parts)
        parts.append("]")
    else:
        parts.append(json.dumps(value, ensure_ascii=False))
