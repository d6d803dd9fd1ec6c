"""Sentences are rendered from their parts, for an answer about the thing itself and for one about something else."""

from tracelake.dispatcher.why.answer import Sentence, reason


def test_a_reason_is_told_of_itself_or_by_name() -> None:
    templates = ("{It} waits.", "{Its} input waits.", "3 tasks {of_it} wait.")
    reasons = [reason("edge_held", Sentence(template)) for template in templates]
    assert [item.text for item in reasons] == ["It waits.", "Its input waits.", "3 tasks of it wait."]
    named = [item.about("d/j").text for item in reasons]
    assert named == ["d/j waits.", "d/j: its input waits.", "3 tasks of d/j wait."]


def test_a_sentence_without_its_subject_is_led_by_the_name() -> None:
    item = reason("pressure", "The queue of d/slow is full.")
    assert (item.text, item.about("d/j").text) == ("The queue of d/slow is full.", "d/j: The queue of d/slow is full.")


def test_values_are_not_read_as_templates() -> None:
    item = reason("edge_held", Sentence("{It} failed with {error}.", error="{It} {0} {missing}"))
    assert item.about("d/j").text == "d/j failed with {It} {0} {missing}."
    assert reason("failed", "It failed with {braces}.").text == "It failed with {braces}."
