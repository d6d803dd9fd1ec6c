"""Errors of sixty lines: sentences have the first, cut where it is long, and a step names the log with the rest."""

from typing import Any

from tests.why.support import CHAIN, Situation, commands, said
from tracelake.cli.gaps import describe_open_work
from tracelake.dispatcher.why.answer import error_words
from tracelake.wire.why import WhyReason, WhyReply

FIRST = "ValueError: no price of the token"
LONG = "\n".join([FIRST, *(f'  File "prices.py", line {number}' for number in range(59))])


def fail(flow: Situation, task: Any) -> None:
    flow.complete(task, flow.claim(task), status="Failed", error_message=LONG, retryable=False)


def check_cut(reply: Any, code: str, task: Any) -> str:
    """The first line alone, once, and the log of the task; returns the sentence."""
    reason = said(reply, code)
    assert f"trace logs {task}" in commands(reason)
    assert "prices.py" not in str(reply)
    text: str = reason["text"]
    assert text.count(FIRST) == 1
    assert reply["summary"].count(FIRST) == 1
    return text


def test_the_words_of_an_error() -> None:
    assert error_words(LONG) == FIRST
    assert error_words(None) == ""
    assert error_words("\n  x \n y") == "x"
    words = error_words("a" * 900)
    assert len(words) == 600
    assert words.endswith("a ...")


def test_an_error_keeps_its_hint_and_is_cut_at_a_word() -> None:
    hint = (
        "check_failed: sums of volume: [CAST_INVALID_INPUT] The value 'abc' of the type \"STRING\" cannot be cast to "
        '"DECIMAL(38,0)" because it is malformed. Correct the value as per the syntax, or change its target type. Use '
        "`try_cast` to tolerate malformed input and return NULL instead. SQLSTATE: 22018. Nothing was committed."
    )
    assert error_words(hint) == hint
    words = error_words("committed " * 90)
    assert len(words) <= 600
    assert words.endswith("committed committed ...")


def test_of_a_task_a_job_a_held_input_and_a_dataset(flow: Situation) -> None:
    flow.deploy(CHAIN)
    flow.trigger("d", "src", cursor=1)
    task = flow.one("make")
    fail(flow, task)
    check_cut(flow.why_task(task), "failed", task)
    assert check_cut(flow.why_job("make"), "edge_held", task).endswith(f'The error: "{FIRST}".')
    reply = flow.why_dataset()
    check_cut(reply, "edge_held", task)
    assert said(reply, "upstream")["text"] == "The cause is d/make, 1 job upstream."


def test_of_failed_units(flow: Situation) -> None:
    flow.deploy(CHAIN)
    flow.trigger("d", "src", range={"start": 0, "end": 9})
    task = flow.one("make")
    fail(flow, task)
    assert "the first with" in check_cut(flow.why_job("make"), "tasks_failed", task)


def test_of_a_source(flow: Situation) -> None:
    flow.deploy(
        """
name: d
jobs:
  - {name: src, activation: source, source: {kind: always_on}, runtime: ecs_platform, operator: noop}
"""
    )
    flow.harness.run(flow.harness.dispatcher.monitor.run_once())
    run = flow.one("src")
    fail(flow, run)
    check_cut(flow.why_job("src"), "source_dead", run)


def test_units_that_differ_are_rows_that_are_missing() -> None:
    reason = WhyReason(code="units_differ", state="blocked", text="d/join: its inputs differ.")
    reply = WhyReply(kind="dataset", id="joined", state="blocked", summary="x", reasons=[reason])
    assert describe_open_work(reply) == (
        "joined is not complete: d/join: its inputs differ. `trace why joined` says when it is."
    )
