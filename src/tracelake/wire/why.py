"""The user API's explanations: `/v1/why/*`. Texts are for people; codes are stable and for programs."""

from typing import Literal

from tracelake.wire.base import Reply

WhyState = Literal["fine", "working", "waiting", "blocked"]
"""`fine`: nothing to do. `working`: it is being done. `waiting`: it goes on by itself when what it waits for comes.
`blocked`: it does not go on before somebody does something, or a full queue empties."""


class WhyReference(Reply, frozen=True, kw_only=True):
    kind: Literal["task", "job", "dataset", "version", "outbox"]
    id: str
    """A task's or row's id, `dag/job`, a dataset's name, `dag@number`."""


class WhyStep(Reply, frozen=True, kw_only=True):
    purpose: str
    command: str


class WhyReason(Reply, frozen=True, kw_only=True):
    code: str
    state: WhyState
    text: str
    steps: list[WhyStep] = []
    references: list[WhyReference] = []


class WhyReply(Reply, frozen=True, kw_only=True):
    kind: Literal["task", "job", "dataset"]
    id: str
    """As it is called: a task's id, `dag/job`, a dataset's name."""
    state: WhyState
    """Of the worst of the reasons."""
    summary: str
    """One short paragraph: why, and what to do about it."""
    reasons: list[WhyReason]
    """The worst first."""
