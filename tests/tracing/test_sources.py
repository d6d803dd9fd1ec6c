"""Where a trace begins: at a source. Who may say which trace it belongs to, and which traces are recorded."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.deploy.support import Text
from tests.routing.support import block
from tests.sources.webhook_support import BODY, Hook
from tests.support import dags
from tests.support.configs import dispatcher_config
from tests.support.dispatcher import DispatcherHarness
from tests.tracing.support import Collector, Traced
from tracelake.dispatcher.config import DispatcherConfig
from tracelake.wire.sources import FireRequest

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
CALLER = f"00-{TRACE}-{SPAN}-01"


def test_a_user_may_go_on_with_a_trace(flow: Traced, seen: Collector) -> None:
    assert flow.post_trigger("chain", "src", CALLER, cursor=5) == 200
    flow.run_all("first", "second")
    flow.flush()
    assert seen.trace_ids() == {TRACE}
    assert seen.one("accept chain__src_0").parent == SPAN
    assert len(seen.spans) == 12


def test_also_with_one_that_asks_a_job(flow: Traced, seen: Collector) -> None:
    assert flow.post_trigger("chain", "src", cursor=5) == 200
    assert flow.post_trigger("chain", "first", CALLER, cursor=5) == 200
    flow.flush()
    assert (seen.one("trigger chain/first").trace_id, seen.one("trigger chain/first").parent) == (TRACE, SPAN)


@pytest.mark.parametrize(
    "header",
    [
        "",
        "nonsense",
        f"00-{'0' * 32}-{SPAN}-01",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-x",
        "'; DROP TABLE tasks; --",
        "00-" + "a" * 5000,
    ],
)
def test_a_header_that_is_none_changes_nothing(flow: Traced, seen: Collector, header: str) -> None:
    assert flow.post_trigger("chain", "src", header, cursor=5) == 200
    flow.flush()
    assert seen.one("accept chain__src_0").parent == ""
    assert TRACE not in seen.trace_ids()


def test_two_headers_are_as_good_as_none(flow: Traced, seen: Collector) -> None:
    """Nobody has to guess which one counted."""
    assert flow.post_trigger("chain", "src", CALLER, CALLER, cursor=5) == 200
    flow.flush()
    assert TRACE not in seen.trace_ids()


def test_a_caller_may_leave_its_trace_out(flow: Traced, seen: Collector) -> None:
    assert flow.post_trigger("chain", "src", f"00-{TRACE}-{SPAN}-00", cursor=5) == 200
    flow.run_all("first", "second")
    flow.flush()
    assert seen.spans == []
    assert_untraced(flow.harness)


def assert_untraced(harness: DispatcherHarness) -> None:
    found = harness.sql(
        "SELECT traceparent FROM events UNION ALL SELECT traceparent FROM tasks WHERE unit_key <> 'run'"
    )
    assert found
    assert {row["traceparent"] for row in found} == {None}


class TestNotSampled:
    @pytest.fixture
    def config(self, seen: Collector) -> DispatcherConfig:
        return dispatcher_config(otlp_endpoint=seen.url, otlp_sample_ratio=0.0)

    def test_nothing_is_recorded_whatever_a_caller_says(self, flow: Traced, seen: Collector) -> None:
        """Decided once: what follows from an event that is not recorded begins no trace of its own."""
        assert flow.post_trigger("chain", "src", CALLER, cursor=5) == 200
        assert flow.post_trigger("chain", "first", CALLER, cursor=5) == 200
        flow.trigger("chain", "src", cursor=6)
        assert flow.run_all("first", "second") > 2
        flow.flush()
        assert seen.spans == []
        assert_untraced(flow.harness)


class TestSomeAreSampled:
    @pytest.fixture
    def config(self, seen: Collector) -> DispatcherConfig:
        return dispatcher_config(
            otlp_endpoint=seen.url, otlp_sample_ratio=0.5, user_rate_per_second=10**6, user_rate_burst=10**6
        )

    def test_by_the_trace_id(self, flow: Traced, seen: Collector) -> None:
        low, high = f"{1:032x}", f"{2**64 - 1:032x}"
        for trace_id in (low, high):
            flow.post_trigger("chain", "src", f"00-{trace_id}-{SPAN}-01", cursor=1 + int(trace_id == high))
        flow.run_all("first", "second")
        flow.flush()
        assert seen.trace_ids() == {low}
        assert len(seen.spans) == 12


def test_a_cron_slot_begins_a_trace(flow: Traced, seen: Collector) -> None:
    source = {"source": {"kind": "cron", "schedule": "* * * * *"}}
    flow.deploy(str(Text("timed").source("clock", **source).job("work", "clock")))
    job_id = dags.job_id(flow.harness, "timed", "clock")
    slot = (datetime.now(UTC) - timedelta(minutes=2)).replace(second=0, microsecond=0)
    fire = flow.harness.dispatcher.cron.fire
    flow.harness.run(fire(job_id, FireRequest(slot=slot)))
    flow.harness.run(fire(job_id, FireRequest(slot=slot)))
    flow.run_all("work")
    flow.flush()
    assert seen.one("accept timed__clock_0").attributes["tracelake.producer"].startswith("cron:")
    assert seen.one("task timed/work").trace_id == seen.one("accept timed__clock_0").trace_id


def test_whoever_calls_a_webhook_chooses_nothing(flow: Traced, seen: Collector) -> None:
    hook = Hook(flow.harness).deploy()
    headers = hook.head() | {"traceparent": CALLER}
    assert flow.harness.call("public", "POST", hook.where, BODY, headers).status == 200
    flow.flush()
    (accept,) = [span for span in seen.spans if span.name.startswith("accept")]
    assert accept.parent == ""
    assert accept.trace_id != TRACE


def test_each_event_of_an_always_on_source_begins_a_trace(flow: Traced, seen: Collector) -> None:
    how: dict[str, Any] = {"runtime": "ecs_platform", "operator": "ticker", "config": {"seconds": 10}}
    flow.deploy(str(Text("live").source("head", **how, source={"kind": "always_on"}).job("work", "head")))
    flow.harness.run(flow.harness.dispatcher.monitor.run_once())
    (run,) = flow.tasks("head")
    lease = flow.claim(run["task_id"])
    assert "traceparent" not in lease["task"]
    for cursor in (1, 2):
        flow.say(run["task_id"], lease, flow.event("live", "head", cursor=cursor))
    flow.run_all("work")
    flow.flush()
    first, second = seen.all("accept live__head_0")
    assert first.trace_id != second.trace_id
    assert {span.trace_id for span in seen.all("task live/work")} == {first.trace_id, second.trace_id}


def test_a_file_is_announced_with_its_commit_in_the_trace_that_said_it(flow: Traced, seen: Collector) -> None:
    """An event said before its data is committed waits; routed later, it is still the same span."""
    text = Text("files").source("src").job("write", "src", operator="decode_logs", config={}).job("read", "write")
    text.published("out", "write", "s3")
    flow.deploy(str(text))
    flow.trigger("files", "src", range={"start": 0, "end": 9})
    (task,) = flow.tasks("write")
    lease = flow.claim(task["task_id"])
    flow.say(task["task_id"], lease, flow.event("files", "write", **block(0, 9)))
    flow.flush()
    assert seen.one("accept out").attributes["tracelake.state"] == "AwaitsCommit"
    assert seen.all("route out") == []
    prefix = lease["task"]["outputs"][0]["storage"]["write_prefix"]
    for name in ("a.parquet", "_SUCCESS"):
        flow.harness.run(flow.harness.objects.put(prefix + name, b"x"))
    bucket, _, key = prefix.removeprefix("s3://").partition("/")
    files = {"scheme": "s3", "bucket": bucket, "prefix": key, "glob": "*.parquet"}
    published = flow.event("files", "write", range_start=0, range_end=9) | {"storage_ref": files}
    flow.complete(task["task_id"], lease, datasets_published=[published])
    flow.run_all("read")
    flow.flush()
    assert seen.one("route out").parent == seen.one("accept out").span_id
    assert seen.one("task files/read").parent == seen.one("accept out").span_id
