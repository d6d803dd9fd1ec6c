"""Why the datasets of a chain are up to date while no unit is final: nothing is due for those who read final units."""

from typing import Any

import pytest

from tests.why.support import Situation, codes, said

CHAIN = """
name: d
defaults: {runtime: ecs_platform}
chains:
  - {name: chain, chain_id: 1, rpc: main, start: 0, publish: {blocks: blocks}}
"""
TABLE, SEALED = 0, 2


def follow(flow: Situation) -> Any:
    """Deploys the chain and claims the run of its follower."""
    flow.deploy(CHAIN)
    flow.harness.run(flow.harness.dispatcher.monitor.run_once())
    return flow.claim(flow.one("chain_head"))


def announce(flow: Situation, lease: Any, output_index: int, start: int, end: int) -> None:
    unit: dict[str, Any] = {"partition_key": f"{start}-{end}", "start": start, "end": end}
    if output_index == TABLE:
        unit |= {"first": start, "times": [10 * number for number in range(start, end + 1)], "revision": "1"}
    flow.say(flow.one("chain_head"), lease, flow.event("d", "chain_head", output_index, **unit))


def test_no_unit_is_final_yet(flow: Situation) -> None:
    lease = follow(flow)
    announce(flow, lease, TABLE, 0, 9)
    reply = flow.why_dataset("blocks")
    assert (codes(reply), reply["state"]) == (["fresh"], "fine")
    reply = flow.why_job("chain_compact")
    assert (codes(reply), reply["state"]) == (["nothing_due"], "fine")
    assert said(reply, "nothing_due")["text"] == (
        "Its input d__chain_head_2 has no event yet: d/chain_head is running, and nothing is due."
    )
    assert codes(flow.why_job("chain_history")) == ["nothing_due"], "through a job that has had no input"
    assert codes(flow.why_dataset("d__chain_head_2")) == ["nothing_due"]


def test_units_that_are_final_are_due(flow: Situation) -> None:
    lease = follow(flow)
    announce(flow, lease, TABLE, 0, 9)
    announce(flow, lease, SEALED, 0, 999)
    assert "tasks_ready" in codes(flow.why_dataset("blocks"))


@pytest.mark.parametrize("ended", [True, False])
def test_a_follower_that_says_nothing_or_failed_is_the_cause(flow: Situation, ended: bool) -> None:
    lease = follow(flow)
    if ended:
        announce(flow, lease, TABLE, 0, 9)
        flow.complete(flow.one("chain_head"), lease, status="Failed", error_message="no", retryable=False)
    reply = flow.why_dataset("blocks")
    assert codes(reply)[0] == ("source_dead" if ended else "input_empty")
    assert codes(flow.why_job("chain_compact")) == ["input_empty"]
