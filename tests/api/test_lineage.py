"""Lineage: units with the tasks that made them, and the jobs around a dataset."""

from typing import Any

import pytest

from tests.api.support import World
from tests.support.dispatcher import DispatcherHarness
from tracelake.dispatcher.views import lineage, paging


@pytest.fixture
def world(harness: DispatcherHarness) -> World:
    return World(harness)


def test_files_are_by_unit_with_their_newest_commit(world: World) -> None:
    read = {"input_index": 0, "unit": {"cursor": {"after": -1, "to": 9}}}
    read |= {"dataset_uuid": str(world.ticks.dataset_uuid), "dataset_version": str(world.ticks.dataset_version)}
    first = world.task(world.fetch, "Completed", inputs=[read])
    second = world.task(world.fetch, "Completed")
    world.commit(world.blocks, (0, 9), first)
    world.commit(world.blocks, (10, 19), first)
    world.commit(world.blocks, (10, 19), second, revision=2)
    world.commit(world.generation(world.blocks), (20, 29), second)  # of a generation that does not count
    reply = world.user().get("/v1/datasets/blocks/lineage")
    assert reply["dataset_version"] == str(world.blocks.dataset_version)
    units = reply["units"]
    assert [(row["unit"]["partition_key"], row["revision"], row["task_id"]) for row in units] == [
        ("0-9", "1", str(first)),
        ("10-19", "2", str(second)),
    ]
    assert (units[0]["dag"], units[0]["job"], units[0]["files"], units[0]["attempt"]) == ("chain", "fetch", 2, 1)
    assert units[0]["inputs"][0]["name"] == "chain__clock_0"


def keys(world: World, path: str) -> list[str]:
    units = world.user().get(path)["units"]
    return [row["unit"].get("partition_key") or str(row["unit"]["cursor"]["to"]) for row in units]


def test_units_of_files_by_range_and_name(world: World) -> None:
    task = world.task(world.fetch, "Completed")
    for start in (0, 10, 30, 40):
        world.commit(world.blocks, (start, start + 9), task)
    path = "/v1/datasets/blocks/lineage"
    assert keys(world, f"{path}?start=15&end=35") == ["10-19", "30-39"]
    assert keys(world, f"{path}?start=20&end=29") == []
    assert keys(world, f"{path}?start=35") == ["30-39", "40-49"]
    assert keys(world, f"{path}?end=9") == ["0-9"]
    assert keys(world, f"{path}?unit=10-19") == ["10-19"]
    assert keys(world, f"{path}?unit=10-18") == []
    pages = world.user().pages(f"{path}?limit=1&start=5", "units")
    assert [row["unit"]["start"] for row in pages] == [0, 10, 30, 40]


def test_a_generation_that_was_published_as_a_whole(world: World) -> None:
    world.commit(world.blocks, None, world.task(world.fetch, "Completed"))
    assert keys(world, "/v1/datasets/blocks/lineage") == ["*"]
    assert keys(world, "/v1/datasets/blocks/lineage?unit=*") == ["*"]


def test_everything_else_is_by_its_events(world: World) -> None:
    task = world.task(world.alert, "Completed")
    world.event(world.alerts, blocks=(0, 9), revision="a", producer=str(task), attempt=1)
    world.event(world.alerts, blocks=(10, 19), producer=str(task), attempt=1)
    world.event(world.alerts, blocks=(0, 9), revision="b", producer=str(task), attempt=1)
    world.event(world.alerts, blocks=(20, 29), state="NotCurrent")
    world.event(world.alerts, key="eu", producer="manual:x")
    world.sql("INSERT INTO unit_revisions VALUES ($1, $2, 'p:0-9', 'b')", *world.alerts)
    path = "/v1/datasets/alerts/lineage"
    units = world.user().get(path)["units"]
    assert [(row["unit"]["partition_key"], row.get("revision", "")) for row in units] == [
        ("eu", ""),
        ("0-9", "b"),
        ("10-19", ""),
    ]
    pages = world.user().pages(f"{path}?limit=1", "units")
    assert [row["unit"]["partition_key"] for row in pages] == ["eu", "0-9", "10-19"], "what was replaced is left out"
    assert "task_id" not in units[0]
    assert units[0]["producer"] == "manual:x"
    assert (units[1]["task_id"], units[1]["job"]) == (str(task), "alert")
    assert keys(world, f"{path}?start=5&end=12") == ["0-9", "10-19"]
    assert keys(world, f"{path}?unit=eu") == ["eu"]


def test_cursors(world: World) -> None:
    for cursor in range(5):
        world.event(world.ticks, cursor)
    path = "/v1/datasets/chain__clock_0/lineage"
    assert keys(world, path) == ["4", "3", "2", "1", "0"]
    assert keys(world, f"{path}?start=1&end=2") == ["2", "1"]
    assert keys(world, f"{path}?unit=3") == ["3"]
    assert len(world.user().pages(f"{path}?limit=2", "units")) == 5


def test_a_producer_that_calls_itself_like_a_task_is_none(world: World) -> None:
    other = World(world.harness)
    task = other.task(other.alert, "Completed")
    world.event(world.alerts, key="a", producer=str(world.task(world.alert, "Completed")))  # a trigger's name
    world.event(world.alerts, key="b", producer=str(task), attempt=1)  # somebody else's task
    for row in world.user().get("/v1/datasets/alerts/lineage")["units"]:
        assert "task_id" not in row
        assert "job" not in row


def test_a_filter_looks_at_a_bounded_number_of_events(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_ANNOUNCED", "_LAST_LOOKED_AT"):
        text = getattr(lineage, name).replace(str(paging.LOOKED_AT), "3").replace(str(paging.LOOKED_AT - 1), "2")
        monkeypatch.setattr(lineage, name, text)
    for cursor in range(10):
        world.event(world.ticks, cursor)
    path = "/v1/datasets/chain__clock_0/lineage?unit=1"
    first = world.user().get(path)
    assert first["units"] == []
    assert "next" in first, "not found so far is not the end"
    assert len(world.user().pages(path, "units")) == 1


def edges(rows: list[dict[str, Any]]) -> list[tuple[str, str, str, str]]:
    return [(row.get("from_dataset", ""), row["dag"], row["job"], row.get("to_dataset", "")) for row in rows]


def test_the_jobs_around_a_dataset(world: World) -> None:
    clock = ("", "chain", "clock", "chain__clock_0")
    fetch = ("chain__clock_0", "chain", "fetch", "blocks")
    alert = ("blocks", "alarm", "alert", "alerts")
    user = world.user()
    blocks = user.get("/v1/datasets/blocks/lineage")
    assert (edges(blocks["upstream"]), edges(blocks["downstream"])) == ([fetch, clock], [alert])
    ticks = user.get("/v1/datasets/chain__clock_0/lineage")
    assert (edges(ticks["upstream"]), edges(ticks["downstream"])) == ([clock], [fetch, alert])
    alerts = user.get("/v1/datasets/alerts/lineage")
    assert (edges(alerts["upstream"]), edges(alerts["downstream"])) == ([alert, fetch, clock], [])


def test_a_circle_ends(world: World) -> None:
    """Two DAGs may read each other; nobody walks round for ever."""
    node = world.sql("SELECT node_id FROM jobs WHERE job_id = $1", world.fetch)[0]["node_id"]
    world.edge(node, world.fetch, world.alerts, index=1)
    found = edges(world.user().get("/v1/datasets/blocks/lineage")["downstream"])
    assert found == [("blocks", "alarm", "alert", "alerts"), ("alerts", "chain", "fetch", "blocks")]


def test_a_unit_and_a_range_are_not_both_meant(world: World) -> None:
    for query, field in (("unit=1&start=2", "unit"), ("start=5&end=4", "start")):
        reply = world.user().call("GET", f"/v1/datasets/blocks/lineage?{query}")
        assert (reply.status, reply.code) == (422, "body_invalid")
        assert reply.body["error"]["details"] == {"field": field}
