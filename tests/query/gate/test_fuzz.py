"""Random mutations of corpus queries and of their trees: the gate refuses with a TraceError, or what comes out stays
within the grant.
"""

import copy
import os
import re
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.query.gate.corpus import PARAMETERS, RELATIONS, read_corpus
from tests.query.gate.names import names_in, tree_of
from tracelake.errors import TraceError
from tracelake.query.gate.check import QueryGate
from tracelake.query.gate.functions import SIGNATURES, TABLE_SIGNATURES
from tracelake.query.gate.parameters import check_parameters
from tracelake.query.gate.walker import QueryWalker

_LEGITIMATE = [entry.sql for entry in read_corpus("legitimate")]
_HOSTILE = [entry.sql for entry in read_corpus("hostile") if len(entry.sql) < 500]
_WORD = re.compile(r"\s+|\w+|'[^']*'|\"[^\"]*\"|[^\w\s]")
_WORDS = sorted({word for sql in _LEGITIMATE + _HOSTILE for word in _WORD.findall(sql) if not word.isspace()})
_STRANGE = ["/*", "*/", "--", "\n", ";", "'", '"', "$$", "\\", "\x00", "\u200b", "K", "é", "E'\\x41'", "::", ":=", "=>"]
_FUZZ = settings(
    max_examples=int(os.environ.get("TRACE_FUZZ_EXAMPLES", "150")),
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
_GATE = QueryGate()
_ALLOWED = SIGNATURES.keys() | TABLE_SIGNATURES.keys()


def check_properties(sql: str) -> None:
    try:
        query = _GATE.check(sql, PARAMETERS, RELATIONS)
    except TraceError:
        return
    tables, functions = names_in(query.sql)
    assert tables <= RELATIONS.keys(), sql
    assert functions <= _ALLOWED, sql
    assert query.relations <= RELATIONS.keys()
    again = _GATE.check(query.sql, PARAMETERS, RELATIONS)
    assert (again.sql, again.relations, again.columns) == (query.sql, query.relations, query.columns)
    assert (again.filters, again.fingerprint) == (query.filters, query.fingerprint)


@st.composite
def mutated_queries(draw: st.DrawFn) -> str:
    words = _WORD.findall(draw(st.sampled_from(_LEGITIMATE)))
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, max(0, len(words) - 1)))
        action = draw(st.sampled_from(["delete", "insert", "replace", "double", "splice", "strange"]))
        if action == "delete":
            del words[place : place + 1]
        elif action == "insert":
            words.insert(place, " " + draw(st.sampled_from(_WORDS)) + " ")
        elif action == "replace":
            words[place : place + 1] = [draw(st.sampled_from(_WORDS))]
        elif action == "double":
            words[place:place] = words[place : place + draw(st.integers(1, 8))]
        elif action == "splice":
            words[place : place + 1] = ["(", *_WORD.findall(draw(st.sampled_from(_HOSTILE + _LEGITIMATE))), ")"]
        else:
            words.insert(place, draw(st.sampled_from(_STRANGE)))
    return "".join(words)


@_FUZZ
@given(mutated_queries())
def test_mutated_queries(sql: str) -> None:
    check_properties(sql)


@_FUZZ
@given(st.text(max_size=60), st.sampled_from(_LEGITIMATE), st.integers(0, 200))
def test_random_text_inside_of_a_query(text: str, sql: str, place: int) -> None:
    check_properties(sql[:place] + text + sql[place:])


_VALUES: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 2**40),
    st.floats(allow_nan=False),
    st.sampled_from(["", "read_text", "secrets", "SELECT_NODE", "FUNCTION", "BASE_TABLE", "TABLE_FUNCTION", "\u200b"]),
    st.sampled_from([[], {}, [[]], {"type": "SHOW_REF"}, {"class": "FUNCTION"}, {"path": ["a", "b"]}, {"map": [1]}]),
)


@st.composite
def mutated_trees(draw: st.DrawFn) -> Any:
    statement = copy.deepcopy(draw(st.sampled_from(_TREES)))
    for _ in range(draw(st.integers(1, 3))):
        places: list[tuple[Any, Any]] = []
        pending = [statement]
        while pending:
            node = pending.pop()
            keys = list(node) if isinstance(node, dict) else list(range(len(node)))
            places += [(node, key) for key in keys]
            pending += [node[key] for key in keys if isinstance(node[key], dict | list)]
        if not places:
            break
        node, key = places[draw(st.integers(0, len(places) - 1))]
        action = draw(st.sampled_from(["value", "remove", "add", "move"]))
        if action == "value":
            node[key] = draw(_VALUES)
        elif action == "remove":
            del node[key]
        elif action == "add" and isinstance(node, dict):
            node[draw(st.sampled_from(["new_field", "subquery", "schema_name", "type", "class"]))] = draw(_VALUES)
        else:
            other, other_key = places[draw(st.integers(0, len(places) - 1))]
            node[key] = copy.deepcopy(other[other_key])
    return statement


_TREES = [tree_of(sql)["statements"][0] for sql in _LEGITIMATE[::3]]


@_FUZZ
@given(mutated_trees())
def test_mutated_trees(statement: Any) -> None:
    """The walker meets no tree that makes it fail: whatever it does not know, it refuses."""
    walker = QueryWalker("SELECT 1", RELATIONS, check_parameters(PARAMETERS))
    try:
        names = walker.walk(statement)
    except TraceError:
        return
    assert names.relations <= RELATIONS.keys()
    assert names.functions <= _ALLOWED
