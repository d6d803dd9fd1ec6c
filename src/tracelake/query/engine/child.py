"""Runs one query inside of its sandbox. The fork server has imported this module, and with it DuckDB and pyarrow.

Descriptors: the Arrow stream, the outcome, and the exported file if there is one. Nothing else leaves the sandbox.
"""

import os
import sys
from collections.abc import Sequence

import msgspec
import pyarrow as pa

from tracelake.query.engine.database import bind, open_database
from tracelake.query.engine.failures import classify, classify_setup
from tracelake.query.engine.requests import ChildOutcome, EngineQuery
from tracelake.query.engine.results import write_result

pa.set_cpu_count(1)
pa.set_io_thread_count(1)
sys.setrecursionlimit(1000)


def run(payload: bytes, descriptors: Sequence[int]) -> int:
    output, outcome, *export = descriptors
    query = msgspec.json.decode(payload, type=EngineQuery)
    result = _answer(query, output, export[0] if export else None)
    os.write(outcome, msgspec.json.encode(result))
    return 0


def _answer(query: EngineQuery, output: int, export: int | None) -> ChildOutcome:
    try:
        connection = open_database(query.limits, query.relations)
    except Exception as error:
        return ChildOutcome(classify_setup(error))
    try:
        result = connection.sql(query.sql, params=bind(query.parameters) or None)
        return write_result(result, query.limits, output, export)
    except Exception as error:
        return ChildOutcome(classify(error))
