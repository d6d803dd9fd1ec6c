"""Background work leaves most of the time to live calls, and takes all of it when there are none."""

import asyncio

import pytest

from tracelake.dispatcher.engine.catch_up.pace import SHARE, BackgroundPace


@pytest.fixture
def rests(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    taken: list[float] = []

    async def sleep(seconds: float) -> None:
        taken.append(seconds)

    monkeypatch.setattr("tracelake.dispatcher.engine.catch_up.pace._sleep", sleep)
    return taken


def test_it_runs_at_full_speed_while_nobody_calls(rests: list[float]) -> None:
    background = BackgroundPace(lambda: 0)
    asyncio.run(background.rest(0.1))
    assert background.page(200) == 200
    assert rests == []


def test_beside_live_calls_it_takes_small_pages_and_its_share_of_the_time(rests: list[float]) -> None:
    calls = iter([3, 8, 8])
    background = BackgroundPace(lambda: next(calls))
    for _ in range(2):
        asyncio.run(background.rest(0.01))
        assert background.page(200) == 20
        assert background.page(1) == 1
        assert 0.01 / (0.01 + rests[-1]) == pytest.approx(SHARE)
    asyncio.run(background.rest(0.01))  # nobody has called since
    assert background.page(200) == 200
    assert len(rests) == 2


def test_a_page_that_waited_for_a_lock_is_not_followed_by_a_long_rest(rests: list[float]) -> None:
    background = BackgroundPace(lambda: 1)
    asyncio.run(background.rest(30.0))
    assert rests == [0.5]
