"""The group commit by itself: random callers and a commit function that fails on purpose.

The loop is real, the store is not: `commit` yields a random number of times, refuses poisoned calls as a statement
would, and is away when told so.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracelake.db.transaction import RoutingBusyError
from tracelake.dispatcher.lifecycle import group as group_module
from tracelake.dispatcher.lifecycle.calls import Answer, Call, Context, Respond, Subject
from tracelake.dispatcher.lifecycle.group import GroupCommit
from tracelake.errors import StoreUnavailableError, TraceError


async def submit(group: GroupCommit, call: Call) -> Answer:
    """A caller that waits for its answer."""
    return await group.enqueue(call)


@dataclass(frozen=True)
class FakeCall:
    task_id: UUID
    number: int
    poison: bool = False
    refused: bool = False

    def decide(self, subject: Subject | None, context: Context) -> Respond:
        raise AssertionError("the fake commit decides")


@dataclass
class FakeStore:
    """Records what was committed, and checks each batch as it comes."""

    max_batch: int
    lanes: int
    pauses: list[int]
    away: set[int] = field(default_factory=set)
    batches: list[list[FakeCall]] = field(default_factory=list)
    committed: list[FakeCall] = field(default_factory=list)
    in_flight: set[UUID] = field(default_factory=set)
    running: int = 0

    async def commit(self, calls: Sequence[Call]) -> list[Answer]:
        batch = [call for call in calls if isinstance(call, FakeCall)]
        number = len(self.batches)
        self.batches.append(batch)
        tasks = [call.task_id for call in batch]
        assert 1 <= len(batch) <= self.max_batch
        assert len(set(tasks)) == len(tasks), "two calls of one task in a batch"
        assert not self.in_flight & set(tasks), "a task is in two batches at once"
        self.in_flight |= set(tasks)
        self.running += 1
        assert self.running <= self.lanes
        try:
            for _ in range(self.pauses[number % len(self.pauses)]):
                await asyncio.sleep(0)
            if number in self.away:
                raise StoreUnavailableError
            if any(call.poison for call in batch):
                raise ValueError("a statement failed")
            self.committed += batch
            return [TraceError("fenced") if call.refused else call.number for call in batch]
        finally:
            self.running -= 1
            self.in_flight -= set(tasks)


CALLS = st.lists(
    st.builds(
        lambda task, poison, refused, gap, leaves: (task, poison == 0, refused == 0, gap, leaves == 0),
        st.integers(0, 4),
        st.integers(0, 7),
        st.integers(0, 5),
        st.integers(0, 3),
        st.integers(0, 5),
    ),
    min_size=1,
    max_size=40,
)


@settings(max_examples=300, derandomize=True, deadline=None)
@given(
    planned=CALLS,
    max_batch=st.sampled_from([1, 2, 5, 128]),
    lanes=st.integers(1, 3),
    pauses=st.lists(st.integers(0, 5), min_size=1, max_size=5),
    away=st.sets(st.integers(0, 20), max_size=4),
)
def test_every_promise_of_the_group_commit(
    planned: list[tuple[int, bool, bool, int, bool]], max_batch: int, lanes: int, pauses: list[int], away: set[int]
) -> None:
    asyncio.run(_drive(planned, FakeStore(max_batch, lanes, pauses, away)))


async def _drive(planned: list[tuple[int, bool, bool, int, bool]], store: FakeStore) -> None:
    group = GroupCommit(store.commit, max_batch=store.max_batch, lanes=store.lanes)
    calls, waiting, hung_up = [], [], set()
    for number, (task, poison, refused, gap, leaves) in enumerate(planned):
        call = FakeCall(UUID(int=task), number, poison, refused)
        calls.append(call)
        waiting.append(asyncio.create_task(submit(group, call)))
        for _ in range(gap):
            await asyncio.sleep(0)
        if leaves:
            # It has submitted at the latest after this turn; leaving takes nothing back.
            await asyncio.sleep(0)
            waiting[-1].cancel()
            hung_up.add(number)
    await asyncio.sleep(0)  # the last ones submit too
    await group.close()
    answers: list[Any] = await asyncio.gather(*waiting, return_exceptions=True)

    alone = Counter(batch[0].number for batch in store.batches if len(batch) == 1)
    done = Counter(call.number for call in store.committed)
    assert all(times == 1 for times in done.values()), "a call was committed twice"
    for call, answer in zip(calls, answers, strict=True):
        tried = [batch for batch in store.batches if call in batch]
        assert 1 <= len(tried) <= 2, "accepted calls run, at most once more by themselves"
        met_outage = any(store.batches.index(batch) in store.away for batch in tried)
        if isinstance(answer, asyncio.CancelledError):
            assert call.number in hung_up
            assert done[call.number] or call.poison or met_outage, "who hangs up cancels not even its own call"
        elif isinstance(answer, StoreUnavailableError):
            assert met_outage
            assert not done[call.number]
        elif call.poison:
            assert isinstance(answer, TraceError)
            assert answer.code == "internal"
            assert alone[call.number], "a failed statement is blamed on a call only when it was alone"
            assert not done[call.number]
        elif call.refused:
            assert isinstance(answer, TraceError)
            assert answer.code == "fenced"
        else:
            assert answer == call.number, "everybody gets its own answer"
            assert done[call.number] == 1
    for task_id in {call.task_id for call in calls}:
        order = [call.number for call in store.committed if call.task_id == task_id]
        assert order == sorted(order), "calls of one task run in the order they came"


def run_group(max_batch: int, lanes: int, calls: list[FakeCall], **store: Any) -> tuple[FakeStore, list[Any]]:
    fake = FakeStore(max_batch, lanes, [3], **store)

    async def drive() -> list[Any]:
        group = GroupCommit(fake.commit, max_batch=max_batch, lanes=lanes)
        answers: list[Any] = await asyncio.gather(*(submit(group, call) for call in calls), return_exceptions=True)
        await group.close()
        return answers

    return fake, asyncio.run(drive())


def test_callers_that_are_ready_share_one_batch() -> None:
    calls = [FakeCall(UUID(int=n), n) for n in range(50)]
    store, answers = run_group(128, 2, calls)
    assert [len(batch) for batch in store.batches] == [50]
    assert answers == list(range(50))


def test_a_batch_size_of_one_turns_gathering_off() -> None:
    calls = [FakeCall(UUID(int=n), n) for n in range(10)]
    store, answers = run_group(1, 2, calls)
    assert [len(batch) for batch in store.batches] == [1] * 10
    assert answers == list(range(10))


def test_one_bad_call_never_fails_its_neighbours() -> None:
    calls = [FakeCall(UUID(int=n), n, poison=n == 3) for n in range(10)]
    store, answers = run_group(128, 1, calls)
    assert [len(batch) for batch in store.batches] == [10] + [1] * 10
    assert [answer for answer in answers if not isinstance(answer, TraceError)] == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    assert answers[3].code == "internal"


def test_a_store_that_is_away_is_503_for_the_whole_batch_and_nothing_is_repeated() -> None:
    calls = [FakeCall(UUID(int=n), n) for n in range(10)]
    store, answers = run_group(128, 1, calls, away={0})
    assert len(store.batches) == 1
    assert {answer.status for answer in answers} == {503}


def test_a_full_batch_leaves_the_order_of_a_busy_task_alone() -> None:
    busy, other = UUID(int=1), UUID(int=2)
    calls = [FakeCall(busy, 0), FakeCall(busy, 1), FakeCall(other, 2), FakeCall(busy, 3)]
    store, answers = run_group(1, 2, calls)
    assert [call.number for call in store.committed if call.task_id == busy] == [0, 1, 3]
    assert answers == [0, 1, 2, 3]


def test_after_close_nothing_is_accepted() -> None:
    async def drive() -> None:
        store = FakeStore(8, 2, [2])
        group = GroupCommit(store.commit, max_batch=8, lanes=2)
        accepted = [group.enqueue(FakeCall(UUID(int=n % 3), n)) for n in range(9)]
        await group.close()
        assert [await future for future in accepted] == list(range(9))
        with pytest.raises(StoreUnavailableError):
            await group.enqueue(FakeCall(UUID(int=1), 1))
        assert len(store.committed) == 9

    asyncio.run(drive())


@dataclass(frozen=True)
class OrgCall(FakeCall):
    org_id: UUID | None = None


def test_calls_of_an_org_that_is_being_moved_step_aside_and_hold_up_nobody() -> None:
    moved, other = UUID(int=1), UUID(int=2)
    busy = {moved}
    done: list[int] = []

    async def commit(calls: Sequence[Call]) -> list[Answer]:
        for call in calls:
            org_id = getattr(call, "org_id", None)
            if org_id in busy:
                raise RoutingBusyError(org_id)
        done.extend(call.number for call in calls if isinstance(call, FakeCall))
        return [call.number for call in calls if isinstance(call, FakeCall)]

    async def scenario() -> list[Answer]:
        group = GroupCommit(commit, max_batch=8, lanes=1)
        held = [group.enqueue(OrgCall(UUID(int=10), number, org_id=moved)) for number in (1, 2)]
        free = [group.enqueue(OrgCall(UUID(int=20 + number), number, org_id=other)) for number in (3, 4)]
        plain = group.enqueue(FakeCall(UUID(int=30), 5))
        await asyncio.gather(*free, plain)
        assert sorted(done) == [3, 4, 5]
        assert not any(future.done() for future in held)
        busy.clear()
        answers = await asyncio.gather(*held)
        await group.close()
        return list(answers)

    assert asyncio.run(scenario()) == [1, 2]
    assert done[3:] == [1, 2], "in the order they came"


def test_a_call_does_not_step_aside_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_module, "_ASIDE_SECONDS", 0.001)
    monkeypatch.setattr(group_module, "_PATIENCE_SECONDS", 0.01)

    async def commit(calls: Sequence[Call]) -> list[Answer]:
        raise RoutingBusyError(UUID(int=1))

    async def scenario() -> None:
        group = GroupCommit(commit, max_batch=8, lanes=1)
        with pytest.raises(StoreUnavailableError):
            await group.enqueue(OrgCall(UUID(int=10), 1, org_id=UUID(int=1)))
        await group.close()

    asyncio.run(scenario())
