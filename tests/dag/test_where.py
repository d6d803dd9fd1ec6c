"""Filters: the SQL form says what the map says, and values fit their columns."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.dag.support import ALERTS, GOOD, problems_of, read
from tracelake.model.dag import Where


def document(text: str, dataset: str) -> str:
    return GOOD.replace("{from: {job: tick}}", f"{{from: {{dataset: {dataset}}}, where: {text}}}")


def codes(text: str, dataset: str = "alert_events") -> list[str]:
    return [problem.code for problem in problems_of(document(text, dataset))]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("severity = 'critical'", {"severity": "critical"}),
        ("  a=1 and b = -2.5  ", {"a": 1, "b": -2.5}),
        ("a IN ('x', 'it''s') AND \"b c\" = TRUE", {"a": ["it's", "x"], "b c": True}),
        ("a in (3, 1, 3)", {"a": [1, 3]}),
        ("a IN (false)", {"a": False}),
        ("android = 1 AND order_by = 2", {"android": 1, "order_by": 2}),
        ("a = 1e3", {"a": 1000.0}),
        ("a = ''", {"a": ""}),
    ],
)
def test_sql(text: str, expected: Where) -> None:
    (job,) = [job for job in read(document(json.dumps(text), "raw_blocks")).jobs if job.inputs]
    assert job.inputs[0].where == expected


@pytest.mark.parametrize(
    "text",
    [
        "a > 1",
        "a <> 1",
        "a != 1",
        "a = 1 OR b = 2",
        "NOT a = 1",
        "a",
        "a =",
        "= 1",
        "1 = a",
        "a = b",
        "a = 1 AND",
        "AND a = 1",
        "a IN ()",
        "a IN 1",
        "a IN (1",
        "a IN (1,)",
        "a NOT IN (1)",
        "a IS NULL",
        "a = NULL",
        "a LIKE 'x'",
        "a = 1; DROP TABLE x",
        "a = 1 -- x",
        "a = 'x",
        "(a = 1)",
        "a = 1 AND a = 2",
        "lower(a) = 'x'",
        "a.b = 1",
        "a = 1 + 1",
        "a = 'x' 'y'",
        "a = 99999999999999999999",
        "a = 1e999",
        "a BETWEEN 1 AND 2",
        "a = 1 b = 2",
        "a = 1x",
        "a IN (SELECT 1)",
        "a = $1",
        "a == 1",
        "a = E'x'",
        'a = "b"',
        "   ",
        "a = 0x10",
    ],
)
def test_anything_else_is_no_condition(text: str) -> None:
    assert codes(json.dumps(text)) == ["where_invalid"]


@given(text=st.text(st.sampled_from("ab '\"=(),INAND01.-e\n"), min_size=1, max_size=30))
def test_a_condition_is_understood_or_refused(text: str) -> None:
    assert codes(json.dumps(text), "raw_blocks") in ([], ["where_invalid"])


FITS = [
    "{id: abc}",
    "{severity: [low, critical]}",
    "{severity: null}",
    "{block: -5}",
    "{small: 32767}",
    "{amount: 7}",
    "{amount: '115792089237316195423570985008687907853269984665640564039457584007913129639935'}",
    "{price: '1.000000000000000001'}",
    "{price: 2}",
    "{ratio: 1}",
    "{ratio: 0.5}",
    "{open: true}",
    "{hash: '0xABcd'}",
    "{at: '2024-01-01T00:00:00Z'}",
    "{day: 2024-02-29}",
]
MISFITS = [
    "{id: 5}",
    "{id: null}",
    "{id: abcdefghijk}",
    "{severity: high}",
    "{severity: [low, high]}",
    "{block: '5'}",
    "{block: 1.5}",
    "{block: true}",
    "{small: 32768}",
    "{amount: -1}",
    "{amount: 1.5}",
    "{amount: x}",
    "{amount: '115792089237316195423570985008687907853269984665640564039457584007913129639936'}",
    "{price: x}",
    "{price: true}",
    "{ratio: '1'}",
    "{open: 1}",
    "{open: 'true'}",
    "{hash: abc}",
    "{hash: '0xabc'}",
    "{at: noon}",
    "{day: 2023-02-29}",
    "{extra: x}",
    "{small: null}",
]


@pytest.mark.parametrize("text", FITS)
def test_values_that_fit(text: str) -> None:
    assert codes(text) == []


@pytest.mark.parametrize("text", MISFITS)
def test_values_that_do_not(text: str) -> None:
    assert codes(text) == ["where_type"]


def test_every_column_type_is_tried() -> None:
    names = {column.name for column in ALERTS.columns}
    assert {text[1:].partition(":")[0] for text in FITS} == names - {"extra"}
    assert {text[1:].partition(":")[0] for text in MISFITS} == names


def test_a_schema_nobody_knows_takes_every_map() -> None:
    assert codes("{whatever: [1, x, null], other: true}", "raw_blocks") == []
