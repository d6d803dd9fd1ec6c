"""How often nodes are asked for their head."""

import pytest

from tracelake.follower.links import ChainLink
from tracelake.follower.pace import PollPace


def link(number: int, timestamp: int) -> ChainLink:
    return ChainLink(number, "", "", timestamp)


def test_the_interval_follows_the_time_of_blocks_within_bounds() -> None:
    for block_seconds, wait in ((12, 3.0), (2, 0.5), (600, 15.0)):
        pace = PollPace(0.2, 15)
        for number in range(10):
            pace.observe(link(number, number * block_seconds))
        assert pace.next_wait() == wait


def test_chains_with_several_blocks_in_a_second_are_asked_at_the_shortest_interval() -> None:
    pace = PollPace(0.2, 15)
    for number in range(40):
        pace.observe(link(number, number // 4))
    assert pace.next_wait() == 0.2
    assert pace.block_seconds == pytest.approx(0.25, abs=0.05)


def test_an_overdue_block_makes_looks_rarer_until_the_next_one() -> None:
    pace = PollPace(0.2, 15)
    pace.observe(link(1, 0))
    pace.observe(link(2, 4))
    waits = [pace.next_wait() for _ in range(40)]
    assert waits[:12] == [1.0] * 12
    assert waits == sorted(waits)
    assert waits[-1] == 15
    pace.observe(link(3, 200))
    assert pace.next_wait() < 15 or pace.block_seconds == 100


def test_times_that_say_nothing_are_no_times() -> None:
    pace = PollPace(0.2, 15)
    assert pace.next_wait() == 1.0
    pace.observe(link(7, 100))
    pace.observe(link(7, 100))
    assert pace.block_seconds is None
    pace.observe(link(8, 50))
    assert pace.block_seconds is None
    assert pace.next_wait() == 1.0


def test_while_blocks_are_announced_a_look_without_one_is_a_precaution() -> None:
    pace = PollPace(0.2, 30)
    for number in range(10):
        pace.observe(link(number, number * 12))
    assert [pace.next_wait(announced=True), pace.next_wait(), pace.next_wait(announced=True)] == [18.0, 3.0, 18.0]
