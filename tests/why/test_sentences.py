"""Sentences are rendered from their parts, for an answer about the thing itself and for one about something else."""

from tracelake.dispatcher.why.answer import reason


def test_a_reason_is_told_of_itself_or_by_name() -> None:
    reasons = [
        reason("edge_held", lambda it: f"{it.subject} waits."),
        reason("edge_held", lambda it: f"{it.possessive} input waits."),
        reason("edge_held", lambda it: f"3 tasks {it.of} wait."),
    ]
    assert [item.text for item in reasons] == ["It waits.", "Its input waits.", "3 tasks of it wait."]
    named = [item.about("d/j").text for item in reasons]
    assert named == ["d/j waits.", "d/j: its input waits.", "3 tasks of d/j wait."]


def test_a_sentence_without_its_subject_is_led_by_the_name() -> None:
    item = reason("pressure", "The queue of d/slow is full.")
    assert (item.text, item.about("d/j").text) == ("The queue of d/slow is full.", "d/j: The queue of d/slow is full.")


def test_values_are_not_read_as_templates() -> None:
    error = "{It} {0} {missing}"
    item = reason("edge_held", lambda it: f"{it.subject} failed with {error}.")
    assert item.about("d/j").text == "d/j failed with {It} {0} {missing}."
    assert reason("failed", "It failed with {braces}.").text == "It failed with {braces}."
