"""`trace top`: what it measures, how it fits, and how it comes and goes."""

import asyncio
import io
import os
import pty
import sys
import termios
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from tests.cli.conftest import Trace
from tests.cli.fake_api import Call, FakeApi, end_after
from tests.cli.samples import EARLIER, EVIL, FULL_QUEUE, NOW, STOPPED_INPUT, dags, load, overview
from tracelake.cli import session
from tracelake.cli.rates import Rate, measure
from tracelake.cli.top import quit_key
from tracelake.cli.top_screen import TopScreen, cut, share, shortened_middle, without_idle
from tracelake.errors import TraceError
from tracelake.wire.overview import OverviewReply
from tracelake.wire.sources_view import SourceRow

PATH = "GET /v1/overview"


def two_looks(*jobs: Any, later: list[Any] | None = None) -> list[OverviewReply]:
    """Ten seconds apart."""
    return [overview(*jobs), overview(*(later or jobs), at=10, since=0)]


# --- what is measured


def test_done_is_what_was_made_less_what_became_open(trace: Trace, api: FakeApi) -> None:
    before = load(made=500, ready=100, running=8, retrying=2, failed=1)
    after = load(made=300, ready=150, running=8, retrying=1, failed=2, events=50, oldest_ready_seconds=65.0)
    api.answers[PATH] = two_looks(before, later=[after])
    shown = trace("top", "--once")
    assert (shown.status, shown.err) == (0, "")
    assert "5.0 events  30.0 tasks made  25.0 tasks done" in shown.out
    assert "150 ready  8 running  0 waiting  1 retrying  2 failed  oldest ready 1m5s" in shown.out
    assert "trace why pools/prices" in shown.out
    first, second = (call.query for call in api.asked("/v1/overview"))
    assert "since" not in first
    assert second["since"] == NOW.isoformat().replace("+00:00", "Z"), "since the look before, by the server's clock"


def test_a_count_that_was_cut_off_is_not_reckoned_with(trace: Trace, api: FakeApi) -> None:
    whole, part = load("whole", made=100), load("part", made=10_000, ready=10_000, cut=["made", "ready"])
    api.answers[PATH] = two_looks(whole, part)
    lines = trace("top").out.splitlines()
    assert "1010+ tasks made  10.0+ tasks done" in lines[1]
    assert "10000+ ready" in lines[2]
    (row,) = [line.split() for line in lines if "pools/part" in line]
    assert row[1] == "10000+"
    assert row[-3:] == ["1000+", "-", "0"]


def test_without_a_look_before_nothing_is_known_of_what_was_done() -> None:
    reply = overview(load(made=10), load("new", made=3))
    found = measure(reply, None)
    assert found.total.done == Rate(None)
    found = measure(reply, {("pools", "prices"): 0})
    assert found.jobs[("pools", "prices")].done == Rate(1.0)
    assert found.jobs[("pools", "new")].done == Rate(None), "a job that was not there"
    assert found.total.done == Rate(1.0, least=True)
    assert measure(reply, {("pools", "prices"): 0, ("pools", "new"): 0}).total.made == Rate(1.3)
    assert measure(overview(load(ready=5)), {("pools", "prices"): 1}).total.done == Rate(0.0), "never less than none"
    assert measure(overview(), None).total.done == Rate(0)
    much = overview(load(made=10_000, cut=["made"]))
    assert measure(much, {("pools", "prices"): 0}).total.done == Rate(None), "more may have been made and done"


def test_the_window_grows_to_ten_seconds_and_is_short_when_much_comes(
    trace: Trace, api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []

    def answer(call: Call) -> OverviewReply:
        at = float(len(asked))
        given = call.query.get("since")
        since = -10.0 if given is None else (msgspec.convert(given, type(NOW)) - NOW).total_seconds()
        asked.append(since)
        much = at == 15
        return overview(load(made=1, cut=["made"] if much else []), at=at, since=since)

    api.answers[PATH] = answer
    on_a_terminal(monkeypatch)
    end_after(monkeypatch, 17)
    assert trace("top").status == 0
    assert asked[:12] == [-10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]
    assert asked[15:18] == [5, 15, 7], "as short as can be after a look that was cut off"


def test_programs_get_one_document(trace: Trace, api: FakeApi) -> None:
    api.answers[PATH] = two_looks(load(ready=4, made=20))
    shown = trace("top", "--json", "--dag", "pools")
    assert (shown.status, shown.err, shown.out.count("\n")) == (0, "", 1)
    document = msgspec.json.decode(shown.out)
    assert document["rates"] == {"events": 0.0, "made": 2.0, "done": 2.0}
    assert document["jobs"][0]["rates"] == {"events": 0.0, "made": 2.0, "done": 2.0}
    assert document["window_seconds"] == 10
    assert msgspec.json.decode(shown.out, type=OverviewReply) == two_looks(load(ready=4, made=20))[1]
    assert {call.query["dag"] for call in api.calls} == {"pools"}


def test_a_dag_that_is_not_there_is_said(trace: Trace, api: FakeApi) -> None:
    api.answers |= {PATH: TraceError("dag_not_found"), "GET /v1/dags": dags()}
    ended = trace("top", "--dag", "pool")
    assert ended.status == 1
    assert "Did you mean `pools`?" in ended.err


# --- what is shown


def screen(reply: OverviewReply, height: int | None = None) -> TopScreen:
    return TopScreen(measure(reply, {}), "all DAGs", None, height)


def test_jobs_with_something_going_on_come_first_and_the_worst_on_top() -> None:
    reply = overview(
        load("idle"),
        load("young", ready=500, oldest_ready_seconds=3.0),
        load("old", ready=1, oldest_ready_seconds=900.0),
        load("failed", failed=3),
        load("running", running=1),
        load("full", ready=5, oldest_ready_seconds=1.0),
        queues=[msgspec.structs.replace(FULL_QUEUE, job="full")],
    )
    lines = [line.plain for line in screen(reply).lines(100)]
    found = [line.split()[0] for line in lines if line.startswith("pools/")]
    assert found[:6] == [f"pools/{name}" for name in ("full", "old", "young", "failed", "running", "idle")]


def test_pressure_says_what_is_stopped_because_of_what() -> None:
    paused = msgspec.structs.replace(
        STOPPED_INPUT, state="paused", queue=None, because="pools/x was paused by ann 3m ago"
    )
    own = msgspec.structs.replace(STOPPED_INPUT, job="prices")
    text = "\n".join(line.plain for line in screen(overview(load(), stopped=[STOPPED_INPUT, own, paused])).lines(120))
    assert "pressure  1 queue with a threshold, 1 full; 3 inputs stopped" in text
    assert "queue pools/prices: 1200 of 1000 queued, oldest 6m40s, full for 3m5s" in text
    assert "input blocks of pools/fetch waits for prices, 77 events kept" in text
    assert "input blocks of pools/prices waits for its own queue, 77 events kept" in text
    assert "input blocks of pools/fetch, 77 events kept: x was paused by ann 3m ago" in text
    quiet = "\n".join(line.plain for line in screen(overview(load(), queues=[], stopped=[], sources=[])).lines(80))
    assert "no queue has a threshold, and no source is paused" in quiet
    assert "sources  none" in quiet


def test_sources_that_do_not_run_come_first() -> None:
    lines = [line.plain for line in screen(overview(load())).lines(120)]
    start = next(place for place, line in enumerate(lines) if line.startswith("source "))
    states = [line.split()[2] for line in lines[start + 1 :]]
    order = ["dead", "overdue", "backing", "stopped", "paused", "stopping", "starting", "running", "waiting", "ended"]
    assert states == sorted(states, key=order.index)


def test_a_cron_source_whose_slot_did_not_come_is_overdue() -> None:
    cron = SourceRow(
        dag="pools", job="clock", kind="cron", state="waiting", schedule="0 * * * *", time_zone="UTC", kept=12,
        counts_since=NOW - timedelta(hours=5),
    )  # fmt: skip
    (late,) = [line.plain.split() for line in screen(overview(load(), sources=[cron])).lines(80)[-1:]]
    assert late == ["pools/clock", "cron", "overdue", "never", "12"]
    on_time = msgspec.structs.replace(cron, last_slot=NOW)
    assert "waiting" in screen(overview(load(), sources=[on_time])).lines(80)[-1].plain


def test_nothing_deployed_is_a_sentence() -> None:
    assert "No DAG has an active version" in screen(overview()).lines(80)[4].plain


names = st.text(st.characters(categories=["L", "N", "P"]), min_size=1, max_size=60)
numbers = st.integers(0, 10**6)


@given(st.lists(st.tuples(names, numbers, numbers), max_size=60), st.integers(20, 200), st.integers(3, 70))
def test_it_always_fits(rows: list[tuple[str, int, int]], width: int, height: int) -> None:
    jobs = [load(name, ready=ready, failed=failed) for name, ready, failed in rows]
    view = screen(overview(*jobs), height)
    console = Console(file=io.StringIO(), width=width, height=height, color_system=None)
    session.show(console, view)
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert len(lines) <= height
    assert all(cell_len(line) <= width for line in lines)


@given(st.lists(st.integers(1, 100), min_size=3, max_size=3), st.integers(0, 100))
def test_room_is_shared_and_none_is_wasted(wanted: list[int], room: int) -> None:
    given_lines = share(wanted, room)
    assert sum(given_lines) == min(room, sum(wanted))
    assert all(lines <= most for lines, most in zip(given_lines, wanted, strict=True))
    assert share(wanted, None) == wanted
    assert given_lines[0] >= min(wanted[0], room // 2), "jobs first"


def test_what_has_no_room_is_counted() -> None:
    lines = screen(overview(*(load(f"job{number}") for number in range(30)), load("busy", running=1)), 24).lines(80)
    (more,) = [line.plain for line in lines if "all idle" in line.plain]
    shown = sum(line.plain.startswith("pools/job") for line in lines)
    assert more == f"  ... {30 - shown} more, all idle"
    assert cut([lines[0]] * 9, 4, 2)[-1].plain == "  ... 6 more, 4 busy"
    assert cut([lines[0]] * 9, 4)[-1].plain == "  ... 6 more"


def test_what_matters_is_whole_on_a_small_terminal() -> None:
    busy = load(ready=15_000, running=400, held=120, retrying=44, failed=12, oldest_ready_seconds=65.0)
    long = msgspec.structs.replace(
        STOPPED_INPUT, dag="exchange_prices", job="fetch_candles", dataset="exchange_prices__trades_0",
        queue="exchange_prices/aggregate_by_minute", backlog=12345,
    )  # fmt: skip
    lines = [line.plain for line in screen(overview(busy, stopped=[long]), 24).lines(80)]
    assert any(line.endswith("  oldest ready 1m5s") for line in lines[:3])
    (stopped,) = [line for line in lines if " waits for " in line]
    assert stopped.startswith("  exchang..trades_0 of exchang.._candles waits for aggrega..y_minute")
    assert stopped.endswith(", 12345 kept")
    assert len(stopped) <= 80
    narrow = [line.plain for line in screen(overview(busy), 24).lines(40)]
    assert not any("oldest ready" in line and "oldest ready 1m5s" not in line for line in narrow), "whole or not at all"


def test_idle_jobs_make_room_for_what_is_stopped() -> None:
    inputs = [msgspec.structs.replace(STOPPED_INPUT, dataset=f"blocks_{number}") for number in range(4)]
    jobs = [load(f"job{number}") for number in range(12)]
    reply = overview(load("busy", running=1), *jobs, stopped=inputs)
    lines = [line.plain for line in screen(reply, 24).lines(80)]
    assert sum(" waits for " in line for line in lines) == 4
    assert sum(source.job in line for source in reply.sources for line in lines) >= len(reply.sources)
    hidden = [line for line in lines if "more" in line]
    assert len(hidden) == 1
    assert hidden[0].endswith("more, all idle")
    assert len(lines) <= 24
    assert without_idle([10, 3, 3], 12, 4) == [7, 3, 3]
    assert without_idle([10, 3, 3], 12, 0) == [10, 3, 3]
    assert without_idle([10, 3, 3], None, 4) == [10, 3, 3]


def test_a_long_note_has_two_lines_and_the_next_step_one() -> None:
    words = "The Dispatcher does not answer: this is 5s old, trying again ... (no connection: ConnectionRefusedError)"
    measured = measure(overview(load(failed=1)), {})
    lines = [line.plain for line in TopScreen(measured, "all DAGs", Text(words), 24).lines(80)]
    assert " ".join(lines[3:5]) == words
    lines = [line.plain for line in TopScreen(measured, "all DAGs", None, 24, Text("see why: x")).lines(80)]
    assert lines[3] == "see why: x"


def test_names_lose_their_middle() -> None:
    assert shortened_middle("pools/prices", 12) == "pools/prices"
    assert shortened_middle("pools/prices", 10) == "pool..ices"


def test_names_play_no_tricks(trace: Trace, api: FakeApi) -> None:
    evil = overview(
        load(EVIL, dag=EVIL),
        queues=[msgspec.structs.replace(FULL_QUEUE, dag=EVIL, job=EVIL)],
        stopped=[msgspec.structs.replace(STOPPED_INPUT, dag=EVIL, dataset=EVIL, queue=EVIL, because=EVIL)],
    )
    api.answers[PATH] = evil
    for columns in (None, 80, 160):
        shown = trace("top", "--once", columns=columns)
        assert shown.status == 0
        assert not set(shown.out) & set("\x1b\x07\x9b\u202e")


# --- coming and going


def on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    output = io.StringIO()

    def console(*, stderr: bool = False) -> Console:
        assert not stderr
        return Console(file=output, force_terminal=True, width=80, height=24, color_system=None, _environ={})

    monkeypatch.setattr(session, "make_console", console)
    return output


def test_on_a_terminal_it_fills_the_screen_and_gives_it_back(
    trace: Trace, api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = on_a_terminal(monkeypatch)
    restarted = overview(load(ready=77), serving_since=EARLIER + timedelta(seconds=60))
    api.answers[PATH] = [overview(load(ready=55)), TraceError("store_unavailable"), restarted]
    end_after(monkeypatch, 3)
    shown = trace("top")
    assert (shown.status, shown.out, shown.err) == (0, "", "")
    text = output.getvalue()
    assert text.startswith("\x1b[?1049h")
    assert text.endswith("\x1b[?1049l")
    assert "55 ready" in text
    assert "see why: trace why pools/prices" in text
    assert "The Dispatcher does not answer: this is 0s old, trying again ..." in text
    assert "77 ready" in text
    assert f"The Dispatcher was restarted at {EARLIER + timedelta(seconds=60):%H:%M:%S}Z. No answer for" in text


def test_a_failure_that_stays_ends_it_with_its_message(
    trace: Trace, api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = on_a_terminal(monkeypatch)
    api.answers[PATH] = [overview(load()), TraceError("role_forbidden")]
    end_after(monkeypatch, 9)
    shown = trace("top")
    assert shown.status == 1
    assert shown.err.startswith("error: role_forbidden")
    assert output.getvalue().endswith("\x1b[?1049l")


def test_a_dumb_terminal_gets_one_snapshot(trace: Trace, api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    output = io.StringIO()
    dumb = Console(file=output, force_terminal=True, width=80, color_system=None, _environ={"TERM": "dumb"})
    monkeypatch.setattr(session, "make_console", lambda **_: dumb)
    api.answers[PATH] = two_looks(load(ready=55))
    assert trace("top").status == 0
    assert output.getvalue().count("trace top") == 1
    assert "\x1b" not in output.getvalue()


def test_q_ends_it_and_the_terminal_is_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    keyboard, terminal = pty.openpty()
    with os.fdopen(keyboard, "wb", buffering=0) as keys, os.fdopen(terminal, "r") as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        before = termios.tcgetattr(stdin)

        async def press() -> None:
            with quit_key() as pressed:
                assert termios.tcgetattr(stdin) != before
                keys.write(b"x")
                keys.write(b"q")
                await asyncio.wait_for(pressed.wait(), 20)

        asyncio.run(press())
        assert termios.tcgetattr(stdin) == before


def test_q_ends_the_command(trace: Trace, api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `trace top` is asked to leave while it waits for the next look."""
    output = on_a_terminal(monkeypatch)
    api.answers[PATH] = overview(load())

    async def never() -> None:
        pressed.set()
        await asyncio.Event().wait()

    pressed = asyncio.Event()
    monkeypatch.setattr(session, "_pause", never)
    monkeypatch.setattr("tracelake.cli.top.quit_key", lambda: Pressed(pressed))
    assert trace("top").status == 0
    assert output.getvalue().endswith("\x1b[?1049l")


class Pressed:
    def __init__(self, event: asyncio.Event) -> None:
        self._event = event

    def __enter__(self) -> asyncio.Event:
        return self._event

    def __exit__(self, *_: object) -> None: ...
