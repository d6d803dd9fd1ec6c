"""Mistakes that a failed task would find, refused when the task is asked for."""

import itertools

import pytest

from tests.support.dispatcher import DispatcherHarness
from tests.windows.support import WindowFlow
from tracelake.errors import TraceError

_orgs = itertools.count()

DAG = """\
name: d
defaults: { runtime: ecs_platform }
jobs:
  - { name: src, activation: source, source: { kind: manual } }
  - name: blocks
    activation: reactive
    operator: decode_logs
    execution_strategy: PerPartition
    inputs: [{ from: { job: src } }]
publish:
  blocks: { from: { job: blocks }, storage: s3 }
"""


@pytest.fixture
def flow(harness: DispatcherHarness) -> WindowFlow:
    return WindowFlow(harness, f"early_{next(_orgs)}")


def test_a_range_that_cuts_across_committed_units_is_refused_with_them(flow: WindowFlow) -> None:
    flow.deploy(DAG)
    for start in (0, 500, 1000):
        flow.commit_source("d", "blocks", start, start + 499, "x")
    for start, end, named in ((250, 749, "0-499, 500-999"), (500, 509, "500-999"), (0, 1499, "0-499, 500-999, 1000")):
        with pytest.raises(TraceError, match="trigger_invalid") as refusal:
            flow.trigger("d", "blocks", range={"start": start, "end": end})
        assert f"{start}-{end} overlaps {named}" in refusal.value.message
        assert refusal.value.details["field"] == "range"
    assert flow.tasks("blocks", "Queued") == []
    assert flow.trigger("d", "blocks", range={"start": 500, "end": 999}).task_id is not None, "a unit as it is"
    assert flow.trigger("d", "src", range={"start": 1500, "end": 1999}).tasks, "and a new one beside them"
