"""Freshness of live datasets: whether the head of a chain moves, by commits and by the times of blocks."""

from typing import Any

import pytest

from tests.api.support import User
from tests.live.support import DAG, LiveFlow
from tests.support.dags import deploy
from tests.support.dispatcher import DispatcherHarness
from tracelake.errors import TraceError

CHECKS = "[{freshness: {max_age: 30m}}, {freshness: {max_age: 30m, of: data}, severity: warn}]"
CHECKED = DAG.replace("storage: live}", f"storage: live, checks: {CHECKS}}}")
CHAIN = """
name: checked
chains:
  - {name: eth, chain_id: 1, start: 0, runtime: ecs_platform, checks: [{freshness: {max_age: 5m, of: data}}]}
"""


def checks(harness: DispatcherHarness, org: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = User(harness, org).get("/v1/checks")["checks"]
    return rows


def test_a_head_that_stands_still_is_late(live: LiveFlow) -> None:
    live.harness.use_movable_clock()
    live.begin(CHECKED)
    live.append(20, 44)
    commits, blocks = checks(live.harness, live.org)
    assert (commits["name"], commits["state"]) == ("freshness", "passed")
    assert (blocks["name"], blocks["state"]) == ("freshness_data", "warned")
    assert blocks["data_at"].startswith("1970-01-01T00:07:20"), "block 44"
    live.harness.advance(1_900)
    assert [check["state"] for check in checks(live.harness, live.org)] == ["failed", "warned"]
    reasons = User(live.harness, live.org).get("/v1/why/dataset/blocks")["reasons"]
    assert [reason["code"] for reason in reasons].count("not_fresh") == 2
    live.append(45, 46)
    assert checks(live.harness, live.org)[0]["state"] == "passed"


def test_a_chain_has_one_check_of_its_blocks(harness: DispatcherHarness) -> None:
    """Three jobs write them."""
    deploy(harness, CHAIN)
    (check,) = checks(harness, "acme")
    assert (check["dataset"], check["expected"]) == ("blocks", "newest block at most 5m old")


def test_rows_of_a_chain_are_not_checked(harness: DispatcherHarness) -> None:
    with pytest.raises(TraceError) as refused:
        deploy(harness, CHAIN.replace("freshness: {max_age: 5m, of: data}", "not_null: author"))
    (first, *_) = refused.value.details["problems"]
    assert first.code == "check_operator"
    assert first.message == "Job `eth_head` runs `block_follower`, which writes no rows to check."
