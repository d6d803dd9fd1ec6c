"""Places that orgs share: in turns, with room for the others, and with an end to waiting."""

import asyncio

import pytest

from tracelake.errors import TraceError
from tracelake.http.fair_slots import FairSlots


class Crowd:
    """Callers of orgs; each holds its place until it is let go."""

    def __init__(self, slots: FairSlots) -> None:
        self.slots = slots
        self.entered: list[str] = []
        self.leave: dict[str, asyncio.Event] = {}

    def come(self, name: str) -> "asyncio.Task[None]":
        self.leave[name] = asyncio.Event()

        async def stay() -> None:
            async with self.slots.slot(name[0]):
                self.entered.append(name)
                await self.leave[name].wait()

        return asyncio.create_task(stay())

    async def settle(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)

    async def release(self, name: str) -> None:
        self.leave[name].set()
        await self.settle()


def test_orgs_take_turns() -> None:
    async def main() -> None:
        crowd = Crowd(FairSlots(1, per_org=1))
        tasks = [crowd.come(name) for name in ("a1", "a2", "a3", "b1", "b2", "c1")]
        await crowd.settle()
        for name in ("a1", "a2", "b1", "c1", "a3", "b2"):
            await crowd.release(name)
        assert crowd.entered == ["a1", "a2", "b1", "c1", "a3", "b2"]
        await asyncio.gather(*tasks)

    asyncio.run(main())


def test_one_org_never_has_every_place() -> None:
    async def main() -> None:
        crowd = Crowd(FairSlots(2, per_org=1))
        tasks = [crowd.come(name) for name in ("a1", "a2", "b1")]
        await crowd.settle()
        assert crowd.entered == ["a1", "b1"]
        await crowd.release("b1")
        assert crowd.entered == ["a1", "b1"]  # the free place is not a's
        await crowd.release("a1")
        await crowd.release("a2")
        await asyncio.gather(*tasks)

    asyncio.run(main())


def test_a_full_queue_refuses_its_own_org_alone() -> None:
    async def main() -> None:
        crowd = Crowd(FairSlots(1, per_org=1, waiting=1, retry_after_seconds=7))
        tasks = [crowd.come(name) for name in ("a1", "a2")]
        await crowd.settle()
        with pytest.raises(TraceError) as refused:
            async with crowd.slots.slot("a"):
                pass
        assert (refused.value.code, refused.value.details["retry_after_seconds"]) == ("rate_limited", 7)
        tasks.append(crowd.come("b1"))
        await crowd.settle()
        for name in ("a1", "a2", "b1"):
            await crowd.release(name)
        await asyncio.gather(*tasks)

    asyncio.run(main())


@pytest.mark.parametrize("waiting", [0, 1])
def test_a_refusal_leaves_nothing_behind(waiting: int) -> None:
    async def main() -> None:
        slots = FairSlots(1, per_org=1, waiting=waiting)
        for _ in range(3):
            async with slots.slot("a"):
                entering = asyncio.create_task(slots.slot("a").__aenter__())
                await asyncio.sleep(0)
                entering.cancel()
                await asyncio.gather(entering, return_exceptions=True)
        async with asyncio.timeout(5), slots.slot("b"):
            pass

    asyncio.run(main())


def test_who_goes_away_while_waiting_or_at_its_turn_costs_no_place() -> None:
    async def main() -> None:
        crowd = Crowd(FairSlots(1, per_org=1))
        first, second, third = (crowd.come(name) for name in ("a1", "a2", "b1"))
        await crowd.settle()
        second.cancel()
        crowd.leave["a1"].set()
        await asyncio.sleep(0)
        third.cancel()  # its turn came in the same round
        await crowd.settle()
        async with asyncio.timeout(5), crowd.slots.slot("c"):
            pass
        assert first.done()

    asyncio.run(main())
