"""Random writers, keys, retries, repeats, orders, crashes, dead letters, replays and drops against a model in plain
Python: in the end the table is equal to it, row by row and with the columns that nobody declared."""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

import msgspec
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.sink.conftest import MakeFlow
from tests.sink.flow import BufferFlow
from tracelake.ports import Message

MOMENTS = (
    *("received", "fetched", "staging", "loading", "loaded", "committing", "staged", "merged"),
    *("committed", "announced", "rejected", "acked"),
)
PARTS = ("data", "answer", "objects", "dispatcher", "spark")
# A case takes a second: the one that was found is told as it is.
PHASES = tuple(phase for phase in Phase if phase is not Phase.shrink)
VALUES = st.none() | st.sampled_from(["a", "b", "c"])
ROWS = st.lists(st.fixed_dictionaries({"key": st.integers(0, 2), "value": VALUES}), max_size=3)
WRITES = st.tuples(ROWS, st.sampled_from(["left", "right"]), st.sampled_from(["plain", "wide", "twice", "retried"]))


@dataclass(frozen=True)
class Batch:
    publish_id: str
    number: int
    task_id: str
    rows: list[dict[str, Any]]
    wide: bool
    """It has a column that the table does not have from the beginning."""


class Machine(RuleBasedStateMachine):
    make: MakeFlow

    @initialize(on_conflict=st.sampled_from(["update", "nothing"]))
    def begin(self, on_conflict: str) -> None:
        self.flow: BufferFlow = self.make(on_conflict=on_conflict)
        self.flow.sink()
        self.published: dict[str, Batch] = {}
        self.discarded: list[Batch] = []
        """Of attempts that failed: sinks never take them."""
        self.dropped: set[str] = set()
        self.doomed: set[str] = set()
        """Those that a sink is to refuse when it comes to them: as long as the table is narrow."""
        self.wide = False

    # -- writers

    @rule(writes=st.lists(WRITES, min_size=1, max_size=3))
    def publish(self, writes: list[tuple[list[dict[str, Any]], str, str]]) -> None:
        for rows, job, how in writes:
            self._publish(rows, job, how)

    def _publish(self, rows: list[dict[str, Any]], job: str, how: str) -> None:
        wide = how == "wide" and bool(rows)
        if wide:
            rows = [row | {"memo": "m"} for row in rows]
        task_id, lease = self.flow.attempt(job)
        reply = self.flow.publish_by(task_id, lease, rows, record_count=len(rows))
        if how == "retried":  # what the first attempt published never becomes visible: the second does it all again
            self.discarded.append(Batch(reply["publish_id"], reply["publish_seq"], task_id, rows, wide))
            self.flow.flow.complete(task_id, lease, status="Failed", retryable=False)
            self.flow.flow.person("retry", UUID(task_id))
            lease = self.flow.flow.claim(task_id)
            reply = self.flow.publish_by(task_id, lease, rows)
        self._note(reply, rows, wide)
        if how == "twice":  # the answer was lost
            again = self.flow.publish_by(task_id, lease, None)
            assert again["duplicate"]
            assert again["publish_id"] in self.published
        self.flow.flow.complete(task_id, lease)

    def _note(self, reply: dict[str, Any], rows: list[dict[str, Any]], wide: bool) -> None:
        batch = Batch(reply["publish_id"], reply["publish_seq"], reply["task_id"], rows, wide)
        self.published[batch.publish_id] = batch
        if wide and not self.wide:
            self.doomed.add(batch.publish_id)

    # -- the queue and the sinks

    @precondition(lambda self: self.published)
    @rule(data=st.data())
    def deliver_again(self, data: st.DataObject) -> None:
        """A message too many: of anything that is, or was, under way."""
        batches = [*self.published.values(), *self.discarded]
        batch = data.draw(st.sampled_from(sorted(batches, key=lambda batch: batch.number)))
        rows = self.flow.harness.sql("SELECT * FROM buffer_publishes WHERE publish_id = $1", UUID(batch.publish_id))
        kept = dict(rows[0])
        body = {name: kept[name] for name in ("publish_id", "publish_seq", "org_id", "dataset_uuid", "dataset_version")}
        body |= {name: kept[name] for name in ("batch_uri", "size_bytes", "etag", "content_type", "record_count")}
        body |= {"kind": "buffer_batch", "producer": {"task_id": batch.task_id, "attempt": kept["attempt"]}}
        body["again"] = True
        message = Message(self.flow.dataset.queue, batch.publish_id, msgspec.json.encode(body))
        self.flow.harness.run(self.flow.harness.dispatcher.ports.queue.publish([message]))

    @rule(
        large=st.booleans(),
        batches=st.sampled_from([1, 1, 2, 64]),
        backwards=st.booleans(),
        death=st.none() | st.sampled_from(MOMENTS),
        away=st.dictionaries(st.sampled_from(PARTS), st.just(1), max_size=2),
        late=st.booleans(),
    )
    def sink(
        self, large: bool, batches: int, backwards: bool, death: str | None, away: dict[str, int], late: bool
    ) -> None:
        flow = self.flow
        flow.large, flow.batches, flow.deaths[:], flow.away = large, batches, [death] if death else [], dict(away)
        flow.relay()
        if backwards:  # and with it what a dead sink held
            flow.queue_sql(
                "UPDATE messages SET visible_at = now() - message_id * interval '1 millisecond' WHERE queue = $1",
                flow.dataset.queue,
            )
        flow.sink()
        flow.deaths.clear()
        flow.away.clear()
        if not late:  # otherwise what it held stays hidden while others go on
            flow.come_back()

    @precondition(lambda self: not self.wide)
    @rule()
    def grow(self) -> None:
        """Those that no sink has looked at yet are good now."""
        dead = self._dead()
        self.flow.deploy("name: memo, type: text")
        self.wide = True
        self.doomed &= dead

    # -- people

    @precondition(lambda self: self.doomed)
    @rule(data=st.data())
    def replay(self, data: st.DataObject) -> None:
        chosen = self._some_dead(data)
        if chosen:
            assert self.flow.replay(*chosen) == len(chosen)
            if self.wide:
                self.doomed -= set(chosen)

    @precondition(lambda self: self.doomed)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        chosen = self._some_dead(data)
        if chosen:
            assert self.flow.drop(*chosen) == len(chosen)
            self.dropped |= set(chosen)
            self.doomed -= set(chosen)

    def _some_dead(self, data: st.DataObject) -> list[str]:
        dead = sorted(self._dead(), key=lambda publish_id: self.published[publish_id].number)
        return data.draw(st.lists(st.sampled_from(dead), unique=True)) if dead else []

    def _dead(self) -> set[str]:
        dead = {str(letter["publish_id"]) for letter in self.flow.letters()}
        assert dead <= self.doomed, "only what is bad is dead"
        return dead

    # -- what holds

    @invariant()
    def nothing_is_told_that_is_not_so(self) -> None:
        if hasattr(self, "flow"):
            told = {unit.removeprefix("c:") for unit in self.flow.reader_units()}
            assert told <= {str(number) for number in self.flow.commits().values()}

    def teardown(self) -> None:
        if not hasattr(self, "flow"):
            return
        flow = self.flow
        flow.large, flow.batches = False, 64
        for _ in range(3):
            flow.come_back()
            flow.sink()
        assert self._dead() == self.doomed
        assert flow.open_batches() == 0
        taken = [batch for batch in self.published.values() if batch.publish_id not in self.doomed | self.dropped]
        commits = flow.commits()
        assert commits.keys() == {batch.number for batch in taken}
        model: dict[int, tuple[Any, ...]] = {}
        update = flow.on_conflict == "update"
        for batch in sorted(taken, key=lambda batch: batch.number, reverse=not update):
            numbered = list(enumerate(batch.rows, 1))
            for line, row in numbered if update else reversed(numbered):
                memo = (row.get("memo"),) if self.wide else ()
                hidden = (str(flow.org_id()), batch.task_id, batch.number, line, commits[batch.number])
                model[row["key"]] = (row["key"], row["value"], *hidden, *memo)
        names = ["key", "value", "org_id::text", "_task_id::text", "_publish_seq", "_line", "_commit_seq"]
        assert flow.rows(*names, *(["memo"] if self.wide else [])) == [model[key] for key in sorted(model)]
        units = flow.reader_units()
        assert len(units) == len(set(units)), "nobody is told twice"
        if commits:
            assert f"c:{max(commits.values())}" in units, "who follows the table hears of its last commit"


def test_the_table_is_the_models(make_flow: MakeFlow) -> None:
    class Bound(Machine):
        pass

    Bound.make = staticmethod(make_flow)
    run_state_machine_as_test(
        Bound, settings=settings(max_examples=16, stateful_step_count=10, deadline=None, phases=PHASES)
    )
