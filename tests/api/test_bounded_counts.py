"""Counts for people stop at a bound, and say so."""

from tests.api.support import World
from tests.support.dispatcher import DispatcherHarness
from tests.support.state import FINISHED_TASKS
from tracelake.dispatcher.views.paging import CAP


def test_lists_of_dags_and_jobs_count_up_to_the_cap(harness: DispatcherHarness) -> None:
    world = World(harness)
    user = world.user("reader")
    assert not any(dag.get("more") for dag in user.call("GET", "/v1/dags").body["dags"])
    world.sql(FINISHED_TASKS, world.org_id, world.fetch, "Failed", CAP + 1)
    (dag,) = [dag for dag in user.call("GET", "/v1/dags").body["dags"] if dag.get("more")]
    assert dag["failed_tasks"] + dag["open_tasks"] == CAP
    jobs = user.call("GET", f"/v1/dags/{dag['name']}/jobs").body["jobs"]
    full = [job for job in jobs if job.get("more")]
    assert [job["failed"] + job["queued"] + job["running"] + job["retrying"] for job in full] == [CAP]
