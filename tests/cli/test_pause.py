"""`trace pause`, `trace resume` and the watch of `trace sources`."""

import msgspec
import pytest

from tests.cli import samples
from tests.cli.conftest import Trace
from tests.cli.fake_api import FakeApi
from tracelake.errors import TraceError
from tracelake.wire.sources_view import PauseReply


@pytest.mark.parametrize(
    ("word", "paused", "said", "again"),
    [("pause", True, "paused", "was already paused"), ("resume", False, "resumed", "was not paused")],
)
def test_a_word_to_sources(word: str, paused: bool, said: str, again: str, trace: Trace, api: FakeApi) -> None:
    answer = samples.paused(paused=paused)
    api.answers[f"POST /v1/dags/pools/jobs/head/{word}"] = [answer, samples.paused(paused=paused, duplicate=True)]
    first = trace(word, "pools/head")
    assert (first.status, first.err) == (0, "")
    assert f"pools/head: {said}." in first.out
    assert "trace sources" in first.out
    assert f"pools/head: {again}." in trace(word, "pools/head").out
    shown = trace(word, "pools/head", "--json")
    assert msgspec.json.decode(shown.out, type=list[PauseReply])[0].paused is paused


def test_the_dag_may_be_left_out(trace: Trace, api: FakeApi) -> None:
    api.answers |= {"GET /v1/dags": samples.dags(), "GET /v1/dags/pools/jobs": samples.jobs()}
    api.answers["POST /v1/dags/pools/jobs/blocks/pause"] = samples.paused()
    shown = trace("pause", "blocks")
    assert (shown.status, shown.err) == (0, "")


@pytest.mark.parametrize("target", ["pools/", "/head"])
def test_half_a_name_is_none(target: str, trace: Trace, api: FakeApi) -> None:
    shown = trace("pause", target)
    assert (shown.status, api.calls) == (2, [])
    assert "DAG/JOB" in shown.err


def test_what_is_no_source_is_said(trace: Trace, api: FakeApi) -> None:
    api.answers["POST /v1/dags/pools/jobs/prices/pause"] = TraceError("job_not_source")
    shown = trace("pause", "pools/prices")
    assert shown.status == 1
    assert "job_not_source" in shown.err


def test_a_paused_source_is_one_step_from_going_on(trace: Trace, api: FakeApi) -> None:
    quiet = [source for source in samples.sources().sources if source.state == "paused"]
    api.answers["GET /v1/sources"] = msgspec.structs.replace(samples.sources(), sources=quiet)
    assert "trace resume pools/quiet" in trace("sources").out
