"""From reasons to an answer: sentences with codes and next steps, and one paragraph of the worst of them."""

from collections.abc import Iterable
from uuid import UUID

import msgspec

from tracelake.dispatcher.why.reasons import REASONS, Subject
from tracelake.wire.why import WhyReason, WhyReference, WhyReply, WhyState, WhyStep

_WORST: tuple[WhyState, ...] = ("blocked", "waiting", "working", "fine")
_IN_SUMMARY = 3


def reason(code: str, text: str, *steps: tuple[str, str], references: Iterable[tuple[str, object]] = ()) -> WhyReason:
    """`text` is a whole sentence. Steps are (purpose, command)."""
    return WhyReason(
        code=code,
        state=REASONS[code].state,
        text=text,
        steps=[WhyStep(purpose=purpose, command=command) for purpose, command in steps],
        references=[_reference(kind, ident) for kind, ident in references],
    )


def _reference(kind: str, ident: object) -> WhyReference:
    return WhyReference(kind=kind, id=str(ident))  # type: ignore[arg-type]  # one of the words that the wire type names


def about(name: str, item: WhyReason) -> WhyReason:
    """A reason of a job for an answer about something else, where "it" would be that: the job is named."""
    text = item.text
    if text.startswith("It "):
        text = f"{name} {text[3:]}"
    elif " of it " in text:
        text = text.replace(" of it ", f" of {name} ", 1)
    else:
        text = f"{name}: {text[0].lower() if text.startswith('Its ') else text[0]}{text[1:]}"
    return msgspec.structs.replace(item, text=text)


def is_cause(item: WhyReason) -> bool:
    """Something is the matter here, and not only before it."""
    return item.state != "fine" and not REASONS[item.code].upstream


def answer(subject: Subject, name: str, candidates: Iterable[WhyReason]) -> WhyReply:
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
        reasons=reasons,
    )


def retry_or_skip(task_id: UUID) -> tuple[tuple[str, str], tuple[str, str]]:
    return ("try it again", f"trace retry {task_id}"), ("or go on without it", f"trace skip {task_id}")
