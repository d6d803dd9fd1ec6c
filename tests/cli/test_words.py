"""What people type and what they read: ranges, times, ages, and text that cannot play tricks."""

import unicodedata
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cli.samples import EVIL
from tracelake.cli.error_text import error_line
from tracelake.cli.options import parse_time
from tracelake.cli.text import ago, clean, clean_lines, compact, count, escape_json, moment, shortened
from tracelake.client.dag_documents import dag_name, name_of_file
from tracelake.client.ranges import parse_cursor, parse_range
from tracelake.errors import TraceError
from tracelake.wire.base import MAX_CURSOR
from tracelake.wire.jobs import BlockRange

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
cursors = st.integers(0, MAX_CURSOR)


def spelled(number: int, separator: str) -> str:
    return f"{number:_}".replace("_", separator)


@given(cursors, cursors, st.sampled_from(["", "_", ","]), st.sampled_from(["-", " - "]))
def test_every_range_can_be_spelled(first: int, second: int, separator: str, dash: str) -> None:
    start, end = sorted((first, second))
    text = f"{spelled(start, separator)}{dash}{spelled(end, separator)}"
    assert parse_range(text) == BlockRange(start=start, end=end)
    assert parse_cursor(spelled(start, separator)) == start


@given(st.text(max_size=30) | st.from_regex(r"[0-9_,\- .]{0,30}", fullmatch=True))
def test_whatever_is_typed_is_a_range_or_a_plain_refusal(text: str) -> None:
    try:
        found = parse_range(text)
    except ValueError:
        return
    assert 0 <= found.start <= found.end <= MAX_CURSOR
    assert text.isascii()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not a range"),
        ("5", "not a range"),
        ("5-", "not a range"),
        ("-5", "not a range"),
        ("1-2-3", "not a range"),
        ("a-b", "not a range"),
        ("_1-2", "not a range"),
        ("1__0-20", "not a range"),
        ("1_-20", "not a range"),
        ("٣-٤", "not a range"),
        ("1.5-2", "not a range"),
        ("9-3", "starts after its end"),
        (f"0-{MAX_CURSOR + 1}", "larger than"),
        ("0-" + "9" * 5000, "larger than"),
    ],
)
def test_what_is_not_a_range_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_range(text)


@pytest.mark.parametrize("text", ["", "x", "-1", "1.5", "1-2", "٣", "1e9"])
def test_what_is_not_a_cursor_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a number"):
        parse_cursor(text)


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("30s", NOW - timedelta(seconds=30)),
        ("5m", NOW - timedelta(minutes=5)),
        ("2h", NOW - timedelta(hours=2)),
        (" 7d ", NOW - timedelta(days=7)),
        ("2026-01-30", datetime(2026, 1, 30, tzinfo=UTC)),
        ("2026-01-30T10:00:00Z", datetime(2026, 1, 30, 10, tzinfo=UTC)),
        ("2026-01-30T10:00:00+02:00", datetime(2026, 1, 30, 8, tzinfo=UTC)),
    ],
)
def test_times_are_spans_or_iso(text: str, time: datetime) -> None:
    assert parse_time(text, NOW) == time


@pytest.mark.parametrize("text", ["", "m", "5", "5w", "-5m", "yesterday", "2026-13-01", "0001-01-01T00:00:00+10:00"])
def test_other_times_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="neither a span"):
        parse_time(text, NOW)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "now"),
        (5, "5s ago"),
        (119.7, "2m ago"),
        (185, "3m5s ago"),
        (599, "9m59s ago"),
        (600, "10m ago"),
        (3599, "1h ago"),
        (7300, "2h ago"),
        (200_000, "2d ago"),
        (86_399, "1d ago"),
        (-0.4, "now"),
        (-90, "in 1m30s"),
        (-119.9, "in 2m"),
    ],
)
def test_ages_are_short(seconds: float, text: str) -> None:
    assert ago(NOW - timedelta(seconds=seconds), NOW) == text


def test_no_time_is_no_text() -> None:
    assert ago(None) == moment(None) == ""
    assert moment(datetime(2020, 1, 1, tzinfo=UTC)).startswith("2020-01-01 00:00:00Z (")


@given(st.text(max_size=80))
def test_clean_text_has_no_tricks(text: str) -> None:
    for shown in (clean(text), shortened(text, 20)):
        assert not any(unicodedata.category(letter) == "Cc" for letter in shown)
        assert not any(
            unicodedata.bidirectional(letter) in ("RLO", "LRO", "RLE", "LRE", "RLI", "LRI") for letter in shown
        )
    assert len(shortened(text, 20)) <= 20
    assert clean(clean(text)) == clean(text)
    lines = clean_lines(text)
    assert not any(unicodedata.category(letter) == "Cc" and letter not in "\n\t" for letter in lines)


def test_tricks_are_spelled_out_and_plain_text_stays() -> None:
    assert clean(EVIL) == r"x\x1b[31m\x07[bold]y[/bold]\u202e\x9b2J"
    assert clean("Zürich 東京 🦀 [x]\nnext\tcolumn") == "Zürich 東京 🦀 [x] next column"
    assert clean_lines("a\n\tb\x1b") == "a\n\tb\\x1b"
    assert shortened("first\nsecond") == "first"
    assert compact({"a": "\x1b"}) == r'{"a": "\u001b"}'
    assert compact(None) == ""
    assert (count(1, "task"), count(2, "task"), count(0, "task")) == ("1 task", "2 tasks", "0 tasks")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("name: pools\njobs: []", "pools"),
        ("jobs:\n- name: other\n  inputs: [{name: x}]\nname: pools", "pools"),
        ("{jobs: {name: other}, name: pools}", "pools"),
        ("a: &x {name: other}\nb: *x\nname: 'pools'", "pools"),
        ("? [name, x]\n: name\nname: pools", "pools"),
        ("# first\n---\nname: pools\njobs: [}", "pools"),
        ("title: name\nname: pools", "pools"),
        ("name: Not A Name", None),
        ("name: [pools]", None),
        ("name:\n  name: pools", None),
        ("jobs: []", None),
        ("- name: pools", None),
        ("name", None),
        ("", None),
        ("\tname: x", None),
        ("\x00", None),
    ],
)
def test_the_name_of_a_document(text: str, name: str | None) -> None:
    assert dag_name(text.encode()) == name


@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_any_bytes_have_a_name_or_none(source: bytes) -> None:
    dag_name(source)
    assert dag_name(b"name: pools\n" + source) in ("pools", None)


@pytest.mark.parametrize(
    ("stem", "name"), [("pools", "pools"), ("My-Pools.v2", "my_pools_v2"), ("01_x", "x"), ("___", "dag"), ("Ä", "dag")]
)
def test_a_file_without_a_name_is_sent_under_its_own(stem: str, name: str) -> None:
    assert name_of_file(stem) == name


@given(st.text())
def test_json_has_no_tricks_and_means_the_same(text: str) -> None:
    shown = escape_json(msgspec.json.encode([text]).decode())
    assert msgspec.json.decode(shown) == [text]
    assert clean(shown) == shown


def test_json_shows_control_characters_as_escapes() -> None:
    shown = escape_json(msgspec.json.encode([EVIL]).decode())
    assert shown == r'["x\u001b[31m\u0007[bold]y[/bold]\u202e\u009b2J"]'


@pytest.mark.parametrize(
    ("code", "details", "remedy"),
    [
        ("role_forbidden", {"needed_role": "admin"}, "Use a token with the role admin."),
        ("rate_limited", {"retry_after_seconds": 1}, "Wait a second, then repeat the call."),
        ("rate_limited", {"retry_after_seconds": 31}, "Wait 31s, then repeat the call."),
        ("rate_limited", {}, "Wait a moment, then repeat the call."),
        ("rate_limited", {"retry_after_seconds": "soon"}, "Wait a moment, then repeat the call."),
        ("quota_deploys", {"retry_after_seconds": 1800}, "Wait 30m, or ask the platform's operator for more"),
        ("task_not_failed", {"status": "Running"}, "Check the task first; it is Running."),
    ],
)
def test_a_remedy_has_the_value_and_not_the_name_of_a_field(code: str, details: dict[str, Any], remedy: str) -> None:
    line = error_line(TraceError(code, **details))
    assert remedy in line
    assert "details." not in line
    assert "Retry-After" not in line
