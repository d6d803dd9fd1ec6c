"""Every function that the pinned Spark knows has an entry: its arguments have kinds, or it is refused with a reason."""

import pytest
from pyspark.sql import SparkSession

from tracelake.catalogue.sql.findings import SqlRefusedError
from tracelake.catalogue.sql.functions import FUNCTIONS
from tracelake.catalogue.sql.functions.kinds import KINDS
from tracelake.catalogue.sql.functions.refused import REFUSED
from tracelake.catalogue.sql.functions.signatures import SIGNATURES
from tracelake.catalogue.sql.gate import gate

GRAMMAR = {"timestampadd", "timestampdiff"}
"""Calls that are grammar to Spark, and in no registry of it."""


def test_no_function_of_spark_is_without_an_entry(spark: SparkSession) -> None:
    registry = {row[0].lower() for row in spark.sql("SHOW ALL FUNCTIONS").collect()}
    state = spark._jsparkSession.sessionState()
    for functions in (state.functionRegistry(), state.tableFunctionRegistry()):
        names = functions.listFunction().iterator()
        while names.hasNext():
            registry.add(str(names.next().funcName()).lower())
    session_functions = {name for name in registry if name.startswith("trace_")}
    assert registry - session_functions - FUNCTIONS - set(REFUSED) == set()
    assert (FUNCTIONS - GRAMMAR) | set(REFUSED) <= registry


def test_every_kind_says_what_to_write_and_why() -> None:
    used = {kind.name for signatures in SIGNATURES.values() for signature in signatures for kind in signature.kinds}
    assert used == set(KINDS)
    for kind in KINDS.values():
        assert kind.expected
        assert kind.reason.endswith(".")


def test_what_is_refused_is_refused_by_the_gate() -> None:
    for name, reason in REFUSED.items():
        if "grammar" in reason:
            continue
        with pytest.raises(SqlRefusedError) as refused:
            gate(f"SELECT {name}(1) AS x")
        if name == "char":
            continue  # refused as a type, before anything takes it for a function
        assert refused.value.finding.code == "sql_function", name
        assert reason in refused.value.finding.suggestion
