"""A genesis block without a time, in a table that a follower writes: it counts with the block behind it."""

from tests.reorgs.support import HEAD
from tests.windows.support import WindowFlow

HOUR = 3600
NOW = 1_700_000_000 - 1_700_000_000 % HOUR
JOB = """  - {name: model, activation: reactive, operator: spark_sql, config: {query: SELECT 1 AS a},
     units: {by: time, grain: hour}, inputs: [{from: {job: head}}]}
publish:
  live: {from: {job: head}, storage: postgres}
  model: {from: {job: model}, storage: s3}
"""


def test_the_window_of_block_1_reads_block_0(windows: WindowFlow) -> None:
    windows.deploy(HEAD.format() + JOB)
    windows.harness.run(windows.harness.dispatcher.monitor.run_once())
    (source,) = windows.tasks("head", "Queued")
    lease = windows.claim(source["task_id"])
    windows.say(source["task_id"], lease, windows.event("live", "head", cursor=2, first=0, times=[0, NOW, NOW + HOUR]))
    windows.drain()
    (task,) = windows.tasks("model")
    assert task["unit"]["start"] == NOW
    assert [task["inputs"][0]["scope"][name] for name in ("start", "end")] == [0, 1]
    assert windows.pending() == [(NOW + HOUR, NOW + 2 * HOUR - 1, "input_not_passed")]


def test_a_write_of_the_genesis_alone_is_in_no_window(windows: WindowFlow) -> None:
    windows.deploy(HEAD.format() + JOB)
    windows.harness.run(windows.harness.dispatcher.monitor.run_once())
    (source,) = windows.tasks("head", "Queued")
    lease = windows.claim(source["task_id"])
    windows.say(source["task_id"], lease, windows.event("live", "head", cursor=0, first=0, times=[0]))
    assert windows.pending() == []
    windows.say(source["task_id"], lease, windows.event("live", "head", cursor=2, first=1, times=[NOW, NOW + HOUR]))
    assert [task["unit"]["start"] for task in windows.tasks("model")] == [NOW]
