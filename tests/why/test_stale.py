"""Readers in other DAGs after a rebuild: their outputs are marked until they were made again."""

from typing import Any

import pytest

from tests.support import dags
from tests.why.support import Situation as Flow
from tracelake.dispatcher.quotas.book import QuotaBook
from tracelake.dispatcher.views.datasets import list_datasets
from tracelake.dispatcher.why.dataset import why_dataset
from tracelake.errors import TraceError
from tracelake.wire.datasets import StaleRow

OWNER = """
name: owner
defaults: {runtime: ecs_platform}
jobs:
  - {name: src, activation: source, source: {kind: manual}}
  - {name: make, activation: reactive, operator: noop, inputs: [{from: {job: src}}]}
publish:
  out: {from: {job: make}, storage: postgres}
"""
READER = """
name: reader
defaults: {runtime: ecs_platform, execution_strategy: %s}
jobs:
  - {name: read, activation: reactive, operator: noop, inputs: [{from: {dataset: out}}]}
  - {name: after, activation: reactive, operator: noop, inputs: [{from: {dataset: seen}}]}
publish:
  seen: {from: {job: read}, storage: postgres}
"""
UNITS: dict[str, list[dict[str, Any]]] = {
    "PerPartition": [{"range": {"start": 0, "end": 9}}, {"range": {"start": 10, "end": 19}}],
    "PerUpdate": [{"cursor": 1}, {"cursor": 2}],
}


def stale(flow: Flow) -> dict[str, StaleRow]:
    org_id = flow.actor.org_id
    assert org_id is not None

    async def read() -> dict[str, StaleRow]:
        async with flow.harness.dispatcher.ports.store.connection() as connection:
            reply = await list_datasets(connection, org_id)
        return {row.name: row.stale for row in reply.datasets if row.stale is not None}

    return flow.harness.run(read())


def why(flow: Flow, name: str) -> dict[str, str]:
    org_id = flow.actor.org_id
    assert org_id is not None

    async def read() -> dict[str, str]:
        async with flow.harness.dispatcher.ports.store.connection() as connection:
            reply = await why_dataset(connection, org_id, QuotaBook(), name)
        return {item.code: item.text for item in reply.reasons}

    return flow.harness.run(read())


def rebuild(flow: Flow) -> Any:
    return flow.harness.run(flow.harness.dispatcher.actions.rebuild(flow.actor, "reader", "read"))


def rebuilt_owner(flow: Flow) -> None:
    """A version of the owner that makes `out` anew has taken over."""
    changed = OWNER.replace("operator: noop", "operator: sleep, config: {seconds: 0}")
    assert flow.deploy(changed).state == "Building"
    flow.drain()
    flow.run_all("make")
    assert dags.run_builds(flow.harness) >= 1
    flow.drain()
    flow.run_all("read", "after")


@pytest.mark.parametrize("strategy", list(UNITS))
def test_stale_outputs_are_marked_and_made_again(flow: Flow, strategy: str) -> None:
    flow.deploy(OWNER)
    flow.deploy(READER % strategy)
    for unit in UNITS[strategy]:
        flow.trigger("owner", "src", **unit)
        flow.run_all("make", "read", "after")
    assert stale(flow) == {}
    with pytest.raises(TraceError, match="not stale"):
        rebuild(flow)
    rebuilt_owner(flow)
    mark = stale(flow)["seen"]
    assert (mark.because, mark.job, mark.rebuilding) == ("out", "reader/read", False)
    assert set(stale(flow)) == {"seen"}
    assert why(flow, "seen")["outputs_stale"].startswith(
        "reader/read computed units of it from an older generation of out"
    )

    before = len(flow.tasks("read"))
    assert not rebuild(flow).duplicate
    assert rebuild(flow).duplicate
    flow.drain()
    assert stale(flow)["seen"].rebuilding
    assert "being recomputed" in why(flow, "seen")["outputs_stale"]
    again = flow.tasks("read", "Queued")
    assert (len(again), len(flow.tasks("read"))) == (2, before + 2), "each unit once"
    flow.pass_on(again[0]["task_id"])
    dags.run_builds(flow.harness)
    assert "seen" in stale(flow), "one of them is not made yet"
    flow.run_all("read", "after")
    dags.run_builds(flow.harness)
    assert stale(flow) == {}
    assert "outputs_stale" not in why(flow, "seen")


def test_a_reader_that_has_made_nothing_is_not_stale(flow: Flow) -> None:
    flow.deploy(OWNER)
    flow.trigger("owner", "src", cursor=1)
    flow.run_all("make")
    flow.deploy(READER % "PerUpdate")
    flow.deploy(OWNER.replace("operator: noop", "operator: sleep, config: {seconds: 0}"))
    dags.activate(flow.harness, "owner", 2, now=True, org=flow.org)
    assert flow.tasks("read") == []
    assert stale(flow) == {}
