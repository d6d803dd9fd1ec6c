"""What the service remembers of the Dispatcher's answers, and what it does without them."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tracelake.errors import TraceError
from tracelake.model.ids import new_id
from tracelake.query.control import INPUTS_SECONDS, ControlPlane
from tracelake.wire.query import QueryAuditRecord, QueryAuditReply, TaskInputsReply, TaskInputsRequest

FENCE = TaskInputsRequest(task_id=new_id(), attempt=1, lease_token=new_id())


class ScriptedDispatcher:
    """Answers calls in turn; an error is raised."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.calls = 0

    async def call(self, *_: Any, **__: Any) -> Any:
        self.calls += 1
        answer = self.answers.pop(0)
        if isinstance(answer, TraceError):
            raise answer
        return answer


def inputs(org: str = "acme") -> TaskInputsReply:
    return TaskInputsReply(org=org, relations=[])


def record() -> QueryAuditRecord:
    return QueryAuditRecord(
        run_id=new_id(), query_id=new_id(), org="acme", subject="ann", duration_ms=1, outcome="ok", sql_sha256="0" * 64
    )


def clock(*times: float) -> Callable[[], float]:
    moments = list(times)
    return lambda: moments.pop(0)


def test_inputs_are_kept_for_five_seconds_and_no_longer() -> None:
    calls = ScriptedDispatcher(inputs("first"), inputs("second"))
    control = ControlPlane(calls, monotonic=clock(100.0, 100.0 + INPUTS_SECONDS - 0.1, 100.0 + INPUTS_SECONDS))

    async def ask() -> list[str]:
        return [(await control.task_inputs(FENCE)).org for _ in range(3)]

    assert asyncio.run(ask()) == ["first", "first", "second"]
    assert INPUTS_SECONDS <= 5


def test_a_refusal_is_not_kept_and_takes_the_answer_before_along() -> None:
    calls = ScriptedDispatcher(inputs(), TraceError("fenced"), TraceError("store_unavailable"), inputs("again"))
    control = ControlPlane(calls, monotonic=clock(0.0, 10.0, 10.1, 10.2))

    async def ask() -> list[str]:
        outcomes = []
        for _ in range(4):
            try:
                outcomes.append((await control.task_inputs(FENCE)).org)
            except TraceError as error:
                outcomes.append(error.code)
        return outcomes

    assert asyncio.run(ask()) == ["acme", "fenced", "store_unavailable", "again"]


def test_a_refused_service_token_is_no_fault_of_the_caller() -> None:
    control = ControlPlane(ScriptedDispatcher(TraceError("credential_invalid")))
    with pytest.raises(TraceError, match="store_unavailable"):
        asyncio.run(control.relations("acme"))


def test_a_record_that_cannot_be_stored_now_is_stored_later() -> None:
    calls = ScriptedDispatcher(TraceError("store_unavailable"), QueryAuditReply(), QueryAuditReply())

    async def main() -> None:
        control = ControlPlane(calls)
        control.record_later(record())
        control.record_later(record())
        await control.close(seconds=10.0)

    asyncio.run(main())
    assert (calls.calls, calls.answers) == (3, [])
