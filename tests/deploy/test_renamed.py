"""A cutover may rename a dataset: what every Dispatcher hands out from then on has the new name."""

from uuid import UUID

from tests.deploy.support import Text, task
from tests.support.dags import deploy, job_id
from tests.support.dispatcher import DispatcherHarness

_RENAME = """
    WITH moved AS (UPDATE orgs SET routing_epoch = routing_epoch + 1 RETURNING org_id)
    UPDATE datasets d SET name = $2 FROM moved
    WHERE d.org_id = moved.org_id AND dataset_uuid = (SELECT dataset_uuid FROM job_outputs WHERE job_id = $1)"""


def output_names(harness: DispatcherHarness, task_id: UUID) -> list[str]:
    """As a claim says them, and a fetch."""
    claimed = harness.claim(str(task_id)).body
    assert claimed["status"] == "Claimed", claimed
    fetched = harness.worker("GET", f"/internal/task-fetch?task_id={task_id}").body
    return [item["name"] for payload in (claimed, fetched) for item in payload["task"]["outputs"]]


def test_payloads_follow_the_epoch(harness: DispatcherHarness) -> None:
    deploy(harness, str(Text("renamed").source().job("a", "tick")))
    job = job_id(harness, "renamed", "a")
    first = output_names(harness, task(harness, job, cursor=1))
    assert len(set(first)) == 1
    harness.sql(_RENAME, job, "named_now")  # as another Dispatcher's cutover does
    assert output_names(harness, task(harness, job, cursor=2)) == ["named_now"] * 2
    harness.sql(_RENAME, job, "named_again")
    second = task(harness, job, cursor=3)
    fetched = harness.worker("GET", f"/internal/task-fetch?task_id={second}").body
    assert [item["name"] for item in fetched["task"]["outputs"]] == ["named_again"]
