"""The ticker: cursors that never go back, without gaps while it runs."""

import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelake.catalogue import TickerConfig
from tracelake.wire.units import EventIn, StorageOut, TaskOutput
from tracelake.worker import CanceledError, NonRetryableError, OperatorContext
from tracelake.worker.ticker import Ticks, ticker

NOW = 1_800_000_000.0
OUTPUTS = [
    TaskOutput(output_index=index, dataset_uuid=uuid4(), dataset_version=uuid4(), storage=StorageOut(kind=kind))
    for index, kind in enumerate(("none", "s3", "postgres"))
]


class Clock(threading.Event):
    """A cancel flag that does not wait but moves the clock."""

    def __init__(self, now: float = NOW) -> None:
        super().__init__()
        self.now = now
        self.canceled = False
        self.waits: list[float] = []
        self.meanwhile: Callable[[], None] = lambda: None

    def __call__(self) -> float:
        return self.now

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.waits.append(timeout)
        self.now += timeout
        self.meanwhile()
        return self.canceled


def run(
    clock: Clock,
    config: TickerConfig,
    emit: Callable[[list[EventIn]], None],
    paused: threading.Event | None = None,
    outputs: list[TaskOutput] = OUTPUTS,
) -> None:
    context = OperatorContext(
        task_id=UUID(int=1),
        attempt=1,
        config=config,
        inputs=[],
        outputs=outputs,
        progress=lambda _text: None,
        cancel=clock,
        paused=paused or threading.Event(),
        emit=lambda events: emit(list(events)),
        files=lambda _item: [],
    )
    ticker(context, clock)


def test_each_tick_is_emitted_on_every_output_that_takes_events_alone() -> None:
    clock = Clock()
    said: list[EventIn] = []
    run(clock, TickerConfig(seconds=10, start=5, ticks=2), said.extend)
    first = 180_000_001 + 5
    none, _, postgres = OUTPUTS
    assert [(event.dataset_uuid, event.cursor) for event in said] == [
        (none.dataset_uuid, first),
        (postgres.dataset_uuid, first),
        (none.dataset_uuid, first + 1),
        (postgres.dataset_uuid, first + 1),
    ]
    assert clock.waits == [10.0, 10.0]


def test_what_came_due_while_an_emit_waited_is_made_up_for() -> None:
    clock, calls = Clock(), []

    def emit(events: list[EventIn]) -> None:
        calls.append([event.cursor for event in events])
        if len(calls) == 1:
            clock.now += 35  # the Dispatcher was away

    run(clock, TickerConfig(seconds=10, ticks=5), emit, outputs=OUTPUTS[:1])
    n = 180_000_000
    assert calls == [[n + 1], [n + 2, n + 3, n + 4], [n + 5]]


def test_nothing_is_emitted_while_paused_and_the_next_tick_is_the_next_one() -> None:
    clock, paused = Clock(), threading.Event()
    said: list[EventIn] = []
    paused.set()

    def meanwhile() -> None:
        assert not said or not paused.is_set()
        if clock.now >= NOW + 100:
            paused.clear()

    clock.meanwhile = meanwhile
    run(clock, TickerConfig(seconds=10, ticks=2), said.extend, paused, OUTPUTS[:1])
    assert [event.cursor for event in said] == [180_000_011, 180_000_012]


def test_a_cancel_stops_it_at_once_also_while_paused() -> None:
    for flag in (False, True):
        clock, paused = Clock(), threading.Event()
        clock.canceled = True
        if flag:
            paused.set()
        with pytest.raises(CanceledError):
            run(clock, TickerConfig(seconds=10), lambda _events: None, paused)
        assert len(clock.waits) == 1


def test_outputs_that_need_data_are_refused_for_good() -> None:
    with pytest.raises(NonRetryableError):
        run(Clock(), TickerConfig(seconds=10), lambda _events: None, outputs=OUTPUTS[1:2])


def steps() -> st.SearchStrategy[list[float]]:
    """How the clock moves between two looks, also back."""
    return st.lists(st.floats(-100, 1000), max_size=20)


@given(seconds=st.floats(0.01, 100), start=st.integers(0, 10**6), attempts=st.lists(steps(), min_size=1, max_size=4))
def test_cursors_never_go_back_and_have_no_gaps_within_an_attempt(
    seconds: float, start: int, attempts: list[list[float]]
) -> None:
    now = latest = NOW
    said: list[int] = []
    for moves in attempts:
        now = latest  # another worker, whose clock is right
        ticks = Ticks(seconds, start, now)
        mine: list[int] = []
        for move in moves:
            now += move
            latest = max(latest, now)
            while due := ticks.due(now, 1000):
                mine += due
            assert ticks.wait(now) >= 0
        assert list(mine) == list(range(mine[0], mine[0] + len(mine))) if mine else True
        said += mine
    assert all(a < b for a, b in pairwise(said))


@given(st.floats(0.01, 10_000), st.floats(1e9, 3e9))
def test_waiting_ends_with_a_tick(seconds: float, now: float) -> None:
    ticks = Ticks(seconds, 0, now)

    def looks() -> Iterator[range]:
        at = now
        while True:
            at += max(ticks.wait(at), 1e-6)  # the last bit of a float may be missing
            yield ticks.due(at, 10)

    found = next(due for due, _ in zip(looks(), range(10), strict=False) if due)
    assert len(found) == 1
