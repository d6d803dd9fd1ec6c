"""Counts for people stop at a bound, and say so."""

from tests.api.support import World
from tests.support.dispatcher import DispatcherHarness
from tracelake.dispatcher.views.paging import CAP

_FAILED = """
    INSERT INTO tasks (task_id, org_id, job_id, inputs, status, attempt, lease_token, outcome, finished_at)
    SELECT gen_random_uuid(), $1, $2, '[]', 'Failed', 1, gen_random_uuid(), 'Failed', trace_now()
    FROM generate_series(1, $3)"""


def test_lists_of_dags_and_jobs_count_up_to_the_cap(harness: DispatcherHarness) -> None:
    world = World(harness)
    user = world.user("reader")
    assert not any(dag.get("more") for dag in user.call("GET", "/v1/dags").body["dags"])
    world.sql(_FAILED, world.org_id, world.fetch, CAP + 1)
    (dag,) = [dag for dag in user.call("GET", "/v1/dags").body["dags"] if dag.get("more")]
    assert dag["failed_tasks"] + dag["open_tasks"] == CAP
    jobs = user.call("GET", f"/v1/dags/{dag['name']}/jobs").body["jobs"]
    full = [job for job in jobs if job.get("more")]
    assert [job["failed"] + job["queued"] + job["running"] + job["retrying"] for job in full] == [CAP]
