"""Explanations in the user API, `/v1/why/*`. Texts are for people; codes are stable, for programs."""

from typing import Literal

from tracelake.wire.base import Reply

WhyState = Literal["fine", "working", "waiting", "blocked"]
"""`fine`: nothing to do. `working`: in progress. `waiting`: it continues by itself when its condition is met.
`blocked`: it needs an action by a person, or a full queue to empty."""


class WhyReference(Reply, frozen=True, kw_only=True):
    kind: Literal["task", "job", "dataset", "version", "outbox"]
    id: str
    """The id of a task or row, `dag/job`, the name of a dataset, or `dag@number`."""


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
    """The id of a task, `dag/job`, or the name of a dataset."""
    state: WhyState
    """The state of the worst reason."""
    summary: str
    """A short paragraph: why, and what to do."""
    reasons: list[WhyReason]
    """The worst reason first."""
