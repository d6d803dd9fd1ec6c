"""From reasons to an answer: sentences with codes and next steps, and one paragraph of the worst of them."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TypeAlias
from uuid import UUID

from tracelake.dispatcher.why.reasons import REASONS, Subject
from tracelake.wire.why import WhyReason, WhyReference, WhyReply, WhyState, WhyStep

_WORST: tuple[WhyState, ...] = ("blocked", "waiting", "working", "fine")
_IN_SUMMARY = 3

Step: TypeAlias = tuple[str, str]
"""Its purpose and a command."""


@dataclass(frozen=True, slots=True)
class Wording:
    """How sentences refer to what a reason is about: by a pronoun in an answer about it, else by its name."""

    subject: str = "It"
    possessive: str = "Its"
    of: str = "of it"
    lead: str = ""
    """Before a sentence that does not mention it."""

    @classmethod
    def named(cls, name: str) -> "Wording":
        return cls(name, f"{name}: its", f"of {name}", f"{name}: ")


class Sentence:
    """A sentence that mentions what it is about as `{It}`, `{Its}` or `{of_it}`, and its values by name."""

    def __init__(self, template: str, **values: object) -> None:
        self._template = template
        self._values = values

    def render(self, wording: Wording) -> str:
        words = {"It": wording.subject, "Its": wording.possessive, "of_it": wording.of}
        return self._template.format(**words, **self._values)


@dataclass(frozen=True, slots=True)
class Reason:
    """Why something does not go on, before it is known whether the answer is about that."""

    code: str
    sentence: str | Sentence
    steps: tuple[Step, ...] = ()
    references: tuple[tuple[str, str], ...] = ()
    wording: Wording = Wording()

    @property
    def state(self) -> WhyState:
        return REASONS[self.code].state

    @property
    def text(self) -> str:
        if isinstance(self.sentence, str):
            return self.wording.lead + self.sentence
        return self.sentence.render(self.wording)

    def about(self, name: str) -> "Reason":
        """The same reason for an answer about something else, where "it" would be that."""
        return replace(self, wording=Wording.named(name))

    def to_wire(self) -> WhyReason:
        return WhyReason(
            code=self.code,
            state=self.state,
            text=self.text,
            steps=[WhyStep(purpose=purpose, command=command) for purpose, command in self.steps],
            references=[_reference(kind, ident) for kind, ident in self.references],
        )


def reason(code: str, sentence: str | Sentence, *steps: Step, references: Iterable[tuple[str, object]] = ()) -> Reason:
    return Reason(code, sentence, steps, tuple((kind, str(ident)) for kind, ident in references))


def _reference(kind: str, ident: str) -> WhyReference:
    return WhyReference(kind=kind, id=ident)  # type: ignore[arg-type]  # one of the words that the wire type names


def is_cause(item: Reason) -> bool:
    """Something is the matter here, and not only before it."""
    return item.state != "fine" and not REASONS[item.code].upstream


def answer(subject: Subject, name: str, candidates: Iterable[Reason]) -> WhyReply:
    """The worst first; those that are equally bad in the order they were found."""
    reasons = sorted(candidates, key=lambda item: _WORST.index(item.state))
    worst = reasons[0]
    # Of those that matter as much as the worst; the rest is in the list.
    texts = [item.text for item in reasons if item.state == worst.state][:_IN_SUMMARY]
    advice = REASONS[worst.code].advice
    if worst.state == "fine":
        advice = "" if advice == "Nothing to do." else advice
    return WhyReply(
        kind=subject,
        id=name,
        state=worst.state,
        summary=" ".join([f"{name}: {texts[0]}", *texts[1:], advice]).strip(),
        reasons=[item.to_wire() for item in reasons],
    )


def retry_or_skip(task_id: UUID) -> tuple[tuple[str, str], tuple[str, str]]:
    return ("try it again", f"trace retry {task_id}"), ("or go on without it", f"trace skip {task_id}")
