"""Trace contexts: what is read, what is written, and ids that follow from what they stand for."""

import string
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelake.dispatcher.tracing.context import (
    TraceContext,
    attempt_span,
    is_sampled,
    new_trace_id,
    parse,
    span_id_of,
    task_span,
    traceparent_of_attempt,
)

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
CONTEXTS = st.builds(
    TraceContext, st.integers(1, 2**128 - 1), st.integers(1, 2**64 - 1), st.booleans()
)  # fmt: skip
SLICES = st.tuples(st.integers(0, 60), st.integers(0, 60), st.text("-0123456789abcdefABCDEF \n\0é", max_size=4))


@given(CONTEXTS)
def test_what_is_written_is_read_again(context: TraceContext) -> None:
    assert parse(str(context)) == context


@given(CONTEXTS, SLICES)
def test_what_is_read_is_what_it_says(context: TraceContext, change: tuple[int, int, str]) -> None:
    """Anything near a traceparent: if it is read, then every digit of it counted."""
    first, last, text = change
    changed = str(context)[:first] + text + str(context)[max(first, last) :]
    found = parse(changed)
    if found is not None:
        version, trace_id, span_id, flags, *_ = changed.split("-")
        assert version != "ff"
        assert (found.trace_id, found.span_id) == (int(trace_id, 16), int(span_id, 16))
        assert found.sampled is bool(int(flags, 16) % 2)
        assert found.trace_id
        assert found.span_id
        assert set(changed[:55]) <= set(string.hexdigits.lower() + "-")


@given(st.text())
def test_no_text_breaks_it(text: str) -> None:
    assert parse(text) is None


@pytest.mark.parametrize(
    ("text", "sampled"),
    [
        (f"00-{TRACE}-{SPAN}-01", True),
        (f"00-{TRACE}-{SPAN}-00", False),
        (f"00-{TRACE}-{SPAN}-03", True),
        (f"00-{TRACE}-{SPAN}-02", False),
        (f"cc-{TRACE}-{SPAN}-01", True),
        (f"cc-{TRACE}-{SPAN}-01-what-comes-later", True),
    ],
)
def test_it_reads(text: str, sampled: bool) -> None:
    assert parse(text) == (int(TRACE, 16), int(SPAN, 16), sampled)


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "00",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE}-{SPAN}-01-",
        f"cc-{TRACE}-{SPAN}-01more",
        f"cc-{TRACE}-{SPAN}-01-" + "x" * 1000,
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f" 00-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01\n",
        f"00-{TRACE[:-1]}٣-{SPAN}-01",
        f"00_{TRACE}_{SPAN}_01",
    ],
)
def test_it_does_not_read(text: str | None) -> None:
    assert parse(text) is None


def test_ids_follow_from_what_they_stand_for() -> None:
    """Written down, because spans of one trace come from Dispatchers of several releases."""
    task = UUID(int=7)
    assert f"{task_span(task):016x}" == "27fea886867d5545"
    assert f"{attempt_span(task, 1):016x}" == "8c60b71687662ab5"
    assert attempt_span(task, 1) == attempt_span(str(task), 1)
    spans = {
        task_span(task),
        attempt_span(task, 1),
        attempt_span(task, 2),
        attempt_span(task, 12),
        task_span(UUID(int=8)),
    }
    assert len(spans) == 5
    assert span_id_of("a", "bc") != span_id_of("ab", "c")
    assert span_id_of("\ud800") != span_id_of("\ud801")


def test_an_attempt_goes_on_with_its_task() -> None:
    task, event = UUID(int=7), f"00-{TRACE}-{SPAN}-01"
    assert traceparent_of_attempt(event, task, 2) == f"00-{TRACE}-{attempt_span(task, 2):016x}-01"
    assert traceparent_of_attempt(event, task, 0) == f"00-{TRACE}-{task_span(task):016x}-01"
    assert traceparent_of_attempt(None, task, 1) is None


@given(st.integers(1, 2**128 - 1), st.floats(0, 1), st.floats(0, 1))
def test_a_larger_ratio_takes_all_that_a_smaller_one_takes(trace_id: int, one: float, other: float) -> None:
    assert is_sampled(trace_id, max(one, other)) >= is_sampled(trace_id, min(one, other))
    assert is_sampled(trace_id, 1.0)
    assert not is_sampled(trace_id, 0.0)


def test_the_ratio_is_a_share() -> None:
    assert sum(is_sampled(number << 60, 0.25) for number in range(16)) == 4
    assert len({new_trace_id() for _ in range(100)}) == 100
