"""Why a source says nothing, by its kind and by what became of its run."""

import re
from datetime import datetime
from typing import Any
from uuid import UUID

import pytest
import yaml

from tests.removal.support import Removal
from tests.why.support import Situation, codes, commands, said


def document(kind: str, **source: Any) -> str:
    how: dict[str, Any] = {"activation": "source", "source": {"kind": kind} | source}
    if kind == "always_on":
        how |= {"runtime": "ecs_platform", "operator": "ticker", "config": {"seconds": 10}}
    read = {"name": "read", "activation": "reactive", "operator": "noop", "inputs": [{"from": {"job": "src"}}]}
    jobs = [{"name": "src"} | how, read]
    return yaml.safe_dump({"name": "d", "defaults": {"runtime": "ecs_platform"}, "jobs": jobs}, sort_keys=False)


def run_of(flow: Situation) -> UUID:
    flow.deploy(document("always_on"))
    flow.harness.run(flow.harness.dispatcher.monitor.run_once())
    return flow.one("src")


def test_manual(flow: Situation) -> None:
    flow.deploy(document("manual"))
    reason = said(flow.why_job("src"), "source_never_fired")
    assert commands(reason) == ["trace trigger d/src --range START-END"]
    flow.trigger("d", "src", cursor=3)
    reply = flow.why_job("src")
    assert codes(reply) == ["up_to_date"]
    assert "Its last event was cursor 3 of d__src_0, 0s ago." in reply["summary"]


def test_cron_names_its_schedule(flow: Situation) -> None:
    flow.deploy(document("cron", schedule="0 0 1 1 *"))
    reason = said(flow.why_job("src"), "source_never_fired")
    assert "(0 0 1 1 *, UTC)" in reason["text"]
    (command,) = commands(reason)
    assert re.fullmatch(r"trace trigger d/src --cursor \d{10}", command), "a slot of this second"


def test_webhook(flow: Situation) -> None:
    flow.deploy(document("webhook", webhook_path=f"/{flow.org}"))
    assert said(flow.why_job("src"), "source_no_events")["text"] == "Nothing has been delivered to it yet."


def test_paused(flow: Situation) -> None:
    flow.deploy(document("manual"))
    flow.trigger("d", "src", cursor=1)
    flow.harness.run(flow.harness.dispatcher.pauses.pause(flow.actor, "d", "src"))
    flow.harness.advance(120)
    reply = flow.why_job("src")
    assert codes(reply) == ["source_paused"]
    assert "It was paused by tester 2m ago." in reply["summary"]
    flow.harness.run(flow.harness.dispatcher.pauses.resume(flow.actor, "d", "src"))
    assert codes(flow.why_job("src")) == ["up_to_date"]


def test_a_run_from_its_start_to_its_first_word(flow: Situation) -> None:
    flow.deploy(document("always_on"))
    assert "has not been created yet" in said(flow.why_job("src"), "source_starting")["text"]
    flow.harness.run(flow.harness.dispatcher.monitor.run_once())
    run = flow.one("src")
    assert commands(said(flow.why_job("src"), "source_starting"))[0] == f"trace why {run}"
    assert "No task of ecs_platform is running now" in said(flow.why_job("src"), "source_starting")["text"]
    lease = flow.claim(run)
    assert "has said nothing yet" in said(flow.why_job("src"), "source_no_events")["text"]
    flow.say(run, lease, flow.event("d", "src", cursor=1))
    assert codes(flow.why_job("src")) == ["up_to_date"]


def test_a_run_that_died(flow: Situation) -> None:
    run = run_of(flow)
    flow.complete(run, flow.claim(run), status="Failed", error_message="no node")
    reason = said(flow.why_job("src"), "source_backing_off")
    assert commands(reason) == [f"trace retry {run}", f"trace why {run}"]
    assert reason["text"].startswith('Attempt 1 of its run died with "no node"; the next one starts in ')


def test_a_run_that_failed_for_good(flow: Situation) -> None:
    run = run_of(flow)
    flow.fail(run)
    reply = flow.why_job("src")
    assert reply["state"] == "blocked"
    reason = said(reply, "source_dead")
    same = "(not retried: another attempt would fail in the same way)"
    assert reason["text"] == f'Its run failed 0s ago {same} with "no".'
    assert commands(reason) == [f"trace retry {run}"]


def test_a_run_that_ended(flow: Situation) -> None:
    run = run_of(flow)
    flow.complete(run, flow.claim(run))
    assert "returned" in said(flow.why_job("src"), "source_ended")["text"]


def test_a_run_that_somebody_cancelled(flow: Situation) -> None:
    run = run_of(flow)
    flow.person("cancel", run)
    reason = said(flow.why_job("src"), "source_ended")
    assert "was cancelled" in reason["text"]
    assert commands(reason) == [f"trace retry {run}"]


def test_a_run_that_is_asked_to_stop(flow: Situation) -> None:
    run = run_of(flow)
    lease = flow.claim(run)
    flow.say(run, lease, flow.event("d", "src", cursor=1))
    flow.person("cancel", run)
    reply = flow.why_job("src")
    assert (codes(reply), reply["state"]) == (["source_stopping"], "working")
    assert "was asked to stop and has not yet; its lease ends in " in reply["summary"]


@pytest.mark.parametrize("by", ["a person", "a removal"])
def test_a_run_is_stopping_since_it_was_asked_to(flow: Situation, by: str) -> None:
    run = run_of(flow)
    flow.claim(run)
    flow.harness.advance(20)
    if by == "a person":
        flow.person("cancel", run)
    else:
        removal = Removal(flow)
        removal.remove("d")
        removal.restore("d")
    flow.harness.advance(5)
    (source,) = flow.ask_sources()
    assert source["state"] == "stopping"
    (now,) = flow.harness.sql("SELECT trace_now() AS now")
    lasted = now["now"] - datetime.fromisoformat(source["since"])
    assert 5 <= lasted.total_seconds() < 15, "not since its claim"


def test_a_run_whose_worker_is_not_heard_of(flow: Situation) -> None:
    run = run_of(flow)
    lease = flow.claim(run)
    flow.say(run, lease, flow.event("d", "src", cursor=1))
    flow.harness.advance(90)
    reply = flow.why_job("src")
    assert codes(reply) == ["source_unheard"]
    assert "The worker of its run sent its last heartbeat 1m ago; its lease ends in " in reply["summary"]
    (shown,) = flow.ask_sources()
    assert (shown["state"], "silent_since" in shown) == ("running", True)


@pytest.mark.parametrize("kind", ["manual", "always_on"])
def test_only_a_run_is_told_something_by_a_full_queue(flow: Situation, kind: str) -> None:
    flow.deploy(document(kind).replace("name: read", "name: read\n  max_queue_depth: 1"))
    if kind == "manual":
        flow.trigger("d", "src", cursor=1)
    else:
        flow.harness.run(flow.harness.dispatcher.monitor.run_once())
        run = flow.one("src")
        flow.say(run, flow.claim(run), flow.event("d", "src", cursor=1))
    text = said(flow.why_job("src"), "pressure")["text"]
    told = "It is told to pause, because d/read is full"
    kept = "Its events are kept and create no tasks, because d/read is full"
    assert text.startswith(told if kind == "always_on" else kept)


def test_a_failed_unit_of_a_reader_is_named_with_what_it_keeps(flow: Situation) -> None:
    flow.deploy(document("manual"))
    flow.trigger("d", "src", cursor=1)
    flow.fail(flow.one("read"))
    flow.trigger("d", "src", cursor=2)
    (shown,) = flow.ask_sources()
    assert (shown["state"], shown["kept"], shown["held_by"]) == ("waiting", 1, "d/read")
    flow.person("skip", flow.one("read"))
    (shown,) = flow.ask_sources()
    assert "held_by" not in shown
