"""Random writers, keys, repeats, crashes and dead letters against a model: the table is equal to it, row by row."""

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from tests.sink.flow import BufferFlow
from tests.support.dispatcher import DispatcherHarness
from tests.support.postgres import TestCluster
from tracelake.wire.buffers import DeadBatchesRequest

_orgs = count(1)
MOMENTS = ("received", "committing", "committed", "announced", "rejected", "acked")
VALUES = st.none() | st.sampled_from(["a", "b", "c"])
ROWS = st.lists(st.fixed_dictionaries({"key": st.integers(0, 5), "value": VALUES}), max_size=4)


class Machine(RuleBasedStateMachine):
    make: Callable[[str, str], BufferFlow]

    @initialize(on_conflict=st.sampled_from(["update", "nothing"]))
    def begin(self, on_conflict: str) -> None:
        self.flow = self.make(f"org{next(_orgs)}", on_conflict)
        self.published: dict[int, list[dict[str, Any]]] = {}
        """Rows of every batch that can be taken as things are, by its number."""
        self.bad: dict[int, tuple[str, list[dict[str, Any]]]] = {}
        """Batches with a column that the table does not have."""
        self.dead: set[int] = set()
        self.wide = False

    @rule(rows=ROWS, job=st.sampled_from(["left", "right"]))
    def publish(self, rows: list[dict[str, Any]], job: str) -> None:
        reply = self.flow.publish(rows, job)
        self.published[reply["publish_seq"]] = rows

    @rule(rows=ROWS.filter(bool))
    def publish_more(self, rows: list[dict[str, Any]]) -> None:
        """With a column that is only there after the schema has grown."""
        wide = [row | {"memo": "m"} for row in rows]
        reply = self.flow.publish(wide)
        if self.wide:
            self.published[reply["publish_seq"]] = wide
        else:
            self.bad[reply["publish_seq"]] = (reply["publish_id"], wide)

    @rule(data=st.data())
    def sink(self, data: st.DataObject) -> None:
        death = data.draw(st.none() | st.sampled_from(MOMENTS))
        if death is not None:
            self.flow.deaths[:] = [death]
        self.flow.sink()
        self.flow.deaths.clear()
        self.flow.come_back()

    @precondition(lambda self: not self.wide)
    @rule()
    def grow(self) -> None:
        self.flow.deploy("name: memo, type: text")
        self.wide = True
        self._note_the_dead()
        # Those that no sink has looked at yet are good now.
        for number in [number for number in self.bad if number not in self.dead]:
            self.published[number] = self.bad.pop(number)[1]

    @rule()
    def replay(self) -> None:
        self._note_the_dead()
        self.flow.replay()
        if self.wide:
            for number in self.dead & self.bad.keys():
                self.published[number] = self.bad.pop(number)[1]
            self.dead.clear()

    @precondition(lambda self: self.bad)
    @rule()
    def drop(self) -> None:
        self._note_the_dead()
        dropped = self.flow.harness.run(
            self.flow.letters_of().drop(self.flow.flow.actor, DeadBatchesRequest(dataset="large"))
        )
        assert dropped.changed == len(self.dead)
        for number in self.dead:
            self.bad.pop(number)
        self.dead.clear()

    def _note_the_dead(self) -> None:
        self.dead = {letter["publish_seq"] for letter in self.flow.letters()}
        assert self.dead <= self.bad.keys(), "only what is bad is dead"

    def teardown(self) -> None:
        if not hasattr(self, "flow"):
            return
        for _ in range(3):
            self.flow.sink()
            self.flow.come_back()
        self._note_the_dead()
        assert self.dead == self.bad.keys()
        model: dict[int, tuple[Any, ...]] = {}
        for number in sorted(self.published, reverse=self.flow.on_conflict == "nothing"):
            rows = self.published[number]
            for row in rows if self.flow.on_conflict == "update" else reversed(rows):
                extra = (row.get("memo"),) if self.wide else ()
                model[row["key"]] = (row["key"], row["value"], *extra)
        names = ("key", "value", "memo") if self.wide else ("key", "value")
        assert self.flow.rows(*names) == sorted(model.values())
        open_ones = self.flow.harness.sql(
            "SELECT FROM buffer_publishes WHERE committed_at IS NULL AND dead_at IS NULL AND org_id = $1",
            self.flow.org_id(),
        )
        assert open_ones == []
        # Whoever follows the table is told of its last commit, and of none twice.
        units = self.flow.reader_units()
        assert len(units) == len(set(units))


@pytest.fixture
def make(cluster: TestCluster, state_dsn: str, queue_dsn: str, tmp_path: Path) -> Iterator[Any]:
    harness = DispatcherHarness.start(state_dsn, queue_dsn, tmp_path)
    data_dsn = cluster.fresh("data")
    yield lambda org, on_conflict: BufferFlow(harness, data_dsn, org, on_conflict)
    harness.stop()


def test_the_table_is_the_models(make: Any) -> None:
    class Bound(Machine):
        pass

    Bound.make = staticmethod(make)
    run_state_machine_as_test(Bound, settings=settings(max_examples=12, stateful_step_count=12, deadline=None))
