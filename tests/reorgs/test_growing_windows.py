"""Windows that are computed as a table grows (`when: updated`), and what a reorganisation makes of them."""

import random
from typing import Any

from tests.reorgs.live_chain import Dependant, LiveChain
from tests.reorgs.support import ReorgFlow
from tests.support.dispatcher import DispatcherHarness
from tracelake.model.dag import UnitGrid


class Pauses(random.Random):
    """The seconds between blocks, in their order."""

    def __init__(self, *seconds: int) -> None:
        super().__init__()
        self.seconds = list(seconds)

    def choice(self, _seq: Any) -> Any:
        return self.seconds.pop(0)


TWO_WAYS = """
name: two_ways
defaults: {runtime: ecs_platform}
jobs:
  - {name: by_tens, activation: reactive, operator: spark_sql, config: {query: SELECT 1 AS a},
     units: {by: blocks, size: 10, when: updated}, inputs: [{from: {dataset: live}}]}
  - {name: by_hour, activation: reactive, operator: spark_sql, config: {query: SELECT 1 AS a},
     units: {by: time, grain: hour, when: updated},
     inputs: [{from: {dataset: live}, by: timestamp}, {from: {job: by_tens}}]}
publish:
  by_tens: {from: {job: by_tens}, storage: s3}
  by_hour: {from: {job: by_hour}, storage: s3}
"""


def test_an_hour_awaits_the_units_of_blocks_that_a_reorganisation_moved_into_it(harness: DispatcherHarness) -> None:
    """The table knows the new times at once; the unit that the blocks are in still has those of the old chain."""
    hours = {"p:7200-10799", "p:10800-14399"}
    pauses = Pauses(300, *[12] * 9, 4_000, *[12] * 4, *[12] * 5, 4_000, 12)
    flow = ReorgFlow(harness, "moved", LiveChain(pauses, 1_000), ())
    flow.append(15)
    flow.deploy(TWO_WAYS)
    flow.settle()
    assert [block.time // 3_600 for block in flow.chain.blocks[8:]] == [2, 2, 3, 3, 3, 3, 3]
    former = flow.counts()
    event = flow.reorganise(7, 0)
    assert [block.time // 3_600 for block in flow.chain.blocks[8:]] == [2, 2, 2, 2, 2, 3, 3]
    flow.announce(event)
    while ready := flow.ready():  # hours as early as they are ready
        flow.end(*flow.start(max(ready, key=lambda item: item[0] == "by_hour")[1]))
        flow.drain()
    again = flow.counts() - former
    assert {unit: count for (job, unit), count in again.items() if job == "by_hour"} == dict.fromkeys(hours, 1)
    assert {unit for job, unit in again if job == "by_tens"} == {"p:1000-1009", "p:1010-1019"}


def test_a_window_that_grows_ends_where_its_table_does(harness: DispatcherHarness) -> None:
    """`integrity_check` would find a gap behind the newest block otherwise."""
    grid = UnitGrid(by="blocks", size=10, when="updated")
    flow = ReorgFlow(harness, "growing", LiveChain(random.Random(1), 1_003), [Dependant("growing_tens", grid)])
    scopes = []
    for blocks in (4, 1, 7):
        flow.append(blocks)
        for task in sorted(flow.tasks("growing_tens", "Queued"), key=lambda task: task["unit"]["start"]):
            started = flow.start(task["task_id"])
            scope = started[1]["task"]["inputs"][0]["scope"]
            scopes.append((scope["start"], scope["end"]))
            flow.end(*started)
    assert scopes == [(1_003, 1_006), (1_003, 1_007), (1_003, 1_009), (1_010, 1_014)]
