"""From reasons to an answer: sentences with codes and next steps, and one paragraph of the worst of them."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias
from uuid import UUID

import msgspec

from tracelake.dispatcher.why.reasons import REASONS, Subject
from tracelake.wire.why import WhyReason, WhyReference, WhyReply, WhyState, WhyStep

_WORST: tuple[WhyState, ...] = ("blocked", "waiting", "working", "fine")
_IN_SUMMARY = 3
_ERROR_LENGTH = 600
"""Errors of Spark end with a hint."""

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


Sentence: TypeAlias = str | Callable[[Wording], str]
"""A sentence about something, or one that does not mention it."""


@dataclass(frozen=True, slots=True)
class Reason:
    """Why something does not go on, before it is known whether the answer is about that."""

    code: str
    sentence: Sentence
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
        return self.sentence(self.wording)

    def about(self, name: str) -> "Reason":
        """The same reason for an answer about something else, where "it" would be that."""
        return replace(self, wording=Wording.named(name))

    def to_wire(self) -> WhyReason:
        return WhyReason(
            code=self.code,
            state=self.state,
            text=self.text,
            steps=[WhyStep(purpose=purpose, command=command) for purpose, command in self.steps],
            references=[msgspec.convert({"kind": kind, "id": ident}, WhyReference) for kind, ident in self.references],
        )


def reason(code: str, sentence: Sentence, *steps: Step, references: Iterable[tuple[str, object]] = ()) -> Reason:
    return Reason(code, sentence, steps, tuple((kind, str(ident)) for kind, ident in references))


def is_cause(item: Reason) -> bool:
    """Returns whether the cause lies here, and not only upstream."""
    return item.state != "fine" and not REASONS[item.code].upstream


def answer(subject: Subject, name: str, candidates: Iterable[Reason], besides: Sequence[Reason] = ()) -> WhyReply:
    """Makes the answer of reasons: the worst first, those that are equally bad in the order they were found.

    `besides` are those that do not explain the first one; the summary tells one of them as such.
    """
    causes = sorted(candidates, key=_badness)
    reasons = sorted([*causes, *besides], key=_badness)
    worst = reasons[0]
    # Of those that matter as much as the worst; the rest is in the list.
    texts = [item.text for item in causes if item.state == worst.state][:_IN_SUMMARY]
    advice = REASONS[worst.code].advice
    if worst.state == "fine" and advice == "Nothing to do.":
        advice = ""
    aside = f"Besides: {besides[0].text}" if besides else ""
    return WhyReply(
        kind=subject,
        id=name,
        state=worst.state,
        summary=" ".join(part for part in (f"{name}: {texts[0]}", *texts[1:], advice, aside) if part),
        reasons=[item.to_wire() for item in reasons],
    )


def log_steps(task_id: object, error: str | None) -> tuple[Step, ...]:
    """Where the rest of an error is that a sentence has cut."""
    cut = error_words(error) != (error or "").strip()
    return (("see its log", f"trace logs {task_id}"),) if cut else ()


def _badness(item: Reason) -> int:
    return _WORST.index(item.state)


def error_words(error: str | None) -> str:
    """The first line of an error, for a sentence: a function's has a traceback, and the log has the rest."""
    first = (error or "").strip().partition("\n")[0].rstrip()
    if len(first) <= _ERROR_LENGTH:
        return first
    part = first[: _ERROR_LENGTH - 3]
    words = part.rpartition(" ")[0].rstrip()
    # A text without spaces, such as a path, is cut anywhere.
    return f"{words if len(words) > _ERROR_LENGTH // 2 else part[:-1]} ..."


def not_retried(*, final: bool) -> str:
    """Why no attempt follows a failed one; `final`: there could be one, and it would fail in the same way."""
    return "(not retried: another attempt would fail in the same way)" if final else "(no retries left)"


def retry_or_skip(task_id: UUID) -> tuple[Step, Step]:
    return ("try it again", f"trace retry {task_id}"), ("or go on without it", f"trace skip {task_id}")
