"""Pages: every row once, newest first, also while rows come and go; bounded work per page."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.api.support import World
from tests.support.dispatcher import DispatcherHarness
from tracelake.dispatcher.views import paging


@pytest.fixture
def world(harness: DispatcherHarness) -> World:
    return World(harness)


def test_all_tasks_of_many_jobs_once_and_in_order(world: World) -> None:
    made = [world.task(job, "Completed") for _ in range(7) for job in (world.fetch, world.alert, world.clock)]
    for limit in (1, 2, 5, 20, 21, 500):
        rows = world.user().pages(f"/v1/tasks?limit={limit}", "tasks")
        assert [UUID(row["task_id"]) for row in rows] == sorted(made, reverse=True)


def test_rows_that_are_made_meanwhile_do_not_move_the_pages(world: World) -> None:
    before = sorted((world.task(job, "Queued") for _ in range(6) for job in (world.fetch, world.alert)), reverse=True)
    seen: list[UUID] = []
    cursor = ""
    while True:
        page = world.user().get(f"/v1/tasks?limit=5{cursor}")
        seen += [UUID(row["task_id"]) for row in page["tasks"]]
        for job in (world.fetch, world.alert):
            world.task(job, "Running")
        if "next" not in page:
            break
        cursor = f"&cursor={page['next']}"
    assert seen == before


def test_a_row_that_changes_meanwhile_is_neither_lost_nor_doubled(world: World) -> None:
    made = sorted((world.task(world.fetch, "Queued") for _ in range(9)), reverse=True)
    first = world.user().get("/v1/tasks?limit=4")
    world.sql("DELETE FROM tasks WHERE task_id = $1", made[3])  # the very row that the cursor names
    second = world.user().get(f"/v1/tasks?limit=9&cursor={first['next']}")
    assert [UUID(row["task_id"]) for row in first["tasks"] + second["tasks"]] == made


def test_events_of_many_datasets(world: World) -> None:
    made = [world.event(of, number) for number in range(6) for of in (world.ticks, world.alerts)]
    for limit in (1, 5, 12, 500):
        rows = world.user().pages(f"/v1/events?limit={limit}", "events")
        assert [row["event_id"] for row in rows] == made[::-1]


def test_a_rare_state_is_found_page_by_page(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page looks at so many rows and no more; it may be empty, and says where to go on."""
    monkeypatch.setattr(paging, "LOOKED_AT", 12)
    rare = world.task(world.fetch, "Canceled")
    for _ in range(10):
        world.task(world.fetch, "Completed")
        world.task(world.alert, "Completed")
    first = world.user().get("/v1/tasks?status=Canceled&limit=1")
    assert first["tasks"] == []
    assert "next" in first
    rows = world.user().pages("/v1/tasks?status=Canceled&limit=1", "tasks")
    assert [UUID(row["task_id"]) for row in rows] == [rare]
    assert len(world.user().pages("/v1/tasks?status=Completed&limit=3", "tasks")) == 20


LISTS = st.lists(st.sets(st.integers(0, 40), max_size=15), min_size=1, max_size=5)


@given(LISTS, st.integers(1, 6), st.integers(1, 10), st.integers(1, 5))
def test_any_lists_are_merged_into_one(lists: list[set[int]], limit: int, looked_at: int, rare: int) -> None:
    """Against the obvious: sort everything, keep what is wanted."""
    # A key belongs to one source, as a task belongs to one job.
    taken_keys: set[int] = set()
    sources = []
    for keys in lists:
        sources.append(keys - taken_keys)
        taken_keys |= keys
    found: list[int] = []
    below: float = float("inf")
    for _ in range(200):
        taken = max(limit + 1, looked_at)
        rows = [
            (index, key, key % rare == 0)
            for index, keys in enumerate(sources)
            for key in sorted((key for key in keys if key < below), reverse=True)[:taken]
        ]
        page = paging.merge(rows, limit, taken)
        assert len(page.keys) <= limit
        found += page.keys
        if page.next is None:
            break
        assert page.next < below
        below = page.next
    assert found == sorted((key for key in taken_keys if key % rare == 0), reverse=True)
