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


def test_too_many_requests_halve_the_pace_and_answers_restore_it_slowly() -> None:
    clock = Clock()
    pace = Pace(clock=clock)
    for _ in range(21):
        pace.wait()
        clock.now += 0.05
    pace.slower()
    assert pace.rate is not None
    assert abs(pace.rate - 10.0) < 0.01, "half of the 20 a second that were asked"
    pace.slower()
    before = pace.rate
    pace.faster()
    assert before < pace.rate < before * 1.1


def test_it_never_grows_beyond_the_limit_nor_stops() -> None:
    pace = Pace(8.0, Clock())
    pace.slower()
    assert pace.rate == 4.0
    for _ in range(100):
        pace.faster()
    assert pace.rate == 8.0
    for _ in range(100):
        pace.slower()
    assert pace.rate == 0.2


def test_a_limit_below_the_slowest_pace_holds() -> None:
    pace = Pace(0.125, Clock())
    pace.slower()
    assert pace.rate == 0.125
