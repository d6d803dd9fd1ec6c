"""The one UPDATE of a batch: it carries what differs, and nothing else."""

import re
from datetime import UTC, datetime, timedelta
from uuid import UUID

from msgspec import structs

from tracelake.dispatcher.engine.plan import StateChange
from tracelake.dispatcher.engine.tables.task_rows import update_statement
from tracelake.model.task import Outcome, Status, Task

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def running(number: int) -> Task:
    return Task(
        task_id=UUID(int=number),
        org_id=UUID(int=1),
        job_id=UUID(int=2),
        status=Status.RUNNING,
        attempt=1,
        max_attempts=3,
        lease_token=UUID(int=number + 100),
        lease_expires_at=NOW,
    )


def heartbeat(number: int) -> StateChange:
    task = running(number)
    return StateChange(task, structs.replace(task, lease_expires_at=NOW + timedelta(minutes=2)))


def completion(number: int, result: str | None = None) -> StateChange:
    task = running(number)
    ended = structs.replace(
        task, status=Status.COMPLETED, outcome=Outcome.COMPLETED, lease_expires_at=None, finished_at=NOW
    )
    return StateChange(task, ended, result)


def columns_of(statement: str) -> set[str]:
    clause = re.search(r"SET (.*?) FROM", statement, re.DOTALL)
    assert clause is not None
    return {part.split("=")[0].strip() for part in re.split(r", (?=\w+ =)", clause.group(1))}


def test_a_batch_of_heartbeats_writes_leases_alone() -> None:
    statement, arguments = update_statement([heartbeat(1), heartbeat(2)])
    assert columns_of(statement) == {"lease_expires_at"}
    assert arguments[4:] == [[NOW + timedelta(minutes=2)] * 2]


def test_a_mixed_batch_writes_every_column_in_which_one_of_its_tasks_differs() -> None:
    statement, arguments = update_statement([heartbeat(1), completion(2)])
    assert columns_of(statement) == {"status", "outcome", "lease_expires_at", "finished_at"}
    assert arguments[4] == [Status.RUNNING, Status.COMPLETED]
    assert arguments[0] == [UUID(int=1), UUID(int=2)]


def test_a_result_is_written_where_there_is_one() -> None:
    statement, arguments = update_statement([completion(1, "[1]"), completion(2)])
    assert "result" in columns_of(statement)
    assert arguments[-1] == ["[1]", None]
    assert "result" not in columns_of(update_statement([completion(1)])[0])


def test_a_change_of_nothing_still_compares_what_was_decided_on() -> None:
    task = running(1)
    statement, arguments = update_statement([StateChange(task, task)])
    assert "was_lease_token" in statement
    assert arguments == [[task.task_id], [Status.RUNNING], [1], [task.lease_token]]
