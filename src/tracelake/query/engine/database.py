"""The database of one query: DuckDB in memory, with a view for each relation and access to their files alone.

Every setting that a query could use to reach out is off, and the configuration is locked, before the first file is
opened. The sandbox does not depend on it.
"""

from collections.abc import Mapping

import duckdb
import msgspec
import pyarrow as pa

from tracelake.model.dag import Scalar
from tracelake.query.engine.exact_casts import is_exact
from tracelake.query.engine.failures import QueryFailureError
from tracelake.query.engine.requests import (
    ASYNC_THREADS,
    INPUT_DIRECTORY,
    EngineColumn,
    EngineLimits,
    EngineParameter,
    FileFormat,
    Relation,
)

BLOCK = "block_number"
_LARGEST_DECIMAL = 38
_ARROW_FILE = b"ARROW1"
_WARM_UP = "SELECT i % 2 AS a, count(*), sum(i) FROM range(10) t(i) WHERE i > 1 GROUP BY 1 ORDER BY 1"
_CONFIG: dict[str, str | bool | int | float | list[str]] = {
    "allow_community_extensions": "false",
    "allow_persistent_secrets": "false",
    "allow_unsigned_extensions": "false",
    "async_threads": "0",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "python_enable_replacements": "false",
    "threads": "1",
}

_SETTINGS = (
    f"allowed_directories = ['{INPUT_DIRECTORY}']",
    "temp_directory = ''",
    "TimeZone = 'UTC'",
    "enable_external_access = false",  # the last one: it fixes those before
)


def make_database() -> duckdb.DuckDBPyConnection:
    """An empty one, without threads: it is made before the process is forked that uses it."""
    connection = duckdb.connect(":memory:", config=_CONFIG)
    for setting in _SETTINGS:
        _run(connection, f"SET GLOBAL {setting}")
    return connection


def connect(database: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyConnection:
    """A connection of this process. Those of other processes have other random numbers.

    A query on nothing touches the memory that every query touches, so that the first one has not to wait for it."""
    connection = database.cursor()
    connection.sql(_WARM_UP).to_arrow_table()
    return connection


def open_relations(
    connection: duckdb.DuckDBPyConnection, limits: EngineLimits, relations: Mapping[str, Relation]
) -> None:
    """Sets the limits, locks the configuration, and makes a view of each relation."""
    settings = (
        f"threads = {limits.threads:d}",
        # Without one, a recursive query over files waits for ever for reads that nobody does.
        f"async_threads = {ASYNC_THREADS:d}",
        f"memory_limit = '{limits.memory_bytes:d}B'",
        "lock_configuration = true",
    )
    _run(connection, "; ".join(f"SET {setting}" for setting in settings))
    for number, (name, relation) in enumerate(relations.items()):
        columns = tuple(map(_canonical, relation.columns))
        _create_view(connection, name, msgspec.structs.replace(relation, columns=columns), f"_source_{number}")


def bind(parameters: Mapping[str, EngineParameter]) -> dict[str, object]:
    return {name: _value(parameter) for name, parameter in parameters.items()}


def quote_name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def quote_text(text: str) -> str:
    if "\0" in text:
        raise QueryFailureError("query_value_invalid")
    return "'" + text.replace("'", "''") + "'"


def _canonical(column: EngineColumn) -> EngineColumn:
    """With its type as DuckDB writes it, which quotes few names of fields: types are compared as text."""
    return EngineColumn(column.name, str(duckdb.dtype(column.type))) if '"' in column.type else column


def _value(parameter: EngineParameter) -> object:
    if parameter.value is None:
        return None
    if isinstance(parameter.value, tuple):
        return list(parameter.value)
    if parameter.type.upper() == "BLOB":
        return bytes.fromhex(parameter.value)
    return duckdb.Value(parameter.value, duckdb.dtype(parameter.type))


def _create_view(connection: duckdb.DuckDBPyConnection, name: str, relation: Relation, source_name: str) -> None:
    if not relation.files and not relation.rows:
        columns = ", ".join(map(_null, relation.columns))
        _run(connection, f"CREATE VIEW {quote_name(name)} AS SELECT {columns} WHERE false")
        return
    if relation.live:
        selects = _select_groups(connection, relation)
        if relation.rows:
            selects.append(_select_rows(connection, relation, source_name))
        _run(connection, f"CREATE VIEW {quote_name(name)} AS {' UNION ALL '.join(selects)}")
        return
    if relation.format is FileFormat.PARQUET:
        source = f"read_parquet({_list(relation.files)})"
        types = _types(connection, f"read_parquet({_list(relation.files[:1])})")  # DuckDB takes those of the first
        _check_decimals(connection, relation.files, types)
    else:
        source = _register(connection, relation.files, source_name)
        types = _types(connection, source)
    # S608: names are quoted, types have been checked, values are literals of our own making.
    text = f"CREATE VIEW {quote_name(name)} AS SELECT {_select_list(relation.columns, types)} FROM {source}"  # noqa: S608
    if conditions := _conditions(relation, types):
        text += f" WHERE {' AND '.join(conditions)}"
    _run(connection, text)


def _register(connection: duckdb.DuckDBPyConnection, files: tuple[str, ...], source_name: str) -> str:
    connection.register(source_name, pa.concat_tables([_map_arrow(path) for path in files]))
    return quote_name(source_name)


def _select_rows(connection: duckdb.DuckDBPyConnection, relation: Relation, source_name: str) -> str:
    source = _register(connection, relation.rows, source_name)
    return f"SELECT {_select_list(relation.columns, _types(connection, source))} FROM {source}"  # noqa: S608 - quoted


def _select_groups(connection: duckdb.DuckDBPyConnection, relation: Relation) -> list[str]:
    """A query for the files of each schema: DuckDB gives all files that it reads at once the types of the first."""
    selects = []
    for files in _group_files(connection, relation.files):
        types = _types(connection, f"read_parquet({_list(files[:1])})")
        _check_decimals(connection, files, types)
        columns = ", ".join(_exact(column, types.get(column.name)) for column in relation.columns)
        text = f"SELECT {columns} FROM read_parquet({_list(files)})"  # noqa: S608 - as in `_create_view`
        if conditions := _conditions(relation, types):
            text += f" WHERE {' AND '.join(conditions)}"
        selects.append(text)
    return selects


def _group_files(connection: duckdb.DuckDBPyConnection, files: tuple[str, ...]) -> list[tuple[str, ...]]:
    """The files in groups of one schema each, in their order."""
    if len(files) < 2:
        return [files] if files else []
    text = f"""
        SELECT file_name, dense_rank() OVER (ORDER BY columns) FROM (
            SELECT file_name, list_sort(list((name, duckdb_type, precision, num_children))) AS columns
            FROM parquet_schema({_list(files)}) GROUP BY file_name)"""  # noqa: S608 - literals
    numbers = dict(connection.execute(text).fetchall())
    groups: dict[int, list[str]] = {}
    for file in files:
        groups.setdefault(numbers[file], []).append(file)
    return [tuple(group) for group in groups.values()]


def _exact(column: EngineColumn, file_type: str | None) -> str:
    if file_type is None:
        return _null(column)
    if not is_exact(file_type, column.type):
        raise QueryFailureError("query_type_unsupported")
    if (file_type, column.type) == ("VARCHAR", "BIGNUM"):
        name = quote_name(column.name)
        whole = f"CASE WHEN contains({name}, '.') THEN error('not whole') ELSE {name} END"  # DuckDB would round
        return f"CAST({whole} AS BIGNUM) AS {name}"
    return _cast(column, file_type)


def _null(column: EngineColumn) -> str:
    return f"CAST(NULL AS {column.type}) AS {quote_name(column.name)}"


def _cast(column: EngineColumn, source_type: str) -> str:
    name = quote_name(column.name)
    return name if source_type == column.type else f"CAST({name} AS {column.type}) AS {name}"


def _run(connection: duckdb.DuckDBPyConnection, text: str) -> None:
    connection.execute(text).fetchall()


def _types(connection: duckdb.DuckDBPyConnection, source: str) -> dict[str, str]:
    described = connection.sql(f"SELECT * FROM {source}")  # noqa: S608
    return dict(zip(described.columns, map(str, described.types), strict=True))


def _check_decimals(connection: duckdb.DuckDBPyConnection, files: tuple[str, ...], types: dict[str, str]) -> None:
    """DuckDB reads decimals of more than 38 digits as DOUBLE, without a word: a query on them would not be exact."""
    if not any("DOUBLE" in text for text in types.values()):
        return
    query = f"SELECT 1 FROM parquet_schema({_list(files)}) WHERE precision > {_LARGEST_DECIMAL} LIMIT 1"  # noqa: S608
    if connection.execute(query).fetchall():
        raise QueryFailureError("query_type_unsupported")


def _map_arrow(path: str) -> pa.Table:
    """The rows are used where they are, in the page cache."""
    mapped = pa.memory_map(path)
    magic = mapped.read(len(_ARROW_FILE))
    mapped.seek(0)
    if magic == _ARROW_FILE:
        return pa.ipc.open_file(mapped).read_all()
    return pa.ipc.open_stream(mapped).read_all()


def _select_list(columns: tuple[EngineColumn, ...], types: dict[str, str]) -> str:
    if not columns:
        return "*"
    if any(column.name not in types for column in columns):
        raise QueryFailureError("query_file_invalid")
    return ", ".join(_cast(column, types[column.name]) for column in columns)


def _conditions(relation: Relation, types: dict[str, str]) -> list[str]:
    conditions = []
    if relation.blocks is not None:
        ranges = [f"{quote_name(BLOCK)} BETWEEN {first:d} AND {last:d}" for first, last in relation.blocks]
        if len(ranges) > 1:  # the whole of it, which the minima and maxima of a file are compared with
            firsts, lasts = zip(*relation.blocks, strict=True)
            conditions.append(f"{quote_name(BLOCK)} BETWEEN {min(firsts):d} AND {max(lasts):d}")
        conditions.append(f"({' OR '.join(ranges) or 'false'})")
    for field, value in (relation.where or {}).items():
        values = value if isinstance(value, list) else [value]
        if field not in types:
            if not relation.live:
                raise QueryFailureError("query_file_invalid")
            conditions.append("true" if None in values else "false")
            continue
        some = [_literal(item, types[field]) for item in values if item is not None]
        tests = [f"{quote_name(field)} IN ({', '.join(some)})"] if some else []
        if len(some) < len(values):
            tests.append(f"{quote_name(field)} IS NULL")
        conditions.append(f"({' OR '.join(tests) or 'false'})")
    return conditions


def _literal(value: Scalar, column_type: str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    text = quote_text(str(value))
    if column_type == "BLOB" and isinstance(value, str):
        return f"from_hex({quote_text(value.removeprefix('0x'))})"
    return text if isinstance(value, str) else f"CAST({text} AS {'DOUBLE' if isinstance(value, float) else 'HUGEINT'})"


def _list(texts: tuple[str, ...] | list[str]) -> str:
    return f"[{', '.join(map(quote_text, texts))}]"
