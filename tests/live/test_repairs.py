"""`trace repair`: a person lets a source follow a reorganisation of final blocks."""

from typing import Any

import pytest

from tests.api.support import User
from tests.live.support import LiveFlow
from tracelake.errors import TraceError


def repair(live: LiveFlow, **body: int) -> Any:
    user = User(live.harness, live.org, "writer")
    reply = user.call("POST", "/v1/dags/live/jobs/head/repair", body)
    assert reply.status == 200, reply
    return reply.body


def test_the_next_attempt_may_follow_from_the_block_that_was_named(live: LiveFlow) -> None:
    live.begin()
    assert "repair" not in live.lease["task"]["config"]
    live.complete(live.run_id, live.lease, status="Failed", error_message="reorg_too_deep: no", retryable=True)
    reply = repair(live, from_block=17)
    assert (reply["dag"], reply["job"], reply["from_block"]) == ("live", "head", 17)
    assert reply["task_id"] == str(live.run_id)
    lease = live.claim(live.run_id)
    permission = lease["task"]["config"]["repair"]
    assert permission["from_block"] == 17
    assert 86_000 < permission["seconds"] <= 86_400
    assert lease["task"]["config"]["unit_blocks"] == 10, "the rest of the config is the job's"


def test_the_permission_ends_after_a_day(live: LiveFlow) -> None:
    live.begin()
    repair(live)
    live.complete(live.run_id, live.lease, status="Failed", error_message="no", retryable=True)
    live.harness.advance(25 * 3600)
    live.person("retry", live.run_id)
    assert "repair" not in live.claim(live.run_id)["task"]["config"]


def test_without_a_block_the_source_finds_it_and_each_call_is_another_permission(live: LiveFlow) -> None:
    live.begin()
    permissions = []
    for _ in range(2):
        assert "from_block" not in repair(live)
        for _ in range(2):
            live.complete(live.run_id, live.lease, status="Failed", error_message="no", retryable=True)
            live.harness.advance(3600)
            live.person("retry", live.run_id)
            live.lease = live.claim(live.run_id)
            permissions.append(live.lease["task"]["config"]["repair"])
    assert all("from_block" not in permission for permission in permissions)
    first, again, second, last = permissions
    assert first["permit_id"] == again["permit_id"] < second["permit_id"] == last["permit_id"]
    assert 3500 < first["seconds"] - again["seconds"] < 3700, "it ends a day after the call"


@pytest.mark.parametrize(
    ("job", "code"), [("src", "job_not_repairable"), ("copy", "job_not_repairable"), ("none", "job_not_found")]
)
def test_only_a_follower_into_live_datasets_is_repaired(live: LiveFlow, job: str, code: str) -> None:
    live.begin()
    with pytest.raises(TraceError) as refused:
        live.harness.run(live.harness.dispatcher.repairs.repair(live.actor, "live", job, 1))
    assert refused.value.code == code
