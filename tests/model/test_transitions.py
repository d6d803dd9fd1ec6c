"""Every transition from every reachable snapshot: only drawn edges, only possible rows, and each edge is needed."""

from datetime import timedelta
from itertools import product
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.model.constraints import broken
from tests.model.walk import LEASE, START, Move, fresh, held, moves, reachable, shape
from tracelake.errors import TraceError
from tracelake.model.lifecycle import TRANSITIONS, NotClaimed, Verb
from tracelake.model.task import Outcome, Status, Task

LATER = START + timedelta(seconds=50_000)
LIMITS = list(product((1, 2, None), (None, 200)))
FINAL_WORDS = (Outcome.COMPLETED, Outcome.FAILED, Outcome.CANCELED)


def everything() -> list[tuple[Task, Move]]:
    return [
        (task, move)
        for max_attempts, timeout in LIMITS
        for task in reachable(max_attempts, timeout=timeout)
        for move in moves(task, timeout=timeout)
    ]


@pytest.fixture(scope="module")
def tried() -> list[tuple[Task, Move, "Task | NotClaimed | TraceError | None"]]:
    """Each reachable snapshot with each move and what came of it, both in time and long after every deadline."""
    return [
        (task, move, move.apply(task, now))
        for task, move in everything()
        for now in (START + timedelta(seconds=100), LATER)
    ]


Tried = list[tuple[Task, Move, "Task | NotClaimed | TraceError | None"]]


def test_the_walk_reaches_all_states(tried: Tried) -> None:
    assert {task.status for task, _, _ in tried} == set(Status)
    assert {task.outcome for task, _, _ in tried} == {None, *Outcome}
    assert {(task.status, task.cancel_requested) for task, _, _ in tried if task.cancel_requested} == {
        (Status.RUNNING, True),
        (Status.CANCELED, True),
    }
    assert any(task.held for task, _, _ in tried)


def test_only_edges_of_the_table_are_taken(tried: Tried) -> None:
    for task, move, result in tried:
        if isinstance(result, Task) and result is not task:
            assert (move.verb, task.status, result.status) in TRANSITIONS, (move.name, task)


def test_every_edge_of_the_table_is_reachable(tried: Tried) -> None:
    taken = {
        (move.verb, task.status, result.status)
        for task, move, result in tried
        if isinstance(result, Task) and result is not task
    }
    assert taken | {(Verb.CREATE, None, fresh(1).status)} == TRANSITIONS


def test_no_transition_makes_an_impossible_row(tried: Tried) -> None:
    for task, move, result in tried:
        assert not broken(task), task
        if isinstance(result, Task):
            assert not broken(result), (move.name, task, result)


def test_identity_and_limits_never_change(tried: Tried) -> None:
    for task, move, result in tried:
        if isinstance(result, Task):
            same = ["task_id", "org_id", "job_id", "node_id", "edge", "unit_key", "revision", "limit_keys"]
            if move.verb not in (Verb.RETRY, Verb.REVIVE) and not move.name.startswith("stop"):  # these add attempts
                same.append("max_attempts")
            assert [getattr(result, name) for name in same] == [getattr(task, name) for name in same]


def test_only_a_claim_starts_an_attempt(tried: Tried) -> None:
    for task, move, result in tried:
        if not isinstance(result, Task) or result is task:
            continue
        if move.verb is Verb.CLAIM:
            assert result.attempt == task.attempt + 1
            assert result.lease_token != task.lease_token
            assert task.status is Status.QUEUED
            assert not task.held
        else:
            assert (result.attempt, result.lease_token) == (task.attempt, task.lease_token)


def test_an_attempt_that_is_not_the_last_changes_nothing(tried: Tried) -> None:
    stale = [entry for entry in tried if entry[1].by is not None and entry[1].by != entry[0].attempt]
    assert stale
    for task, move, result in stale:
        assert isinstance(result, TraceError), (move.name, task)
        assert result.code == "fenced"
        assert result.details == {"attempt": task.attempt, "status": task.status.value}


def test_after_the_final_word_a_repeat_is_a_duplicate_and_a_heartbeat_is_fenced(tried: Tried) -> None:
    for task, move, result in tried:
        if move.by == task.attempt and task.attempt and task.outcome in FINAL_WORDS:
            if move.verb is Verb.COMPLETE:
                assert result is None, (move.name, task)
            else:
                assert isinstance(result, TraceError)
                assert result.code == "fenced"


def test_the_clock_alone_does_not_end_an_attempt(tried: Tried) -> None:
    """The late reply: whatever the clock made of the task, its last worker may still finish it."""
    late = [
        (task, move, result)
        for task, move, result in tried
        if task.outcome is Outcome.TIMEOUT and task.status is not Status.CANCELED and move.by == task.attempt
    ]
    assert {task.status for task, _, _ in late} == {Status.QUEUED, Status.FAILED}
    for task, move, result in late:
        if move.word is Outcome.COMPLETED:
            assert isinstance(result, Task), (move.name, task)
            assert result.status is Status.COMPLETED
            assert result.finished


def test_a_heartbeat_never_reaches_past_the_deadline(tried: Tried) -> None:
    for task, move, result in tried:
        if move.verb is not Verb.HEARTBEAT or task.deadline_at is None:
            continue
        if isinstance(result, Task):
            assert result.lease_expires_at is not None
            assert result.lease_expires_at <= task.deadline_at
    codes = {result.code for _, move, result in tried if move.verb is Verb.HEARTBEAT and isinstance(result, TraceError)}
    assert codes == {"fenced", "deadline_exceeded"}


def test_a_task_asked_to_stop_only_ever_ends_canceled(tried: Tried) -> None:
    for task, move, result in tried:
        if task.status is not Status.RUNNING or not task.cancel_requested:
            continue
        if isinstance(result, TraceError):
            assert result.code in ("cancel_requested", "fenced", "deadline_exceeded", "task_not_failed")
            if result.code == "cancel_requested":
                assert move.word is Outcome.COMPLETED
        elif isinstance(result, Task) and result is not task:
            assert result.status in (Status.RUNNING, Status.CANCELED), (move.name, task)
            assert result.cancel_requested


def test_a_finished_task_stays_so_unless_its_timed_out_worker_or_a_person_speaks(tried: Tried) -> None:
    for task, move, result in tried:
        if task.finished and isinstance(result, Task):
            if move.verb in (Verb.RETRY, Verb.SKIP):
                assert task.status in (Status.FAILED, Status.CANCELED)
                continue
            if move.verb is Verb.REVIVE:
                assert task.status is Status.CANCELED
                continue
            assert task.outcome is Outcome.TIMEOUT, (move.name, task)
            assert move.by == task.attempt


def test_a_retry_adds_attempts_and_never_resets_their_number(tried: Tried) -> None:
    seen = set()
    for task, move, result in tried:
        if move.verb is Verb.RETRY and isinstance(result, Task):
            assert (result.status, result.attempt, result.outcome) == (Status.QUEUED, task.attempt, task.outcome)
            more = None if task.max_attempts is None else task.attempt + 2
            assert result.max_attempts == (more if task.finished else task.max_attempts)
            seen.add(task.finished)
    assert seen == {True, False}


def test_a_failed_cursor_unit_holds_its_edge_until_it_is_skipped_or_tried_again() -> None:
    for task in reachable(2, timeout=None):
        unit = replace(task, node_id=UUID(int=9), edge=0, unit_key="c:7")
        final = task.status is Status.FAILED and task.next_retry_at is None
        assert unit.holds_edge == (final and task.skipped_at is None)
        for other in ({"edge": -1}, {"unit_key": "p:7"}, {"edge": None, "node_id": None, "unit_key": None}):
            assert not replace(unit, **other).holds_edge


def test_only_a_result_or_a_retry_undoes_a_skip(tried: Tried) -> None:
    """Also not a late heartbeat: the attempt that it brings back may still fail."""
    seen = set()
    for task, move, result in tried:
        if task.skipped_at is not None and isinstance(result, Task):
            undone = move.verb is Verb.RETRY or result.status is Status.COMPLETED
            assert (result.skipped_at is None) == undone, (move.name, task)
            seen.add((move.verb, result.status))
    assert (Verb.COMPLETE, Status.FAILED) in seen
    assert (Verb.HEARTBEAT, Status.RUNNING) in seen


def test_a_cancel_that_nobody_requested_is_a_failure_for_good(tried: Tried) -> None:
    seen = set()
    for task, move, result in tried:
        if move.word is Outcome.CANCELED and isinstance(result, Task) and not task.cancel_requested:
            assert (result.status, result.outcome, result.finished) == (Status.FAILED, Outcome.CANCELED, True)
            assert result.error
            seen.add(task.status)
    assert seen == {Status.RUNNING, Status.QUEUED, Status.FAILED}


def test_a_failure_is_final_exactly_when_attempts_or_patience_are_used_up(tried: Tried) -> None:
    seen = set()
    for task, move, result in tried:
        if not isinstance(result, Task) or task.cancel_requested or result.status is not Status.FAILED:
            continue
        if move.verb is Verb.EXPIRE:
            seen.add(result.finished)
            assert result.finished == (task.max_attempts == task.attempt), (move.name, task)
        if move.name.endswith("Failed False"):
            assert result.finished
    assert seen == {True, False}


def test_the_same_claim_id_gets_the_same_lease(tried: Tried) -> None:
    running = [(t, m, r) for t, m, r in tried if m.verb is Verb.CLAIM and t.status is Status.RUNNING]
    for task, move, result in running:
        if task.claim_id is not None and move.name == f"claim {task.claim_id}":
            assert result is task
        else:
            assert result is NotClaimed.ALREADY_RUNNING


def test_a_claim_that_is_refused_says_why(tried: Tried) -> None:
    reasons = {
        (task.status, task.finished, task.held): result
        for task, move, result in tried
        if isinstance(result, NotClaimed)
    }
    assert reasons == {
        (Status.QUEUED, False, True): NotClaimed.NOT_READY,
        (Status.RUNNING, False, False): NotClaimed.ALREADY_RUNNING,
        (Status.FAILED, False, False): NotClaimed.NOT_READY,
        (Status.FAILED, True, False): NotClaimed.FAILED,
        (Status.COMPLETED, True, False): NotClaimed.COMPLETED,
        (Status.CANCELED, True, False): NotClaimed.CANCELED,
    }


@settings(max_examples=200, derandomize=True, deadline=None)
@given(data=st.data(), max_attempts=st.sampled_from([None, 1, 2, 5]), timeout=st.sampled_from([None, 60, 500]))
def test_random_lives_keep_every_promise(data: st.DataObject, max_attempts: int | None, timeout: int | None) -> None:
    """Long lives with real durations, which the walk over shapes cannot have."""
    task, now = fresh(max_attempts), START
    results = 0
    for _ in range(data.draw(st.integers(1, 40), label="steps")):
        now += timedelta(seconds=data.draw(st.floats(0, 400), label="pause"))
        options = list(moves(task, timeout=timeout))
        move = options[data.draw(st.integers(0, len(options) - 1), label="move")]
        result = move.apply(task, now)
        if not isinstance(result, Task):
            continue
        assert not broken(result)
        if result is not task:
            assert (move.verb, task.status, result.status) in TRANSITIONS
        results += result.status is Status.COMPLETED and task.status is not Status.COMPLETED
        if result.status is Status.RUNNING:
            assert result.lease_expires_at is not None
            assert result.lease_expires_at <= now + timedelta(seconds=LEASE)
        task = result
        flipped = held(task)
        if flipped is not None and data.draw(st.booleans(), label="hold"):
            assert not broken(flipped)
            task = flipped
    assert results <= 1
    assert shape(task)
