"""What tests of the follower share."""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from typing import ParamSpec, TypeVar
from uuid import UUID

from tests.follower.memory_store import MemoryStore, MemoryTables
from tests.follower.world import ChainWorld
from tracelake.follower.follow import BlockFollower, FollowOutcome
from tracelake.follower.nodes import ChainNode
from tracelake.follower.options import FollowOptions
from tracelake.wire.units import EventIn, StorageOut, TaskOutput

OUTPUTS = {
    table: TaskOutput(
        output_index=index,
        dataset_uuid=UUID(int=index + 1),
        dataset_version=UUID(int=index + 101),
        storage=StorageOut(kind="postgres"),
    )
    for index, table in enumerate(("blocks", "transactions", "logs"))
}


P = ParamSpec("P")
T = TypeVar("T")


class AtOnce(Executor):
    """Does at once what is submitted: what is read ahead is as old as it can be when it is used."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        done: Future[T] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except Exception as error:
            done.set_exception(error)
        return done


class Followed:
    """One follower on tables in memory, with the events of its first output."""

    def __init__(
        self, world: ChainWorld, nodes: Sequence[ChainNode], options: FollowOptions, tables: MemoryTables | None = None
    ) -> None:
        self.world = world
        self.tables = tables or MemoryTables()
        self.events: list[EventIn] = []
        attempt = self.tables.fence + 1
        self.store = MemoryStore(self.tables, attempt)
        self.follower = BlockFollower(
            self.store, nodes, OUTPUTS, options, attempt, self._emit, clock=lambda: world.now, ahead=AtOnce()
        )

    def _emit(self, events: Sequence[EventIn]) -> None:
        self.events += [event for event in events if event.dataset_uuid == OUTPUTS["blocks"].dataset_uuid]

    def run_until(self, done: Callable[[FollowOutcome], bool], limit: int = 100) -> FollowOutcome:
        for _ in range(limit):
            outcome = self.follower.run_once()
            self.world.now += 60.0
            if done(outcome):
                return outcome
        raise AssertionError(f"it ended with {outcome}")

    def run_to_head(self) -> None:
        self.run_until(lambda outcome: outcome.state == "at_head")

    @property
    def hashes(self) -> list[str]:
        return [link.hash for _, link in sorted(self.tables.links.items())]
