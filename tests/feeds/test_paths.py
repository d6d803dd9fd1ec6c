"""The grammar of paths."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelake.catalogue.feeds.paths import MISSING, JsonPath, PathError, parse_path, parse_rows_path

NAMES = st.text(st.characters(min_codepoint=0x20, exclude_categories=["Cs"]), max_size=12)
STEPS = st.lists(NAMES | st.integers(0, 1000), max_size=8).map(tuple)


@given(STEPS, st.booleans())
def test_a_path_is_read_as_it_is_written(steps: tuple[str | int, ...], root: bool) -> None:
    path = JsonPath(steps, root=root)
    if not steps and not root:
        return
    assert parse_path(str(path)) == path
    assert parse_rows_path(str(JsonPath(steps, root=True, members=True))) == JsonPath(steps, root=True, members=True)


@given(st.text(max_size=60))
def test_any_text_is_a_path_or_refused(text: str) -> None:
    try:
        path = parse_path(text)
    except PathError:
        return
    assert parse_path(str(path)) == path


@given(STEPS, st.integers())
def test_a_value_is_found_where_the_path_leads(steps: tuple[str | int, ...], leaf: int) -> None:
    value: Any = leaf
    for step in reversed(steps):
        value = {step: value} if isinstance(step, str) else [None] * step + [value]
    path = JsonPath(steps, root=True)
    assert path.find(value) == leaf
    assert JsonPath((*steps, "more")).find(value) is MISSING


@pytest.mark.parametrize(
    "text",
    [
        *("", ".", "..", "a.", ".a", "a..b", "$.", "$a", "a b", "a[", "a[]", "a[-1]", "a[01]", "a[1", "a]", "a['b']"),
        *(
            'a["b]',
            'a["b"',
            'a["b\\n"]',
            "a[*]",
            "a.*.b",
            "*",
            "a*",
            "@",
            "@Row",
            "@row.x",
            "@1",
            "a.0",
            "ä",
            "a[9999999]",
        ),
        *("a.*", "$.*", "a\n", "a.b\x00", "a" * 501, "a" + ".a" * 40),
    ],
)
def test_what_is_no_path(text: str) -> None:
    with pytest.raises(PathError):
        parse_path(text)


@pytest.mark.parametrize(
    ("value", "found"), [({"a": None}, MISSING), ({"a": []}, MISSING), ({"a": "b"}, MISSING), ([], MISSING)]
)
def test_nothing_is_below_null_or_a_value_of_another_kind(value: Any, found: Any) -> None:
    assert parse_path("a.b").find(value) is found
    assert parse_path("a[0]").find({"a": "text"}) is found
