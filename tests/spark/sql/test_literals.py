"""What the gate's own grammars accept means the same to Spark and to Java."""

import re
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tracelake.catalogue.sql.literals import formats, paths, patterns, schemas
from tracelake.catalogue.sql.literals.errors import LiteralError
from tracelake.catalogue.sql.nodes import text_literal

BOUNDED = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def accepts(check: Any, text: str) -> bool:
    try:
        check(text)
    except LiteralError:
        return False
    return True


_ATOMIC = {"int": "int", "BIGINT": "bigint", "String": "string", "date": "date", "DECIMAL( 10 ,2)": "decimal(10,2)"}
_NAMES = st.sampled_from(["a", "`b`", "C_1", "_d"])


def _nested(types: st.SearchStrategy[tuple[str, str]]) -> st.SearchStrategy[tuple[str, str]]:
    fields = st.lists(st.tuples(_NAMES, st.sampled_from([": ", " "]), types), min_size=1, max_size=3)
    return st.one_of(
        types.map(lambda item: (f"ARRAY<{item[0]}>", f"array<{item[1]}>")),
        types.map(lambda item: (f"map<string, {item[0]}>", f"map<string,{item[1]}>")),
        fields.map(
            lambda items: (
                f"Struct<{', '.join(name + sign + item[0] for name, sign, item in items)}>",
                f"struct<{','.join(f'{name.strip(chr(96))}:{item[1]}' for name, _, item in items)}>",
            )
        ),
    )


_TYPES = st.recursive(st.sampled_from(sorted(_ATOMIC.items())), _nested, max_leaves=6)
"""A type as people write it, and as Spark does."""


@BOUNDED
@given(st.lists(st.tuples(_TYPES, st.text(alphabet="abINT<>,: `(1)", max_size=12)), min_size=10, max_size=10))
def test_schemas(spark: SparkSession, samples: list[tuple[tuple[str, str], str]]) -> None:
    parser = spark._jvm.org.apache.spark.sql.types.DataType  # type: ignore[union-attr]
    for (text, expected), noise in samples:
        schemas.check_type(text)
        assert parser.fromDDL(text).catalogString() == expected
        if accepts(schemas.check_schema, noise):
            assert "udt" not in parser.fromDDL(noise).json()


@BOUNDED
@given(
    st.lists(st.text(alphabet="ab.*+?|()[]^$\\dwsb{}12,-", max_size=10), min_size=30, max_size=30),
    st.lists(st.text(alphabet="ab1 -\n", max_size=8), min_size=3, max_size=3),
)
def test_patterns(spark: SparkSession, texts: list[str], subjects: list[str]) -> None:
    java = spark._jvm.java.util.regex.Pattern  # type: ignore[union-attr]
    for text in texts:
        if accepts(patterns.check_pattern, text):
            compiled = java.compile(text)
            for subject in subjects:
                if "$" in text and subject.endswith("\n"):
                    continue  # where the end of a line is, is read in two ways
                assert compiled.matcher(subject).find() == bool(re.search(text, subject)), text


@settings(BOUNDED, max_examples=5)
@given(st.lists(st.text(alphabet="yMdHmsS-:/ '[]E", max_size=10), min_size=20, max_size=20))
def test_patterns_of_dates(spark: SparkSession, texts: list[str]) -> None:
    """Spark formats by them, or has no such number of a letter; nothing becomes large."""
    for text in texts:
        if accepts(formats.check_datetime, text):
            assert len(formatted(spark, text)) <= 20 * len(text) + 20


def formatted(spark: SparkSession, text: str) -> str:
    query = f"SELECT date_format(TIMESTAMP '2024-02-29 01:02:03', {text_literal(text)}) AS x"
    try:
        return str(spark.sql(query).collect()[0].x)
    except PySparkException as error:
        if "PATTERN" not in (condition := str(error.getCondition())) and "UPGRADE" not in condition:
            raise
        return ""


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("$", '{"a":[{"b":1},{"b":2}],"c d":3}'),
        ("$.a", '[{"b":1},{"b":2}]'),
        ("$.a[1].b", "2"),
        ("$['a'][0]['b']", "1"),
        ("$.a[*].b", "[1,2]"),
        ("$['c d']", "3"),
    ],
)
def test_paths(spark: SparkSession, path: str, expected: str) -> None:
    paths.check_json_path(path)
    document = text_literal('{"a": [{"b": 1}, {"b": 2}], "c d": 3}')
    row = spark.sql(f"SELECT get_json_object({document}, {text_literal(path)}) AS x").collect()[0]
    assert row.x == expected
