"""What the service asks of the engine, and what it gets back. All of it crosses into the sandbox as JSON."""

import re
from enum import StrEnum

import msgspec

from tracelake.errors import TraceError
from tracelake.model.dag import Where

MIB = 1024 * 1024
ASYNC_THREADS = 1
"""Threads of DuckDB that read files, beside those that compute."""
_TYPE = re.compile(r'[A-Za-z][A-Za-z0-9_ ,()\[\]"]*')
"""Names of DuckDB types, also of nested ones."""


INPUT_DIRECTORY = "/in"
"""Where the files of a query are, inside of the sandbox."""


class FileFormat(StrEnum):
    PARQUET = "parquet"
    ARROW = "arrow"
    """Arrow IPC, as a file or as a stream: rows that the service has read from a table."""


class EngineColumn(msgspec.Struct, frozen=True):
    name: str
    type: str
    """The DuckDB type that queries see. `BIGNUM` makes decimal digits a number of any size."""

    def __post_init__(self) -> None:
        if not _TYPE.fullmatch(self.type):
            raise ValueError(f"not the name of a type: {self.type!r}")


class Relation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Rows that a query can read under a name. There is nothing else in its database.

    The sandbox must be able to read the files: of a service that runs as root they have mode 0444, in directories
    that may be private."""

    files: tuple[str, ...]
    format: FileFormat = FileFormat.PARQUET
    columns: tuple[EngineColumn, ...] = ()
    """Those that exist for the query, with their types. None: all, as the files have them; then there must be a
    file."""
    blocks: tuple[tuple[int, int], ...] | None = None
    """Ranges of `block_number`, each with its first and its last; None: all."""
    where: Where | None = None
    """Columns and the values that they must have, as in the input of a job."""
    live: bool = False
    """Files and rows of a table are one relation. `columns` are given, whose values are exact, or the query fails. A
    file may lack some: the dataset got them later, and they are null in its rows."""
    rows: tuple[str, ...] = ()
    """Arrow files with the rows of the table, of which `blocks` and `where` select nothing."""


class EngineParameter(msgspec.Struct, frozen=True):
    """A named value. It is bound, and never becomes a part of the text of the query."""

    type: str
    """A DuckDB type without fields: `BIGINT`, `DECIMAL(38,2)`, `BIGNUM`, `VARCHAR`, `BLOB`, `TIMESTAMPTZ`, ..."""
    value: str | tuple[str | None, ...] | None
    """As text; hex digits for `BLOB`; the texts of the items for `VARCHAR[]`. None: NULL."""

    def __post_init__(self) -> None:
        if not _TYPE.fullmatch(self.type):
            raise ValueError(f"not the name of a type: {self.type!r}")


class EngineLimits(msgspec.Struct, frozen=True, kw_only=True):
    deadline_seconds: float = 60.0
    memory_bytes: int = 1024 * MIB
    """For DuckDB. The address space is limited to this and some slack, which covers what DuckDB does not count."""
    threads: int = 2
    result_rows: int = 10_000
    result_bytes: int = 10 * MIB
    export_bytes: int = 0
    """Size of the exported file."""


class EngineQuery(msgspec.Struct, frozen=True, kw_only=True):
    sql: str
    """One SELECT, which the gate has accepted."""
    limit: int | None = None
    """Rows of the result at most."""
    relations: dict[str, Relation] = {}
    directory: str | None = None
    """Has the files of all relations and nothing else, and is made visible as a whole, at the cost of one mount. None:
    each file is made visible by itself."""
    parameters: dict[str, EngineParameter] = {}
    limits: EngineLimits = EngineLimits()
    export: str | None = None
    """The path of a new Parquet file that gets all rows if they exceed the limits of the result; else it is empty."""


class EngineReport(msgspec.Struct, frozen=True, kw_only=True):
    rows: int
    """Rows in the stream."""
    bytes: int
    truncated: bool
    """There are more rows than the stream has."""
    exported_rows: int
    """0 if the stream has all rows: then nothing is exported."""


class ChildOutcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """The only message of the child. It is not trusted: the service accepts codes of `FAILURES` and numbers."""

    failure: str | None = None
    rows: int = 0
    truncated: bool = False
    exported_rows: int = 0


FAILURES = frozenset(
    {
        "query_division_by_zero",
        "query_engine_crashed",
        "query_export_too_large",
        "query_failed",
        "query_file_invalid",
        "query_out_of_memory",
        "query_type_unsupported",
        "query_value_invalid",
    }
)


def failure_of(code: str | None) -> TraceError:
    """The error for a failure that the child named; what it says besides is not passed on."""
    return TraceError(code if code in FAILURES else "query_engine_crashed")
