"""Identifiers, waiting times, and the one meaning of "current"."""

import time
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.model.walk import fresh, lease_of, reachable
from tests.support.configs import dispatcher_config
from tracelake.model.backoff import Backoff
from tracelake.model.ids import new_id, new_secret_id
from tracelake.model.task import Outcome, Status

RFC_9562 = "specified in RFC 4122"  # what the standard library calls the variant


def test_ids_are_time_ordered_version_7() -> None:
    before = time.time_ns() // 1_000_000
    ids = [new_id() for _ in range(1000)]
    after = time.time_ns() // 1_000_000
    assert {(item.version, item.variant) for item in ids} == {(7, RFC_9562)}
    stamps = [item.int >> 80 for item in ids]
    assert stamps == sorted(stamps)
    assert before <= stamps[0]
    assert stamps[-1] <= after
    assert len(set(ids)) == len(ids)


def test_ids_of_later_milliseconds_sort_after_earlier_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    for millis in (1, 2, 1_700_000_000_000, 2**48 - 1):
        monkeypatch.setattr(time, "time_ns", lambda millis=millis: millis * 1_000_000 + 999_999)
        made.append(new_id())
    assert made == sorted(made)
    assert [item.int >> 80 for item in made] == [1, 2, 1_700_000_000_000, 2**48 - 1]


def test_secret_ids_are_random_version_4() -> None:
    ids = [new_secret_id() for _ in range(1000)]
    assert {(item.version, item.variant) for item in ids} == {(4, RFC_9562)}
    assert len(set(ids)) == len(ids)
    everywhere, nowhere = 0, (1 << 128) - 1
    for item in ids:
        everywhere |= item.int
        nowhere &= item.int
    assert everywhere ^ nowhere == ((1 << 128) - 1) & ~(0xF << 76) & ~(0b11 << 62), "each free bit takes both values"


@given(tries=st.integers(-5, 10_000))
def test_retries_wait_between_half_a_minute_and_ten_minutes(tries: int) -> None:
    wait = dispatcher_config().retry.delay(tries)
    assert timedelta(seconds=30) <= wait <= timedelta(minutes=10)


@given(
    bounds=st.tuples(st.floats(0.01, 1000), st.floats(0.01, 1000)).map(sorted),
    tries=st.integers(1, 1000),
)
def test_waits_stay_within_their_bounds(bounds: list[float], tries: int) -> None:
    low, high = bounds
    assert low <= Backoff(low, high).seconds(tries) <= high


@pytest.mark.parametrize("tries", [1, 2, 3, 5, 6, 20])
def test_waits_are_spread_so_that_retries_do_not_march_in_step(tries: int) -> None:
    waits = {Backoff(30.0, 600.0).seconds(tries) for _ in range(50)}
    assert len(waits) > 40
    assert max(waits) - min(waits) > 5


def test_waits_grow_with_every_try_until_the_longest() -> None:
    backoff = Backoff(30.0, 600.0)
    floors = [min(backoff.seconds(tries) for _ in range(300)) for tries in range(1, 6)]
    assert floors == sorted(floors)
    assert floors[-1] > 8 * floors[0]


def test_a_backoff_without_room_waits_exactly_that_long() -> None:
    assert {Backoff(2.0, 2.0).seconds(tries) for tries in range(1, 20)} == {2.0}


def test_current_means_the_last_attempt_that_nobody_but_the_clock_has_ended() -> None:
    for task in reachable(3, timeout=None):
        for attempt in range(task.attempt + 2):
            expected = (
                attempt > 0
                and attempt == task.attempt
                and task.status not in (Status.COMPLETED, Status.CANCELED)
                and task.outcome not in (Outcome.COMPLETED, Outcome.FAILED, Outcome.CANCELED)
            )
            assert task.is_current(attempt, lease_of(attempt)) == expected, (task, attempt)
            assert not task.is_current(attempt, UUID(int=99))
            assert not task.is_current(attempt, None)
        assert not task.is_current(task.attempt + 1, task.lease_token)


def test_a_task_never_claimed_has_no_current_attempt() -> None:
    assert not fresh(3).is_current(0, None)
    assert not fresh(3).is_current(0, lease_of(0))


def test_attempts_left() -> None:
    task = fresh(2)
    assert task.may_retry
    assert replace(task, attempt=1).may_retry
    assert not replace(task, attempt=2).may_retry
    assert replace(task, attempt=10_000, max_attempts=None).may_retry


def test_finished_is_having_an_end_time() -> None:
    assert not fresh(1).finished
    assert replace(fresh(1), finished_at=datetime(2030, 1, 1, tzinfo=UTC)).finished
