"""Which of our error codes stands for a failure inside of the sandbox. DuckDB's own texts stay inside.

They name paths, values of rows that the caller may not see, and other relations. The service gets a code alone.
"""

import duckdb
import pyarrow as pa

_BY_CLASS: tuple[tuple[type[BaseException], str], ...] = (
    (MemoryError, "query_out_of_memory"),
    (pa.ArrowMemoryError, "query_out_of_memory"),
    (duckdb.OutOfMemoryException, "query_out_of_memory"),
    (duckdb.ConversionException, "query_value_invalid"),
    (duckdb.OutOfRangeException, "query_value_invalid"),
    (duckdb.InvalidTypeException, "query_value_invalid"),
    (duckdb.TypeMismatchException, "query_value_invalid"),
    (duckdb.IOException, "query_file_invalid"),
    (duckdb.SerializationException, "query_file_invalid"),
    (duckdb.InternalException, "query_engine_crashed"),
    (duckdb.FatalException, "query_engine_crashed"),
    (pa.ArrowInvalid, "query_value_invalid"),
)
_OF_INVALID_INPUT = (
    ("division by zero", "query_division_by_zero"),
    ("parquet", "query_file_invalid"),
    (".parquet", "query_file_invalid"),
    ("magic bytes", "query_file_invalid"),
    ("invalid unicode", "query_file_invalid"),
    ("decompress", "query_file_invalid"),
    ("thrift", "query_file_invalid"),
)
_OF_SETUP = ("query_out_of_memory", "query_type_unsupported", "query_engine_crashed")
_OF_MEMORY = ("bad_alloc", "bad allocation", "cannot allocate", "out of memory", "could not allocate")


class QueryFailureError(Exception):
    """A failure that already has its code."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


def classify(error: BaseException) -> str:
    if isinstance(error, QueryFailureError):
        return error.code
    text = str(error).lower()
    if any(sign in text for sign in _OF_MEMORY):
        return "query_out_of_memory"
    for kind, code in _BY_CLASS:
        if isinstance(error, kind):
            return code
    if type(error) is duckdb.Error:
        return "query_file_invalid"  # an exception of a library that DuckDB reads Parquet with
    if isinstance(error, duckdb.InvalidInputException):
        return next((code for sign, code in _OF_INVALID_INPUT if sign in text), "query_value_invalid")
    return "query_failed"


def classify_setup(error: BaseException) -> str:
    """While views are made, only files and memory can be at fault."""
    code = classify(error)
    return code if code in _OF_SETUP else "query_file_invalid"
