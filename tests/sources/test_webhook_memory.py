"""Old deliveries are forgotten: none that somebody may still need, and none that could be replayed."""

import asyncio
from dataclasses import replace

import pytest

from tests.routing.support import Flow
from tests.sources.webhook_support import UNLIMITED, Hook
from tests.support import dags
from tests.support.dispatcher import DispatcherHarness
from tracelake.dispatcher.sources import delivery_retention
from tracelake.dispatcher.sources.delivery_retention import DeliveryPruner

DAY = 86400


@pytest.fixture
def hook(harness: DispatcherHarness) -> Hook:
    return Hook(harness, org="acme").deploy()


def flow_of(hook: Hook) -> Flow:
    return Flow(hook.harness, hook.org)


def forget(hook: Hook) -> int:
    return hook.harness.run(hook.harness.dispatcher.pruner.run_once())


def kept(hook: Hook) -> list[str]:
    return sorted(row["delivery_id"] for row in hook.deliveries())


def said(hook: Hook) -> list[int]:
    return [row["cursor"] for row in hook.events() if row["producer"].startswith("webhook:")]


def test_what_is_old_and_done_is_forgotten(hook: Hook) -> None:
    for delivery in ("a", "b"):
        hook.sent(delivery=delivery)
    flow_of(hook).run_all("work")
    hook.harness.advance(29 * DAY)
    assert (forget(hook), kept(hook)) == (0, ["a", "b"])
    hook.sent(delivery="c")
    flow_of(hook).run_all("work")
    hook.harness.advance(2 * DAY)
    assert (forget(hook), kept(hook)) == (2, ["c"])
    assert said(hook) == [1, 2, 3], "what it meant stays"
    assert hook.sent(delivery="d")["number"] == 4, "and nobody gets a number again"
    assert hook.user("GET", "/deliveries/a").code == "delivery_not_found"
    listed = hook.user("GET", "/deliveries").body["deliveries"]
    assert [item["number"] for item in listed] == [4, 3]


@pytest.mark.parametrize("state", ["queued", "running", "failed"])
def test_what_somebody_works_on_is_kept(hook: Hook, state: str) -> None:
    hook.sent(delivery="a")
    hook.sent(b'{"partition_key": "named"}', delivery="b")
    hook.sent(b'{"range": {"start": 0, "end": 9}}', delivery="c")
    flow = flow_of(hook)
    tasks = flow.tasks("work")
    for task in tasks:
        if state == "running":
            flow.claim(task["task_id"])
        if state == "failed":
            flow.fail(task["task_id"])
    hook.harness.advance(31 * DAY)
    assert (forget(hook), kept(hook)) == (0, ["a", "b", "c"])
    for task in tasks:
        flow.person("skip" if state == "failed" else "cancel", task["task_id"])
    if state == "running":
        hook.harness.reap()
        hook.harness.advance(1000)
        hook.harness.reap()
    assert (forget(hook), kept(hook)) == (3, [])


def test_what_was_not_routed_yet_is_kept(hook: Hook) -> None:
    hook.sent(delivery="a")
    flow_of(hook).run_all("work")
    assert hook.user("POST", "/pause").status == 200
    hook.sent(delivery="b")
    hook.harness.advance(31 * DAY)
    assert (forget(hook), kept(hook)) == (1, ["b"])
    assert hook.user("POST", "/resume").status == 200
    flow_of(hook).drain()
    assert (forget(hook), kept(hook)) == (0, ["b"])
    flow_of(hook).run_all("work")
    assert (forget(hook), kept(hook)) == (1, [])


def test_what_only_an_old_version_would_read_is_forgotten(hook: Hook) -> None:
    """Its reader has gone with its version; a rollback routes the event, and the event is never forgotten."""
    hook.sent(delivery="a")
    alone = hook.text().split("  - name: work")[0]
    dags.deploy(hook.harness, alone, hook.org)
    hook.harness.advance(31 * DAY)
    assert forget(hook) == 1


def test_a_repeat_is_refused_by_its_time_before_it_is_forgotten(harness: DispatcherHarness) -> None:
    """However short the memory is set: the longest that a signature can be good is from one tolerance to the other."""
    hook = Hook(harness, org="acme").deploy()
    config = replace(UNLIMITED, webhook_retention_days=0, webhook_tolerance_seconds=300)
    pruner = DeliveryPruner(harness.dispatcher.ports.store, config)
    head = hook.head(delivery="a", ahead=299)
    assert harness.call("public", "POST", hook.where, b'{"price": 7}', head).status == 200
    flow_of(hook).run_all("work")
    while harness.call("public", "POST", hook.where, b'{"price": 7}', head).status == 200:
        assert harness.run(pruner.run_once()) == 0, "it could still be replayed"
        harness.advance(20)
    harness.advance(20)
    assert harness.run(pruner.run_once()) == 1
    assert harness.call("public", "POST", hook.where, b'{"price": 7}', head).code == "signature_stale"


def test_a_forgotten_id_is_a_new_delivery_and_not_a_second_event(hook: Hook) -> None:
    body = b'{"cursor": 17}'
    first = hook.sent(body, delivery="a")
    flow_of(hook).run_all("work")
    hook.harness.advance(31 * DAY)
    assert forget(hook) == 1
    again = hook.sent(body, delivery="a")
    assert (again["number"], again["event_ids"], again.get("duplicate")) == (2, first["event_ids"], None)
    assert said(hook) == [17]


def test_it_goes_page_by_page_over_what_must_stay(hook: Hook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery_retention, "PAGE", 2)
    for number in range(5):
        hook.sent(delivery=f"open-{number}")
    hook.harness.advance(60)
    hook.sent(delivery="done")
    flow = flow_of(hook)
    flow.pass_on(flow.tasks("work")[-1]["task_id"])
    hook.harness.advance(31 * DAY)
    pruner = hook.harness.dispatcher.pruner
    assert [hook.harness.run(pruner.run_when_due()) for _ in range(3)] == [0, 0, 1]
    assert "done" not in kept(hook)
    hook.harness.run(pruner.run_when_due())  # a page that was full may have been the last
    flow.run_all("work")
    assert hook.harness.run(pruner.run_when_due()) == 0, "it rests after the last page"
    assert hook.harness.run(pruner.run_once()) == 2


def test_two_dispatchers_forget_each_once(hook: Hook) -> None:
    for number in range(20):
        hook.sent(delivery=f"d-{number}")
    flow_of(hook).run_all("work")
    hook.harness.advance(31 * DAY)
    store = hook.harness.dispatcher.ports.store

    async def both() -> list[int]:
        return await asyncio.gather(*(DeliveryPruner(store, UNLIMITED).run_once() for _ in range(2)))

    hook.harness.run(both())
    assert kept(hook) == []
