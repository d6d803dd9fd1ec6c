"""Each hostile query is refused with its code, or contained: then it names nothing beyond the grant."""

from collections import Counter

import pytest

from tests.query.gate.corpus import CONTAINED, PARAMETERS, RELATIONS, CorpusEntry, read_corpus
from tests.query.gate.names import names_in
from tracelake.errors import CATALOGUE, TraceError
from tracelake.query.gate.check import QueryGate
from tracelake.query.gate.functions import SIGNATURES, TABLE_SIGNATURES

HOSTILE = read_corpus("hostile")
GROUPS = {
    "bombs",
    "catalogue_and_settings",
    "dynamic_sql",
    "files_and_urls",
    "names_and_comments",
    "oracles",
    "other_tenants",
    "parser_differences",
    "statements",
    "string_relations",
}
_ENGINE_TEXT = ("Error:", "LINE 1", "Candidate", 'Did you mean "', "Catalog", "Binder", "Parser", "syntax error")
_GRANTED = {
    *RELATIONS,
    *(column for columns in RELATIONS.values() for column in columns),
    *SIGNATURES,
    *TABLE_SIGNATURES,
    *PARAMETERS,
}


def test_the_corpus_has_every_group_and_unique_names() -> None:
    assert {entry.group for entry in HOSTILE} == GROUPS
    assert len(HOSTILE) >= 300
    assert max(Counter(str(entry) for entry in HOSTILE).values()) == 1
    assert all(entry.code == CONTAINED or entry.code in CATALOGUE for entry in HOSTILE)


@pytest.mark.parametrize("entry", HOSTILE, ids=str)
def test_a_hostile_query(entry: CorpusEntry, gate: QueryGate) -> None:
    if entry.code == CONTAINED:
        query = gate.check(entry.sql, PARAMETERS, RELATIONS)
        tables, functions = names_in(query.sql)
        assert query.relations == tables & RELATIONS.keys()
        assert functions <= SIGNATURES.keys() | TABLE_SIGNATURES.keys()
        return
    with pytest.raises(TraceError) as refused:
        gate.check(entry.sql, PARAMETERS, RELATIONS)
    error = refused.value
    assert error.code == entry.code, error.message
    assert not any(text in error.message for text in _ENGINE_TEXT), error.message
    assert error.details["line"] >= 1
    assert error.details["column"] >= 1
    assert set(error.details.get("suggestions", ())) <= _GRANTED
