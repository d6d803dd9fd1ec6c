"""A full queue downstream stops a follower of a chain on a real stack; afterwards it catches up without a gap."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.chain import ServedChain, serve_chain
from tests.support.real_stack import SHORT_TIMES, RealStack

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

FIRST, BEGIN, FORK, LAST, MOST = 900, 905, 902, 925, 3
"""First block, newest block at the beginning, first block that is replaced during the pause, newest block at the end;
how many tasks may wait."""
DAG = f"""
name: live
defaults: {{runtime: ecs_platform}}
jobs:
  - name: head
    activation: source
    source: {{kind: always_on}}
    operator: block_follower
    outputs: 3
    config: {{chain_id: 1337001, start: {FIRST}, batch_blocks: 1, poll_max_seconds: 0.2}}
  - name: each
    activation: reactive
    operator: noop
    runtime: by_hand
    execution_strategy: PerUpdate
    max_queue_depth: {MOST}
    inputs: [{{from: {{job: head}}}}]
publish:
  live_blocks: {{from: {{job: head}}, storage: postgres}}
  live_transactions: {{from: {{job: head, output_index: 1}}, storage: postgres}}
  live_logs: {{from: {{job: head, output_index: 2}}, storage: postgres}}
"""
LEASE = """
    SELECT t.lease_expires_at FROM tasks t JOIN jobs j USING (job_id) WHERE j.name = 'head' AND t.status = 'Running'"""
UNITS = """
    SELECT t.unit_start, t.unit_end, t.revision FROM tasks t JOIN jobs j USING (job_id)
    WHERE j.name = 'each' ORDER BY t.unit_end, t.task_id"""
TABLE = """
    SELECT t.relname FROM pg_class t JOIN pg_attribute a ON a.attrelid = t.oid
    WHERE t.relkind = 'r' AND t.relname LIKE 'dataset%' AND a.attname = 'parent_hash'"""


@pytest.fixture
def chain() -> Iterator[ServedChain]:
    with serve_chain(LAST + 1, head=BEGIN + 1) as served:
        yield served


class PressedStack(RealStack):
    @property
    def source(self) -> dict[str, Any]:
        (source,) = self.trace("sources")["sources"]
        told: dict[str, Any] = source
        return told

    def await_heartbeats(self, count: int) -> None:
        """Of the follower."""
        for _ in range(count):
            ((before,),) = self.sql(LEASE)
            self.wait_until(lambda before=before: [tuple(row) for row in self.sql(LEASE)] != [(before,)], "a heartbeat")  # type: ignore[misc]

    def finish_waiting(self) -> None:
        for task_id in self.tasks("live", "each", "queued"):
            self.finish(task_id, "Completed")

    def stored_blocks(self) -> list[tuple[int, str]]:
        data = self.home.data_dsn_file
        ((table,),) = self.sql(TABLE, dsn_file=data)
        statement = f"SELECT block_number, '0x' || encode(block_hash, 'hex') FROM \"{table}\" ORDER BY 1"
        return [tuple(row) for row in self.sql(statement, dsn_file=data)]


def test_a_full_queue_stops_the_follower_and_it_catches_up_without_a_gap(chain: ServedChain) -> None:
    stack = PressedStack(settings=SHORT_TIMES, variables={"TRACE_RPC_DEFAULT": chain.url})
    with stack.running():
        stack.deploy("live", DAG)
        stack.wait_until(lambda: stack.source["state"] == "stopped", "the full queue to stop the source")
        assert "live/each" in stack.source["because"]
        assert "stopped" in stack.shell("trace sources")
        assert len(stack.tasks("live", "each", "queued")) == MOST
        (full,) = [queue for queue in stack.trace("pressure")["queues"] if queue["state"] == "stopped"]
        assert full["depth"] >= MOST
        stack.await_heartbeats(2)  # by now its worker has heard of it

        former, requests = stack.stored_blocks(), chain.requests
        assert former[0][0] == FIRST
        chain.reorganise(FORK)
        chain.show(LAST + 1)
        stack.await_heartbeats(3)
        assert chain.requests == requests, "it reads nothing"
        assert stack.stored_blocks() == former, "it writes nothing"

        def has_caught_up() -> bool:
            stack.finish_waiting()
            source = stack.source
            return source["progress"]["stored"] == LAST and source["state"] == "running" and not source.get("kept")

        stack.wait_until(has_caught_up, "the head")
        expected = [(number, chain.block(number).block["hash"]) for number in range(FIRST, LAST + 1)]
        assert stack.stored_blocks() == expected
        stack.finish_waiting()
        units = [tuple(row) for row in stack.sql(UNITS)]
        assert len(set(units)) == len(units), "nothing is announced twice"
        assert sorted({first for first, last, _ in units if first == last}) == [number for number, _ in expected]
        again = {first for first, _, revision in units if revision}
        assert again == set(range(FORK, former[-1][0] + 1)), "what was replaced during the pause is computed again"
