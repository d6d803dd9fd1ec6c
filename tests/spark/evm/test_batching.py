"""How many calls a request carries, on a clock that tests move."""

from tests.spark.evm.test_pace import Clock
from tracelake.spark.evm.batching import BatchSize


def test_a_batch_that_is_too_large_is_halved_and_grows_up_to_what_was_refused() -> None:
    clock = Clock()
    size = BatchSize(20, clock)
    size.shrink(20)
    assert size.current == 10
    for _ in range(200):
        size.answered(size.current)
    assert size.current == 19, "20 was refused"
    size.shrink(19, limit=7)
    assert size.current == 7
    for _ in range(200):
        size.answered(size.current)
    assert size.current == 7, "the node named it"
    clock.now += 301
    for _ in range(200):
        size.answered(size.current)
    assert size.current == 20


def test_too_many_calls_at_a_time_halve_it_for_a_while() -> None:
    clock = Clock()
    size = BatchSize(20, clock)
    size.slow(20, 12)
    assert size.current == 12, "what was answered"
    size.slow(12, 0)
    for _ in range(100):
        size.answered(size.current)
    assert size.current == 6
    clock.now += 61
    for _ in range(5):
        size.answered(size.current)
    assert 6 < size.current < 10, "it grows slowly"
    for _ in range(20):
        size.slow(size.current, 0)
    assert size.current == 1
    clock.now += 61
    for _ in range(100):
        size.answered(size.current)
    assert size.current == 20


def test_an_answer_that_did_not_arrive_halves_it_and_it_grows_back() -> None:
    size = BatchSize(20, Clock())
    for _ in range(10):
        size.halve(size.current)
    assert size.current == 1
    for _ in range(100):
        size.answered(size.current)
    assert size.current == 20


def test_without_batches_each_try_comes_later() -> None:
    clock = Clock()
    size = BatchSize(20, clock)
    pauses = []
    for _ in range(6):
        size.refuse(certain=False)
        began = clock.now
        while size.current == 1:
            clock.now += 1
            size.answered(1)
        pauses.append(clock.now - began)
    assert pauses == [2, 4, 8, 16, 32, 64]
    size.answered(20)
    size.refuse(certain=False)
    clock.now += 2
    assert size.current == 20, "after a batch that worked the pauses are short again"
    size.refuse(certain=True)
    clock.now += 299
    assert size.current == 1
    clock.now += 1
    assert size.current == 20


def test_failures_without_a_reason_are_followed_by_one_call_alone() -> None:
    clock = Clock()
    size = BatchSize(20, clock)
    size.strike(20)
    assert size.current == 20, "it may have been anything"
    size.answered(20)
    size.strike(20)
    size.strike(20)
    assert size.current == 1
    size.strike(1)
    assert size.current == 1, "the node is in trouble"
    size.answered(1)
    assert size.current == 1, "the batch was the reason"
    clock.now += 2
    assert size.current == 20
    size.strike(20)
    assert size.current == 1, "the second time one failure is enough"
    size.answered(1)
    clock.now += 3
    assert size.current == 1, "and the pause is longer"
