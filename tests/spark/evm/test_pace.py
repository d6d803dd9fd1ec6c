"""The pace at which a node is asked, on a clock that tests move."""

from tracelake.spark.evm.pace import Pace


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_without_a_limit_nobody_waits() -> None:
    pace = Pace(clock=Clock())
    assert [pace.wait() for _ in range(100)] == [0.0] * 100
    assert pace.rate is None


def test_a_limit_spreads_requests() -> None:
    clock = Clock()
    pace = Pace(4.0, clock)
    assert [pace.wait() for _ in range(3)] == [0.0, 0.25, 0.5]
    clock.now += 10
    assert pace.wait() == 0.0, "time that passed unused is not saved up"
    assert pace.wait() == 0.25


def test_units_take_as_many_places_as_they_are() -> None:
    pace = Pace(10.0, Clock())
    assert [pace.wait(5), pace.wait(20), pace.wait(1)] == [0.0, 0.5, 2.5]


def test_a_refusal_makes_it_slower_than_what_was_answered_and_time_restores_it() -> None:
    clock = Clock()
    pace = Pace(clock=clock)
    for _ in range(20):
        clock.now += 0.05
        pace.answered()
    pace.slower()
    assert pace.rate is not None
    assert abs(pace.rate - 14.0) < 0.01, "less than the 20 a second that were answered"
    pace.slower()
    cut = pace.rate
    pace.answered()
    assert pace.rate == cut, "answers alone do not restore it"
    clock.now += 1
    pace.answered()
    assert cut < pace.rate < cut * 1.1
    clock.now += 10
    pace.answered()
    assert pace.rate > cut * 1.5


def test_requests_that_were_sent_before_the_last_cut_say_nothing_new() -> None:
    clock = Clock()
    pace = Pace(8.0, clock)
    sent_at = clock.now
    clock.now += 1
    pace.slower(sent_at)
    rate = pace.rate
    pace.slower(sent_at)
    assert pace.rate == rate
    clock.now += 1
    pace.slower(clock.now)
    assert pace.rate is not None
    assert rate is not None
    assert pace.rate < rate


def test_it_never_grows_beyond_the_limit_nor_stops() -> None:
    clock = Clock()
    pace = Pace(8.0, clock)
    pace.slower()
    assert pace.rate is not None
    assert pace.rate < 8.0
    clock.now += 1000
    pace.answered()
    assert pace.rate == 8.0
    for _ in range(100):
        pace.slower()
    assert pace.rate == 0.2


def test_a_limit_below_the_slowest_pace_holds() -> None:
    pace = Pace(0.125, Clock())
    pace.slower()
    assert pace.rate == 0.125
