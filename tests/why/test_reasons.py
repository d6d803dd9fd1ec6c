"""The table of reasons: every one is documented, said somewhere, and shown by a test of a real situation."""

from pathlib import Path

import pytest
from tools.docs import ROOT

from tracelake.dispatcher import why
from tracelake.dispatcher.why.answer import answer, is_cause, reason
from tracelake.dispatcher.why.reasons import REASONS, reasons_markdown

CODE = "".join(path.read_text() for path in Path(why.__path__[0]).glob("*.py") if path.name != "reasons.py")
TESTS = "".join(
    path.read_text() for name in ("why", "windows", "checks") for path in (ROOT / "tests" / name).glob("test_*.py")
)


@pytest.mark.parametrize("code", REASONS)
def test_a_reason_is_said_shown_and_documented(code: str) -> None:
    kind = REASONS[code]
    assert f'"{code}"' in CODE, "nobody says it"
    assert f'"{code}"' in TESTS, "no test shows it"
    assert f"| `{code}` | {kind.state} | {kind.meaning} | {kind.advice} |" in reasons_markdown()
    for text in (kind.meaning, kind.advice):
        assert text[0].isupper()
        assert text.endswith(".")


def test_the_page_is_up_to_date() -> None:
    assert (ROOT / "docs/why.md").read_text() == reasons_markdown()


def test_the_worst_comes_first_and_makes_the_summary() -> None:
    found = [reason("tasks_running", "A runs."), reason("edge_held", "B is held."), reason("pressure", "C is full.")]
    reply = answer("job", "d/j", found)
    assert [item.code for item in reply.reasons] == ["edge_held", "pressure", "tasks_running"]
    assert reply.summary == "d/j: B is held. C is full. Retry or skip the task."
    assert reply.state == "blocked"


def test_what_lies_before_a_job_is_no_cause_of_its_own() -> None:
    assert not is_cause(reason("input_empty", "X."))
    assert not is_cause(reason("up_to_date", "X."))
    assert is_cause(reason("tasks_running", "X."))
