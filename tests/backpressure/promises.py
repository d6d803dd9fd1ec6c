"""What must hold after every step of a random example, whatever was done: counters, levels, and who is stopped."""

from fractions import Fraction
from uuid import UUID

from tests.backpressure.shapes import Oracle, Shape, Version
from tests.backpressure.world import Look, PressedWorld
from tracelake.dispatcher.engine.pressure.levels import Level, Thresholds, next_level, share
from tracelake.dispatcher.engine.pressure.upstream import UpstreamDirectory, read_stops


class Promises:
    """The state of one example, and its comparison with the tables."""

    def __init__(self, world: PressedWorld, shape: Shape, version: Version) -> None:
        self.world, self.shape, self.version = world, shape, version
        self.known = [version]
        self.said: dict[str, list[str]] = {source.name: [] for source in shape.sources}
        self.announced: dict[str, set[str]] = {name: set() for name in shape.names}
        self.paused: set[str] = set()
        self.wanted_again: set[UUID] = set()
        """Tasks that a person retried. One cancelled before there was a threshold is counted a little later."""
        self.running: list[tuple[str, UUID]] = []
        world.turn(0)
        world.begin_with(shape, version)
        world.logged()
        self.before = self.look()

    def limited(self, name: str) -> bool:
        limits = self.version.of(name)
        return limits.depth is not None or limits.age is not None

    def levels(self, look: Look) -> dict[str, Level]:
        return {name: Level(row["level"]) for name, row in look.queues.items() if name not in self.version.without}

    def oracle(self, look: Look) -> Oracle:
        return Oracle(self.shape, self.version, self.levels(look), self.paused)

    def look(self) -> Look:
        """The tables, which must be in order whatever was done."""
        look = self.world.look()
        self.counters_are_right(look)
        self.levels_followed_the_rule(look)
        self.the_map_says_what_the_contract_says(look)
        self.before = look
        return look

    def counters_are_right(self, look: Look) -> None:
        for name, row in look.queues.items():
            queued = look.queued(name)
            assert row["depth"] == sum(task["counted"] for task in queued), name
            if row["max_depth"] is not None or row["max_age_seconds"] is not None:
                uncounted = {task["task_id"] for task in queued if not task["counted"]}
                assert uncounted <= self.wanted_again, f"{name}: a queued task is not counted"
            wanted_limits = self.version.of(name)
            if name not in self.version.without:
                assert (row["max_depth"], row["max_age_seconds"]) == (wanted_limits.depth, wanted_limits.age)

    def levels_followed_the_rule(self, look: Look) -> None:
        for row in self.world.logged():
            thresholds = Thresholds(row["max_depth"], row["max_age_seconds"])
            age = 0.0 if row["oldest"] is None else max(0.0, (row["at"] - row["oldest"]).total_seconds())
            # The row was read a moment before it was written.
            allowed = {next_level(Level(row["before"]), share(thresholds, row["depth"], age - ago)) for ago in (0, 0.2)}
            assert row["level"] in allowed, dict(row)
        for name, row in look.queues.items():
            if row["max_depth"] is not None:
                full = Fraction(row["depth"], row["max_depth"])
                assert full < 1 or row["level"] == Level.ALL, name
                assert full < Fraction(4, 5) or row["level"] >= Level.BULK, name
            if row["max_age_seconds"] is None:
                assert row["max_depth"] is not None or row["level"] == Level.NONE, name
                if row["max_depth"] is not None and 2 * row["depth"] < row["max_depth"]:
                    assert row["level"] == Level.NONE, name

    def the_map_says_what_the_contract_says(self, look: Look) -> None:
        oracle = self.oracle(look)
        found = self.world.harness.run(self.stopped())
        stopped = self.quiet_and_read(oracle)
        assert found - self.version.without == stopped
        for name, row in look.queues.items():
            producers = self.shape.job(name).inputs if name not in self.version.without else ()
            if row["level"]:
                bulk = {producer for producer in producers if self.version.of(producer).bulk}
                assert bulk <= stopped, f"a bulk producer of {name} goes on"

    def quiet_and_read(self, oracle: Oracle) -> set[str]:
        """A source that nobody reads is in no map; that a person paused it, its monitor knows."""
        read = {name for name in self.shape.names if self.shape.readers(name, self.version)}
        return {name for name in read if oracle.quiet(name)}

    async def stopped(self) -> set[str]:
        """By a map that was made just now."""
        names = self.world.names
        async with self.world.harness.dispatcher.ports.store.connection() as connection:
            upstream = await UpstreamDirectory().of(connection, self.world.org_id, 0)
            queues = {queue for reached in upstream.downstream.values() for queue in reached}
            stops = await read_stops(connection, queues, upstream.sources)
        return {name for node, name in names.items() if upstream.stopped_by(node, stops) is not None}
