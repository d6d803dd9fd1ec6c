"""The group commit by itself: the real calls, random callers, and a store that fails in every way.

Time is virtual (`virtual_loop.py`): a call that nobody will ever answer ends a test with `HangError`.
"""

import asyncio
from collections import Counter
from functools import partial
from importlib import import_module
from inspect import isabstract
from pkgutil import iter_modules
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.statemachine.group_model import KINDS, Fault, StoreModel, Traits, make_call, org
from tests.support.virtual_loop import HangError, run_virtually
from tracelake.dispatcher.engine import calls as calls_package
from tracelake.dispatcher.engine.calls.call import AnyCall, Call
from tracelake.dispatcher.engine.group_commit import BUSY_PATIENCE_SECONDS, SLOW_LANES, GroupCommit
from tracelake.dispatcher.engine.lanes import CallOutcome
from tracelake.errors import StoreUnavailableError, TraceError

WEIGHT = 256


class Step(NamedTuple):
    kind: str
    task: int
    org: int
    gap: float
    leaves: bool
    trouble: str


STEPS = st.lists(
    st.builds(
        Step,
        kind=st.sampled_from(KINDS),
        task=st.integers(1, 6),
        org=st.integers(0, 2),
        gap=st.sampled_from([0.0, 0.0, 0.0, 0.01, 0.3, 4.0]),
        leaves=st.sampled_from([False, False, False, True]),
        trouble=st.sampled_from(["", "", "", "", "", "poison", "slow", "locked", "contended"]),
    ),
    min_size=1,
    max_size=40,
)


@settings(max_examples=400, derandomize=True, deadline=None)
@given(
    steps=STEPS,
    max_batch=st.sampled_from([1, 2, 5, 128]),
    lanes=st.integers(1, 3),
    pauses=st.lists(st.sampled_from([0.0, 0.001, 0.06, 2.0]), min_size=1, max_size=5),
    faults=st.lists(st.sampled_from([Fault.NONE] * 8 + list(Fault)), min_size=1, max_size=12),
    busy=st.lists(st.sampled_from([0.0, 0.03, 1.0, 8.0, 1e9]), min_size=3, max_size=3),
)
def test_every_promise_of_the_group_commit(
    steps: list[Step], max_batch: int, lanes: int, pauses: list[float], faults: list[Fault], busy: list[float]
) -> None:
    store = StoreModel(max_batch, WEIGHT, pauses, faults, {org(number): until for number, until in enumerate(busy)})
    run_virtually(_drive(steps, store, lanes))


def _note_end(ends: list[int], number: int, _: object) -> None:
    ends.append(number)


async def _drive(steps: list[Step], store: StoreModel, lanes: int) -> None:
    group = GroupCommit(store.commit, max_batch=store.max_batch, lanes=lanes, max_weight=WEIGHT)
    calls: list[AnyCall] = []
    futures: list[asyncio.Future[CallOutcome]] = []
    ends: list[int] = []
    for number, step in enumerate(steps):
        trouble = {step.trouble: True} if step.trouble else {}
        call = store.add(make_call(step.kind, step.task, step.org), Traits(number, **trouble))
        calls.append(call)
        future = group.enqueue(call)
        future.add_done_callback(partial(_note_end, ends, number))
        futures.append(future)
        await asyncio.sleep(step.gap)
        if step.leaves:
            future.cancel()
    await group.close()
    assert not group.stalled(0.0)
    answers: list[Any] = await asyncio.gather(*futures, return_exceptions=True)

    done = Counter(store.committed)
    assert all(times == 1 for times in done.values()), "a call was committed twice"
    assert Counter(ends) == Counter(range(len(steps))), "every caller is answered exactly once"
    for number, (call, answer) in enumerate(zip(calls, answers, strict=True)):
        traits = store.traits[id(call)]
        busy_org = 0.0 if call.routing_org is None else store.busy_until[call.routing_org]
        beside = {other for numbers in store.transactions if number in numbers for other in numbers}
        met_fault = bool(beside & store.faults_met) or any(store.of(other).slow for other in beside)
        assert any(number in numbers for numbers in store.transactions) or busy_org, "an accepted call runs"
        if isinstance(answer, asyncio.CancelledError):
            assert steps[number].leaves
            assert done[number] or traits.poison or met_fault or busy_org, "leaving takes nothing back"
        elif isinstance(answer, StoreUnavailableError):
            assert met_fault or busy_org
            assert not done[number] or number in store.open_outcome
        elif isinstance(answer, TraceError) and answer.code == "internal":
            assert traits.poison or number in store.faults_met, "an error is blamed on nobody but its call"
        elif isinstance(answer, TraceError):
            assert answer.message == f"refusal {number}", "everybody gets its own refusal"
            assert done[number] == 1
        else:
            assert answer == ("answer", number), "everybody gets its own answer"
            assert done[number] == 1
    for task in {step.task for step in steps}:
        order = [number for number in store.committed if steps[number].task == task]
        assert order == sorted(order), "calls of one task run in the order they came"


def run_calls(store: StoreModel, *calls: AnyCall, lanes: int = 1) -> list[Any]:
    async def drive() -> list[Any]:
        group = GroupCommit(store.commit, max_batch=store.max_batch, lanes=lanes, max_weight=WEIGHT)
        answers: list[Any] = await asyncio.gather(*map(group.enqueue, calls), return_exceptions=True)
        await group.close()
        return answers

    return run_virtually(drive())


def model(*, max_batch: int = 128, pauses: tuple[float, ...] = (0.001,), **more: Any) -> StoreModel:
    return StoreModel(max_batch, WEIGHT, pauses, **more)


def add(store: StoreModel, kind: str, task: int, of_org: int = 0, **traits: Any) -> AnyCall:
    number = len(store.traits)
    return store.add(make_call(kind, task, of_org), Traits(number, **traits))


def _is_call(item: object) -> bool:
    return isinstance(item, type) and issubclass(item, Call) and not isabstract(item)


def test_every_call_declares_what_the_group_commit_needs() -> None:
    kinds = {type(make_call(kind, 1)) for kind in KINDS}
    modules = [import_module(f"{calls_package.__name__}.{info.name}") for info in iter_modules(calls_package.__path__)]
    real = {item for module in modules for item in vars(module).values() if _is_call(item)}
    assert kinds == real
    assert make_call("retry", 1, 2).routing_org == org(2)
    routing = {kind for kind in KINDS if make_call(kind, 1, 2).routing_org == org(2)}
    assert routing == {"events", "complete", "heavy", "retry"}
    assert {kind for kind in KINDS if make_call(kind, 1).urgent} == {"claim", "heartbeat"}


def test_callers_that_are_ready_share_one_batch() -> None:
    store = model()
    answers = run_calls(store, *(add(store, "heartbeat", number) for number in range(50)), lanes=2)
    assert [len(batch) for batch in store.transactions] == [50]
    assert [answer for answer in answers if isinstance(answer, tuple)] == [
        ("answer", number) for number in range(50) if number % 3 != 2
    ]


def test_a_batch_size_of_one_turns_gathering_off() -> None:
    store = model(max_batch=1)
    run_calls(store, *(add(store, "complete", number) for number in range(10)), lanes=2)
    assert store.transactions == [[number] for number in range(10)]


def test_a_batch_is_bounded_by_its_work() -> None:
    store = model()
    few = [add(store, "complete", number, readers_of(number)) for number in range(200)]
    run_calls(store, *few)
    assert all(sum(few[number].weight for number in batch) <= WEIGHT for batch in store.transactions)
    assert len(store.transactions) > 200 / 128


def readers_of(number: int) -> int:
    return number % 3


def test_one_bad_call_never_fails_its_neighbours() -> None:
    store = model()
    answers = run_calls(store, *(add(store, "heartbeat", number, poison=number == 3) for number in range(10)))
    assert [len(batch) for batch in store.transactions] == [10] + [1] * 10
    assert {number for number, answer in enumerate(answers) if getattr(answer, "code", "") == "internal"} == {3}


def test_a_statement_that_takes_too_long_is_503_for_its_own_call_alone() -> None:
    store = model()
    answers = run_calls(store, *(add(store, "complete", number, slow=number == 4) for number in range(8)))
    refused = [number for number, answer in enumerate(answers) if isinstance(answer, StoreUnavailableError)]
    assert refused == [4]
    assert sorted(store.committed) == [0, 1, 2, 3, 5, 6, 7]


def test_repeating_after_timeouts_has_an_end() -> None:
    store = model()
    answers = run_calls(store, *(add(store, "complete", number, slow=True) for number in range(40)))
    assert {answer.status for answer in answers} == {503}
    assert len(store.transactions) < 6


@pytest.mark.parametrize("fault", [Fault.AWAY, Fault.LOST_AT_COMMIT])
def test_a_store_that_is_away_is_503_for_the_whole_batch_and_nothing_is_repeated(fault: Fault) -> None:
    store = model(faults=[fault])
    answers = run_calls(store, *(add(store, "complete", number) for number in range(10)))
    assert len(store.transactions) == 1
    assert {answer.status for answer in answers} == {503}


@pytest.mark.parametrize("fault", [Fault.BUG, Fault.CANCELED, Fault.TOO_FEW_ANSWERS])
def test_a_lane_survives_whatever_its_commit_raises(fault: Fault) -> None:
    store = model(faults=[fault, fault, fault, Fault.NONE])

    async def drive() -> None:
        group = GroupCommit(store.commit, max_batch=128, lanes=1, max_weight=WEIGHT)
        first = [group.enqueue(add(store, "complete", number)) for number in (1, 2)]
        answers: list[Any] = await asyncio.gather(*first, return_exceptions=True)
        assert {answer.code for answer in answers} <= {"internal", "store_unavailable"}
        while len(store.transactions) < 3:
            await asyncio.gather(group.enqueue(add(store, "complete", 1)), return_exceptions=True)
        assert await group.enqueue(store.add(make_call("complete", 1), Traits(300))) == ("answer", 300)
        await group.close()

    run_virtually(drive())


def test_after_close_nothing_is_accepted() -> None:
    store = model(max_batch=8)

    async def drive() -> None:
        group = GroupCommit(store.commit, max_batch=8, lanes=2, max_weight=WEIGHT)
        accepted = [group.enqueue(add(store, "heartbeat", number % 3)) for number in range(9)]
        await group.close()
        assert all(future.done() for future in accepted)
        assert len(store.committed) == 9
        with pytest.raises(StoreUnavailableError):
            await group.enqueue(add(store, "heartbeat", 1))
        await asyncio.gather(*accepted, return_exceptions=True)

    run_virtually(drive())


def test_a_slow_commit_beside_a_busy_org_loses_no_call() -> None:
    """The batch that is left after an org stepped aside takes longer than the pause of that org."""
    store = model(pauses=(0.001, 3.0), busy_until={org(0): 1.0})
    calls = [
        *(add(store, "complete", task, 0) for task in (1, 2)),
        *(add(store, "complete", task, 1) for task in (3, 4)),
    ]
    answers = run_calls(store, *calls)
    assert len(answers) == 4
    assert sorted(store.committed) == [0, 1, 2, 3]


def test_a_manual_retry_waits_for_a_deploy() -> None:
    store = model(busy_until={org(0): 2.0})
    answers = run_calls(store, add(store, "retry", 1, 0), add(store, "complete", 2, 1))
    assert answers == [("answer", 0), ("answer", 1)]
    assert len(store.transactions) < 30


def test_a_call_does_not_wait_for_a_busy_org_for_ever() -> None:
    store = model(busy_until={org(0): 1e9})

    async def drive() -> float:
        loop = asyncio.get_running_loop()
        group = GroupCommit(store.commit, max_batch=8, lanes=1, max_weight=WEIGHT)
        with pytest.raises(StoreUnavailableError, match="Repeat"):
            await group.enqueue(add(store, "retry", 1, 0))
        await group.close()
        return loop.time()

    assert BUSY_PATIENCE_SECONDS <= run_virtually(drive()) < 2 * BUSY_PATIENCE_SECONDS


def test_neither_a_busy_org_nor_its_heavy_calls_delay_anybody_elses_heartbeat() -> None:
    """Org 0 is being deployed, org 1 sends work that takes minutes, some rows are held: the others go on."""
    store = model(busy_until={org(0): 1e9})

    async def commit(calls: Any, *, patient: bool) -> list[CallOutcome]:
        if patient:
            assert {call.routing_org for call in calls} in ({org(1)}, {org(2)}, {None})
        if any(call.routing_org == org(1) for call in calls) and patient:
            await asyncio.sleep(300)
        return await store.commit(calls, patient=patient)

    async def drive() -> None:
        group = GroupCommit(commit, max_batch=128, lanes=1, max_weight=WEIGHT)
        parked = [group.enqueue(add(store, "complete", 100 + number, 0)) for number in range(5)]
        heavy = [group.enqueue(add(store, "heavy", 200 + number, 1)) for number in range(5)]
        await asyncio.sleep(0.01)
        for round_number in range(20):
            others = [
                group.enqueue(add(store, kind, 300 + 10 * round_number + index, 2))
                for index, kind in enumerate(("heartbeat", "claim", "complete", "heavy"))
            ]
            await asyncio.gather(*others, return_exceptions=True)
            assert not any(future.done() for future in heavy)
        assert asyncio.get_running_loop().time() < BUSY_PATIENCE_SECONDS
        assert not any(future.done() for future in parked)
        await asyncio.gather(*parked, *heavy, return_exceptions=True)
        await group.close()

    run_virtually(drive())


def test_an_org_has_one_slow_lane_at_most() -> None:
    running: Counter[Any] = Counter()
    store = model()

    async def commit(calls: Any, *, patient: bool) -> list[CallOutcome]:
        assert patient
        key = calls[0].routing_org
        running[key] += 1
        assert running[key] == 1
        assert sum(running.values()) <= SLOW_LANES
        await asyncio.sleep(1)
        running[key] -= 1
        return await store.commit(calls, patient=patient)

    async def drive() -> None:
        group = GroupCommit(commit, max_batch=128, lanes=1, max_weight=WEIGHT)
        futures = [group.enqueue(add(store, "heavy", number, number % 3)) for number in range(12)]
        await asyncio.gather(*futures, return_exceptions=True)
        await group.close()

    run_virtually(drive())
    # Orgs took turns: none of them was last with everything.
    firsts = [numbers[0] % 3 for numbers in store.transactions[:3]]
    assert sorted(firsts) == [0, 1, 2]


@pytest.mark.parametrize(("heartbeat_of", "rests"), [(None, False), (0, False), (1, True)])
def test_an_org_rests_after_a_heavy_batch_while_another_one_calls(heartbeat_of: int | None, rests: bool) -> None:
    """And only that org: another one's heavy call takes the lane meanwhile."""
    store = model()
    begun: dict[int, float] = {}

    async def commit(calls: Any, *, patient: bool) -> list[CallOutcome]:
        if patient:
            begun[calls[0].task_id.int] = asyncio.get_running_loop().time()
            await asyncio.sleep(0.1)
        return await store.commit(calls, patient=patient)

    async def drive() -> None:
        group = GroupCommit(commit, max_batch=1, lanes=1, max_weight=WEIGHT)
        loop = asyncio.get_running_loop()
        futures = [group.enqueue(add(store, "heavy", number, 0)) for number in (1, 2)]
        await asyncio.sleep(0.05)
        if heartbeat_of is not None:
            await asyncio.wait([group.enqueue(add(store, "heartbeat", 3, heartbeat_of))])
        await asyncio.wait(futures[:1])
        after = loop.time()
        futures.append(group.enqueue(add(store, "heavy", 4, 1)))
        await asyncio.gather(*futures, return_exceptions=True)
        assert begun[4] == pytest.approx(after)
        assert (begun[2] - after > 0.15) is rests
        await group.close()

    run_virtually(drive())


def test_a_stuck_lane_is_noticed() -> None:
    stuck = asyncio.Event()

    async def commit(calls: Any, *, patient: bool) -> list[CallOutcome]:
        await stuck.wait()
        return [("answer", 0) for _ in calls]

    async def drive() -> None:
        group = GroupCommit(commit, max_batch=8, lanes=1)
        assert not group.stalled(0.0)
        waiting = group.enqueue(make_call("heartbeat", 1))
        await asyncio.sleep(50)
        assert not group.stalled(60)
        await asyncio.sleep(20)
        assert group.stalled(60)
        stuck.set()
        await waiting
        assert not group.stalled(0.0)
        await group.close()

    run_virtually(drive())


def test_a_call_that_nobody_answers_is_a_hang() -> None:
    async def wait() -> None:
        await asyncio.Event().wait()

    with pytest.raises(HangError):
        run_virtually(wait())
