"""A cutover moves a batch of tasks, whatever waits; the loop moves the rest, and nothing is lost in between."""

import asyncio
from collections import Counter
from uuid import UUID

import pytest

from tests.deploy.support import chain, node, say, task
from tests.deploy.test_builds import built, drain, start
from tests.support.dags import activate, deploy, job_id, output, run_builds
from tests.support.dispatcher import DispatcherHarness
from tests.support.state import cancel_queued_tasks, set_sweep, set_used_places
from tracelake.dispatcher.deploy import builds, tasks
from tracelake.dispatcher.deploy.builds import Builds
from tracelake.dispatcher.engine import limits
from tracelake.dispatcher.engine.pressure import queues

BATCH = 4


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "BATCH", BATCH)
    monkeypatch.setattr(queues, "BATCH", BATCH)


def backlog(
    harness: DispatcherHarness, number: int, status: str = "Queued", first: int = 0, *, waits: bool = False
) -> list[UUID]:
    job = job_id(harness, "d", "a")
    return [task(harness, job, status, cursor=first + n, waits=waits) for n in range(number)]


def statuses(harness: DispatcherHarness, made: list[UUID]) -> Counter[tuple[str, str | None]]:
    rows = harness.sql("SELECT status, superseded FROM tasks WHERE task_id = ANY($1)", made)
    return Counter((row["status"], row["superseded"]) for row in rows)


def marks(harness: DispatcherHarness) -> list[str]:
    return [row["sweep"] for row in harness.sql("SELECT sweep FROM nodes WHERE sweep IS NOT NULL ORDER BY node_id")]


def sweep_all(harness: DispatcherHarness) -> int:
    rounds = 0
    while run_builds(harness):
        rounds += 1
        assert rounds < 50
    return rounds


def sweep_until(harness: DispatcherHarness, made: list[UUID], state: tuple[str, str | None], number: int) -> None:
    """Batch by batch, of whichever node comes first."""
    while statuses(harness, made)[state] < number:
        assert run_builds(harness)
    assert statuses(harness, made)[state] == number


def claim(harness: DispatcherHarness, task_id: UUID) -> str:
    body = harness.claim(str(task_id)).body
    return str(body.get("reason", body["status"]))


def test_a_cutover_moves_a_batch_and_the_loop_the_rest(harness: DispatcherHarness) -> None:
    deploy(harness, str(chain()))
    made = backlog(harness, 11)
    old = node(harness, "d", "a")
    assert deploy(harness, str(chain(a=2))).state == "Active"
    assert statuses(harness, made) == {("Canceled", "Dropped"): BATCH, ("Queued", None): 7}
    assert "Drop" in marks(harness)
    sweep_all(harness)
    assert statuses(harness, made) == {("Canceled", "Dropped"): 11}
    assert marks(harness) == []
    errors = harness.sql("SELECT DISTINCT error FROM tasks WHERE node_id = $1", old)
    assert [row["error"] for row in errors] == ["superseded by version 2 of the DAG"]


def test_what_fits_leaves_no_mark(harness: DispatcherHarness) -> None:
    deploy(harness, str(chain()))
    made = backlog(harness, BATCH - 1)
    deploy(harness, str(chain(a=2)))
    assert statuses(harness, made) == {("Canceled", "Dropped"): BATCH - 1}
    assert marks(harness) == []
    assert run_builds(harness) == 0


def test_every_state_is_swept_as_a_cutover_would(harness: DispatcherHarness) -> None:
    deploy(harness, str(chain()))
    first = backlog(harness, BATCH)
    running = backlog(harness, 5, "Running", first=20)
    retrying = backlog(harness, 5, "Failed", first=40, waits=True)
    failed = backlog(harness, 9, "Failed", first=60)
    deploy(harness, str(chain(a=2)))
    sweep_all(harness)
    assert statuses(harness, first + retrying) == {("Canceled", "Dropped"): BATCH + 5}
    assert statuses(harness, running) == {("Running", "Dropped"): 5}
    assert all(harness.row(str(task_id))["cancel_requested"] for task_id in running)
    assert statuses(harness, failed) == {("Failed", None): 9}
    assert marks(harness) == []


def test_what_is_dropped_does_not_start_before_it_is_swept(harness: DispatcherHarness) -> None:
    deploy(harness, str(chain()))
    made = backlog(harness, 7)
    leased = harness.claim(str(made[-1]), claim_id="mine").body
    deploy(harness, str(chain(a=2)))
    waiting = [row["task_id"] for row in harness.sql("SELECT task_id FROM tasks WHERE status = 'Queued'")]
    assert len(waiting) == 2
    assert [claim(harness, task_id) for task_id in waiting] == ["NotReady", "NotReady"]
    assert harness.claim(str(made[-1]), claim_id="mine").body["lease_token"] == leased["lease_token"]
    activate(harness, "d", 1)
    assert [claim(harness, task_id) for task_id in waiting] == ["Claimed", "Claimed"]


@pytest.mark.parametrize("batches", [1, 2, 3])
def test_a_node_that_comes_back_is_whole_again(
    harness: DispatcherHarness, monkeypatch: pytest.MonkeyPatch, batches: int
) -> None:
    """However far the sweep had come: what was cancelled returns, what was not has gone on."""
    monkeypatch.setattr(builds, "SWEEPS", 1)
    deploy(harness, str(chain()))
    made = backlog(harness, 14)
    deploy(harness, str(chain(a=2)))
    canceled = BATCH * batches
    sweep_until(harness, made, ("Canceled", "Dropped"), canceled)
    activate(harness, "d", 1)
    assert statuses(harness, made)["Queued", None] == 14 - canceled + BATCH
    assert "Return" in marks(harness) or canceled == BATCH
    sweep_all(harness)
    assert statuses(harness, made) == {("Queued", None): 14}
    assert marks(harness) == []
    wakeups = Counter(row["key"] for row in harness.sql("SELECT key FROM outbox WHERE key = ANY($1)", made))
    assert sorted(wakeups.values()) == [1] * canceled, "each that was cancelled is woken once"
    assert claim(harness, made[0]) == "Claimed"


def test_a_node_that_comes_back_at_once_is_not_swept_any_more(
    harness: DispatcherHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    deploy(harness, str(chain()))
    made = backlog(harness, 14)
    deploy(harness, str(chain(a=2)))
    assert "Drop" in marks(harness)
    monkeypatch.setattr(tasks, "BATCH", 100)
    activate(harness, "d", 1)
    assert marks(harness) == []
    sweep_all(harness)
    assert statuses(harness, made) == {("Queued", None): 14}


def test_a_node_that_is_dropped_while_it_returns(harness: DispatcherHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builds, "SWEEPS", 1)
    deploy(harness, str(chain()))
    made = backlog(harness, 14)
    deploy(harness, str(chain(a=2)))
    sweep_all(harness)
    activate(harness, "d", 1)
    sweep_until(harness, made, ("Queued", None), 2 * BATCH)
    assert statuses(harness, made)["Canceled", "Dropped"] == 14 - 2 * BATCH
    activate(harness, "d", 2)
    sweep_all(harness)
    assert statuses(harness, made) == {("Canceled", "Dropped"): 14}
    activate(harness, "d", 1)
    sweep_all(harness)
    assert statuses(harness, made) == {("Queued", None): 14}


def test_tasks_that_return_keep_a_build_open(harness: DispatcherHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builds, "SWEEPS", 0)
    start(harness)
    job = job_id(harness, "d", "a", building=True)
    made = [task(harness, job, cursor=cursor) for cursor in range(BATCH + 2)]
    deploy(harness, str(chain()))
    monkeypatch.setattr(builds, "SWEEPS", 9)
    sweep_all(harness)
    assert statuses(harness, made) == {("Canceled", "Dropped"): BATCH + 2}
    monkeypatch.setattr(builds, "SWEEPS", 0)
    assert deploy(harness, str(chain(a=2))).state == "Building"
    drain(harness, built(harness))
    cancel_queued_tasks(harness)
    assert run_builds(harness) == 0, "two have yet to come back"
    monkeypatch.setattr(builds, "SWEEPS", 9)
    assert run_builds(harness) > 0
    assert statuses(harness, made)["Queued", None] == 2
    cancel_queued_tasks(harness)
    assert run_builds(harness) == 1


def test_a_task_that_has_stopped_and_returns_keeps_a_build_open(harness: DispatcherHarness) -> None:
    start(harness)
    drain(harness, built(harness))
    task_id = task(harness, job_id(harness, "d", "a", building=True), "Canceled", cursor=1)
    # As between the report of a stopped attempt and the sweep that returns its task.
    harness.sql("UPDATE tasks SET superseded = 'Returning' WHERE task_id = $1", task_id)
    assert run_builds(harness) == 1, "it came back"
    assert statuses(harness, [task_id]) == {("Queued", None): 1}
    assert harness.sql("SELECT building_version FROM dags")[0][0] is not None


def test_places_of_what_is_swept_come_back(harness: DispatcherHarness) -> None:
    deploy(harness, str(chain(scaling={"max_concurrency": 6})))
    old = job_id(harness, "d", "a")
    key = f"job:{harness.sql('SELECT org_id FROM orgs')[0][0]}:d:a"
    for cursor in range(15):
        task(harness, old, held=cursor >= 6, limits=[key], cursor=cursor)
    set_used_places(harness, 6)
    deploy(harness, str(chain(a=2, scaling={"max_concurrency": 6})))
    new = [task(harness, job_id(harness, "d", "a"), held=True, limits=[key], cursor=cursor) for cursor in range(3)]
    sweep_all(harness)
    assert harness.sql("SELECT used FROM limits WHERE limit_key = $1", key)[0]["used"] == 3
    assert not any(harness.row(str(task_id))["held"] for task_id in new)


def test_the_depth_of_a_queue_follows_the_sweep(harness: DispatcherHarness) -> None:
    def depths() -> list[int]:
        rows = harness.sql("SELECT depth FROM pressure JOIN nodes USING (node_id) WHERE job_name = 'a' ORDER BY depth")
        return [row["depth"] for row in rows]

    deploy(harness, str(chain()))
    made = backlog(harness, 11)
    deploy(harness, str(chain(max_queue_depth=100)))
    assert harness.sql("SELECT count(*) FROM tasks WHERE counted")[0][0] == BATCH
    sweep_all(harness)
    assert harness.sql("SELECT count(*) FROM tasks WHERE counted")[0][0] == 11
    assert depths() == [11]
    assert claim(harness, made[0]) == "Claimed"
    assert depths() == [10]
    deploy(harness, str(chain(a=2, max_queue_depth=100)))
    sweep_all(harness)
    assert depths() == [0, 0]
    activate(harness, "d", 2)
    sweep_all(harness)
    assert depths() == [0, 10]
    assert harness.sql("SELECT FROM nodes WHERE uncounted") == []


def test_a_limit_that_is_lifted_lets_in_so_many_at_once(
    harness: DispatcherHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MOST", 5)
    monkeypatch.setattr(limits, "_BATCH", 2)
    deploy(harness, str(chain(scaling={"max_concurrency": 1})))
    key = f"job:{harness.sql('SELECT org_id FROM orgs')[0][0]}:d:a"
    made = [task(harness, job_id(harness, "d", "a"), held=n > 0, limits=[key], cursor=n) for n in range(20)]
    set_used_places(harness, 1)
    deploy(harness, str(chain()))

    def ready() -> int:
        found: int = harness.sql("SELECT count(*) FROM tasks WHERE NOT held AND status = 'Queued'")[0][0]
        return found

    assert 5 < ready() < 10
    before = ready()
    assert claim(harness, made[0]) == "Claimed"
    harness.service("POST", f"/internal/tasks/{made[1]}/cancel", {})
    assert ready() > before, "whoever gives back a place lets in more"


def test_two_dispatchers_sweep_together(harness: DispatcherHarness) -> None:
    deploy(harness, str(chain()))
    made = backlog(harness, 30)
    deploy(harness, str(chain(a=2)))

    async def together() -> None:
        loops = [Builds(harness.dispatcher.ports.store, harness.config) for _ in range(4)]
        await asyncio.gather(*(loop.run_once() for loop in loops))

    harness.run(together())
    sweep_all(harness)
    assert statuses(harness, made) == {("Canceled", "Dropped"): 30}
    assert marks(harness) == []


def test_a_person_who_is_faster_than_the_sweep_keeps_what_he_did(harness: DispatcherHarness) -> None:
    deploy(harness, str(chain()))
    made = backlog(harness, BATCH + 3)
    deploy(harness, str(chain(a=2)))
    sweep_all(harness)
    set_sweep(harness, made[0], "Return")
    # As a retry that commits before the sweep has come to its task.
    harness.sql(
        "UPDATE tasks SET status = 'Queued', ready_at = now(), finished_at = NULL, error = NULL WHERE task_id = $1",
        made[0],
    )
    say(harness, output(harness, "d", "tick"), 1)
    sweep_all(harness)
    assert statuses(harness, made) == {("Queued", None): BATCH + 3}
    assert not harness.sql("SELECT FROM outbox WHERE key = $1", made[0])
