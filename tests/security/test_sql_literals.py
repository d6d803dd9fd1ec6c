"""The parsers of the small languages inside of literals: they raise one error, and what they count is true."""

from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracelake.catalogue.sql.literals import formats, paths, patterns, schemas, words
from tracelake.catalogue.sql.literals.errors import LiteralError
from tracelake.catalogue.sql.literals.pattern_parser import (
    Anchor,
    Characters,
    PatternChoice,
    PatternNode,
    Repeat,
    parse_pattern,
)

PARSERS: dict[str, tuple[Callable[[str], object], str]] = {
    "schema": (schemas.check_schema, "abINTARRAYMAPSTRUCTDECIMAL<>(),:` 0138udt{}\"'é"),
    "type": (schemas.check_type, "intarraymapstructdecimal<>(),: 0138"),
    "pattern": (patterns.check_pattern, "ab.*+?|(){}[]^$\\dwsDbB0123,-&:=!<>iPé\n"),
    "like": (patterns.check_like, "ab%_\\é"),
    "datetime": (formats.check_datetime, "yMdHhmsSEaGVzOXxnTQqLDFkKp'[]{}#:-/. 0é"),
    "number format": (formats.check_number, "09.,GDMISPRL$ X"),
    "decimal format": (formats.check_decimal, "#0,.9E;%"),
    "char format": (formats.check_char, "09.,yMdhex'base64"),
    "printf": (formats.check_printf, "%sdf.0123456789-+ #,($tTnxé"),
    "JSON path": (paths.check_json_path, "$.[]*'ab0?()@,:\"\\"),
    "variant path": (paths.check_variant_path, "$.[]*'ab0?()@,:\"\\"),
    "JSON": (words.check_json, '{}[]":,ab01\\tru e'),
    "zone": (words.check_zone, "EuropeBrlin/UTC+-:0123_"),
    "replacement": (words.check_replacement, "ab$\\123{}"),
    "weekday": (words.check_weekday, "mondayMO"),
}


@pytest.mark.parametrize("name", PARSERS)
def test_any_text_is_accepted_or_refused_with_one_error(name: str) -> None:
    check, alphabet = PARSERS[name]

    @settings(max_examples=200, deadline=None)
    @given(st.one_of(st.text(alphabet=alphabet, max_size=40), st.text(max_size=20)))
    def read(text: str) -> None:
        with suppress(LiteralError):
            check(text)

    read()
    for sign in alphabet:
        read_long(check, sign)


def read_long(check: Callable[[str], object], sign: str) -> None:
    """One sign thousands of times: nothing recurses."""
    with suppress(LiteralError):
        check(sign * 9_000)


@pytest.mark.parametrize(
    "text",
    [
        "a INT",
        "INT",
        "a INT, `b` STRING NOT NULL",
        "struct<a: int, b: array<map<string, decimal(38, 0)>>>",
        "date DATE, array ARRAY<INT>",
        "a: bigint,b timestamp_ntz",
    ],
)
def test_schemas_that_people_write(text: str) -> None:
    schemas.check_schema(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a",
        "a INT,",
        "a INTERVAL",
        "a VARCHAR(3)",
        "a INT COMMENT 'x'",
        "a STRING COLLATE UTF8_LCASE",
        "a DECIMAL(39, 0)",
        "a DECIMAL(3, 4)",
        '{"type": "struct", "fields": []}',
        '"int"',
        "a udt",
        "a ARRAY<INT",
        "a `b c`",
        "a INT /* x */",
        "ARRAY<" * 20 + "INT" + ">" * 20,
        ", ".join(f"c{index} INT" for index in range(501)),
    ],
)
def test_schemas_that_are_refused(text: str) -> None:
    with pytest.raises(LiteralError):
        schemas.check_schema(text)


@pytest.mark.parametrize(
    "text",
    [
        r"^0x[0-9a-fA-F]{40}$",
        r"([0-9]+)",
        r".*foo.*",
        r"^\s+|\s+$",
        r"(\d{4})-(\d{2})-(\d{2})",
        r"(?i)transfer|approval",
        r"^(\w+)\s+(\w+)$",
        r"^[^,]*,[^,]*,[^,]*,[^,]*,[^,]*$",
        r"^(?:https?://)?([^/]+)/",
        r",",
        r"\|",
        r"[,;\s]+",
    ],
)
def test_patterns_that_people_write(text: str) -> None:
    patterns.check_pattern(text)


# --- what patterns cost


class _TooManySteps(Exception):
    pass


class _Backtracking:
    """Matches as Java does, greedily and by trying again, and counts the steps."""

    def __init__(self, text: str, limit: int) -> None:
        self._text = text
        self._limit = limit
        self.steps = 0

    def find(self, pattern: PatternChoice) -> bool:
        return any(self._match((pattern,), start, lambda _: True) for start in range(len(self._text) + 1))

    def _match(self, nodes: tuple[PatternNode, ...], place: int, then: Callable[[int], bool]) -> bool:
        self.steps += 1
        if self.steps > self._limit:
            raise _TooManySteps
        if not nodes:
            return then(place)
        node, rest = nodes[0], nodes[1:]

        def go_on(after: int) -> bool:
            return self._match(rest, after, then)

        if isinstance(node, Characters):
            is_match = place < len(self._text) and node.bits >> ord(self._text[place]) & 1
            return bool(is_match) and go_on(place + 1)
        if isinstance(node, Anchor):
            fits = {"^": place == 0, "$": place == len(self._text)}.get(node.sign, True)
            return fits and go_on(place)
        if isinstance(node, PatternChoice):
            return any(self._match(branch, place, go_on) for branch in node.branches)
        return self._repeat(node, place, 0, go_on)

    def _repeat(self, node: Repeat, place: int, count: int, go_on: Callable[[int], bool]) -> bool:
        def again(after: int) -> bool:
            return after > place and self._repeat(node, after, count + 1, go_on)

        if (node.high is None or count < node.high) and self._match((node.item,), place, again):
            return True
        return count >= node.low and go_on(place)


_ATOMS = st.sampled_from(["a", "a", "[ab]", ".", "b", "ab"])
_QUANTIFIERS = st.sampled_from(["", "*", "*", "+", "?", "{2}", "{0,3}", "{2,}"])


def _joined(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    sequences = st.lists(st.tuples(parts, _QUANTIFIERS).map("".join), min_size=1, max_size=5).map("".join)
    groups = st.tuples(st.lists(sequences, min_size=1, max_size=3).map("|".join), _QUANTIFIERS)
    return st.one_of(sequences, groups.map(lambda group: f"({group[0]}){group[1]}"))


_PATTERNS = st.tuples(
    st.sampled_from(["", "^"]), st.recursive(_ATOMS, _joined, max_leaves=8), st.sampled_from(["", "$", "c", "c$"])
).map("".join)


@settings(max_examples=120, deadline=None)
@given(_PATTERNS, st.sampled_from(["a" * 40, "ab" * 20, "a" * 39 + "b", "aab" * 13]))
def test_a_pattern_takes_no_more_steps_than_counted(text: str, subject: str) -> None:
    try:
        patterns.check_pattern(text)
    except LiteralError:
        return
    pattern = parse_pattern(text)
    degree, ways = patterns.pattern_cost(pattern)
    # A factor for the nodes of the pattern, and one power for walking over the text at all.
    limit = 3 * (len(text) + 2) * ways * (len(subject) + 1) ** (degree + 1)
    try:
        _Backtracking(subject, limit).find(pattern)
    except _TooManySteps:
        pytest.fail(f"{text!r} on {subject!r} takes more than {limit} steps")
