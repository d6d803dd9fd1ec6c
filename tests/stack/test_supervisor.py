"""The supervisor with short scripts as children: restarts, order, stubborn and broken parts."""

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.postgres import pid_alive, run
from tracelake.stack import supervisor as supervisor_module
from tracelake.stack.log_files import rotate_log
from tracelake.stack.machine import wrap
from tracelake.stack.supervisor import (
    Part,
    PartState,
    PartView,
    RestartPatience,
    StartError,
    Supervisor,
    run_together,
)

QUICK = RestartPatience(backoff_min=0.01, backoff_max=0.05, stable_seconds=60.0, start_seconds=30.0, start_tries=3)
SLEEP = "import signal; signal.sigwait({signal.SIGTERM, signal.SIGINT})"
# Says that it is ready only once it can no longer be stopped politely.
STUBBORN = (
    "import pathlib, signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    "pathlib.Path(sys.argv[1]).touch(); signal.sigwait({signal.SIGUSR1})"
)


def script(
    tmp_path: Path,
    name: str,
    code: str = SLEEP,
    *,
    stage: int = 0,
    arguments: tuple[str, ...] = (),
    ready: Callable[[], Awaitable[bool]] | None = None,
    grace_seconds: float = 30.0,
    prepare: Callable[[], None] | None = None,
) -> Part:
    return Part(
        name=name,
        stage=stage,
        command=lambda: wrap([sys.executable, "-c", code, *arguments], death_signal=signal.SIGKILL),
        environment=dict(os.environ),
        log_file=tmp_path / f"{name}.log",
        ready=ready,
        grace_seconds=grace_seconds,
        prepare=prepare,
    )


class Changes:
    """What the supervisor said, and a way to wait until it says something."""

    def __init__(self) -> None:
        self.seen: list[PartView] = []
        self._more = asyncio.Event()

    def __call__(self, view: PartView) -> None:
        self.seen.append(view)
        self._more.set()

    async def until(self, wanted: Callable[[PartView], bool]) -> PartView:
        async with asyncio.timeout(30):
            while True:
                for view in self.seen:
                    if wanted(view):
                        return view
                self._more.clear()
                await self._more.wait()


def exists(path: Path) -> Callable[[], Awaitable[bool]]:
    async def check() -> bool:
        return path.exists()

    return check


def test_a_killed_part_comes_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        changes = Changes()
        cleaned_up: list[str] = []
        part = replace(script(tmp_path, "part"), clean_up=lambda: cleaned_up.append("once"))
        supervisor = Supervisor([part], on_change=changes, patience=QUICK)
        await supervisor.start(0)
        first = supervisor.views()[0]
        assert first.state == PartState.RUNNING
        assert first.pid is not None
        assert cleaned_up == []
        os.kill(first.pid, signal.SIGKILL)
        again = await changes.until(lambda view: view.state == PartState.RUNNING and view.restarts == 1)
        assert again.pid != first.pid
        assert any(view.note == "was killed by SIGKILL" for view in changes.seen)
        assert len(cleaned_up) == 1
        await supervisor.stop()
        assert len(cleaned_up) == 2, "after every end"
        assert supervisor.views()[0].state == PartState.STOPPED
        assert again.pid is not None
        assert not pid_alive(again.pid)

    run(scenario())


def test_waits_grow_and_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    real = asyncio.wait_for

    async def recording(awaitable: Awaitable[bool], timeout: float) -> bool:
        waits.append(timeout)
        return await real(awaitable, 0.001)

    monkeypatch.setattr("tracelake.stack.supervisor.asyncio.wait_for", recording)

    async def scenario() -> None:
        changes = Changes()
        patience = RestartPatience(backoff_min=0.2, backoff_max=1.0)
        supervisor = Supervisor([script(tmp_path, "part", "pass")], on_change=changes, patience=patience)
        await supervisor.start(0)
        await changes.until(lambda view: view.restarts == 5)
        await supervisor.stop()

    run(scenario())
    assert waits[:5] == [0.2, 0.4, 0.8, 1.0, 1.0]


def test_stages_start_in_order_and_stop_in_reverse(tmp_path: Path) -> None:
    async def scenario() -> None:
        changes = Changes()
        parts = [
            script(tmp_path, "database", stage=0),
            script(tmp_path, "server", stage=1),
            script(tmp_path, "worker-1", stage=2),
            script(tmp_path, "worker-2", stage=2),
        ]
        supervisor = Supervisor(parts, on_change=changes, patience=QUICK)
        for stage in range(3):
            await supervisor.start(stage)
        running = [view.name for view in changes.seen if view.state == PartState.RUNNING]
        assert running[:2] == ["database", "server"]
        await supervisor.stop()
        stopped = [view.name for view in changes.seen if view.state == PartState.STOPPED]
        assert sorted(stopped[:2]) == ["worker-1", "worker-2"]
        assert stopped[2:] == ["server", "database"]

    run(scenario())


def test_a_stubborn_part_is_killed_after_its_grace(tmp_path: Path) -> None:
    async def scenario() -> None:
        flag = tmp_path / "flag"
        part = script(tmp_path, "part", STUBBORN, arguments=(str(flag),), ready=exists(flag), grace_seconds=0.05)
        supervisor = Supervisor([part], patience=QUICK)
        await supervisor.start(0)
        pid = supervisor.views()[0].pid
        assert pid is not None
        await supervisor.stop()
        assert not pid_alive(pid)

    run(scenario())


def test_a_part_that_fails_its_liveness_check_is_restarted_however_it_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor_module, "_HURRY_SECONDS", 0.05)
    quick = replace(QUICK, alive_seconds=0.01, alive_failures=2)

    async def scenario() -> None:
        flag, healthy = tmp_path / "flag", tmp_path / "healthy"
        healthy.touch()
        part = script(tmp_path, "part", STUBBORN, arguments=(str(flag),), ready=exists(flag), grace_seconds=0.1)
        changes = Changes()
        supervisor = Supervisor([replace(part, alive=exists(healthy))], on_change=changes, patience=quick)
        await supervisor.start(0)
        first = supervisor.views()[0].pid
        healthy.unlink()
        waiting = await changes.until(lambda view: view.state == PartState.WAITING)
        assert waiting.note == "failed its liveness check and was killed by SIGKILL"
        healthy.touch()
        again = await changes.until(lambda view: view.restarts > 0 and view.state == PartState.RUNNING)
        assert again.pid not in (None, first)
        await supervisor.stop()

    run(scenario())


def test_hurry_cuts_the_grace_short(tmp_path: Path) -> None:
    async def scenario() -> None:
        flag = tmp_path / "flag"
        part = script(tmp_path, "part", STUBBORN, arguments=(str(flag),), ready=exists(flag), grace_seconds=3600)
        changes = Changes()
        supervisor = Supervisor([part], on_change=changes, patience=QUICK)
        await supervisor.start(0)
        stopping = asyncio.create_task(supervisor.stop())
        await changes.until(lambda view: view.state == PartState.STOPPING)
        supervisor.hurry()
        async with asyncio.timeout(60):
            await stopping

    run(scenario())


def test_a_part_that_cannot_start_is_given_up_with_the_end_of_its_log(tmp_path: Path) -> None:
    async def scenario() -> None:
        never = exists(tmp_path / "never")
        broken = script(tmp_path, "broken", "raise SystemExit('the reason')", ready=never)
        supervisor = Supervisor([script(tmp_path, "good"), broken], patience=QUICK)
        with pytest.raises(StartError, match=r"(?s)broken ended with status 1 at start; .*the reason"):
            await supervisor.start(0)
        await supervisor.stop()
        assert [view.state for view in supervisor.views()] == [PartState.STOPPED, PartState.FAILED]

    run(scenario())


def test_a_part_that_is_never_ready_is_given_up(tmp_path: Path) -> None:
    async def scenario() -> None:
        part = script(tmp_path, "part", ready=exists(tmp_path / "never"))
        supervisor = Supervisor([part], patience=RestartPatience(start_seconds=0.1))
        with pytest.raises(StartError, match="part was not ready after"):
            await supervisor.start(0)
        await supervisor.stop()
        assert supervisor.views()[0].state == PartState.STOPPED

    run(scenario())


def test_a_failed_preparation_is_the_reason_at_start(tmp_path: Path) -> None:
    def prepare() -> None:
        raise StartError("no room on this machine")

    async def scenario() -> None:
        supervisor = Supervisor([script(tmp_path, "part", prepare=prepare)], patience=QUICK)
        with pytest.raises(StartError, match="no room"):
            await supervisor.start(0)
        await supervisor.stop()

    run(scenario())


def test_a_preparation_that_fails_later_is_tried_again(tmp_path: Path) -> None:
    calls: list[int] = []

    def prepare() -> None:
        calls.append(1)
        if len(calls) == 2:
            raise OSError("disk full")

    async def scenario() -> None:
        changes = Changes()
        supervisor = Supervisor([script(tmp_path, "part", prepare=prepare)], on_change=changes, patience=QUICK)
        await supervisor.start(0)
        pid = supervisor.views()[0].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await changes.until(lambda view: view.note == "disk full")
        await changes.until(lambda view: view.state == PartState.RUNNING and view.restarts == 2)
        await supervisor.stop()

    run(scenario())


def test_stopping_during_a_start_ends_what_was_begun(tmp_path: Path) -> None:
    async def scenario() -> None:
        changes = Changes()
        part = script(tmp_path, "part", ready=exists(tmp_path / "never"))
        supervisor = Supervisor([part], on_change=changes, patience=QUICK)
        starting = asyncio.create_task(supervisor.start(0))
        view = await changes.until(lambda view: view.pid is not None)
        starting.cancel()
        await supervisor.stop()
        assert view.pid is not None
        assert not pid_alive(view.pid)

    run(scenario())


def test_a_log_stays_small_while_its_part_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracelake.stack.log_files.MAX_BYTES", 10_000)
    monkeypatch.setattr("tracelake.stack.log_files._CHECK_SECONDS", 0.01)

    async def scenario() -> None:
        lines = "n = 0\nwhile True:\n    n += 1\n    print(f'line {n:08d}', flush=True)\n    time.sleep(0.0005)"
        part = script(tmp_path, "part", f"import time\n{lines}")
        supervisor = Supervisor([part], patience=QUICK)
        await supervisor.start(0)
        (began,) = supervisor.views()
        async with asyncio.timeout(60):
            while not (tmp_path / "part.log.3").exists():
                await asyncio.sleep(0.01)
        assert [view.pid for view in supervisor.views()] == [began.pid], "it was not started again for it"
        await supervisor.stop()
        kept = [path.read_text() for path in sorted(tmp_path.glob("part.log.[0-9]"))]
        assert len(kept) == 3
        newest = kept[0].splitlines()
        assert newest[0] < newest[-1]
        assert b"\0" not in (tmp_path / "part.log").read_bytes(), "no hole where the old text was"

    run(scenario())


def test_large_logs_are_moved_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracelake.stack.log_files.MAX_BYTES", 10)
    log = tmp_path / "part.log"
    rotate_log(log)
    for text in ("first first", "second second", "third third", "fourth fourth", "fifth fifth"):
        log.write_text(text)
        rotate_log(log)
    log.write_text("short")
    rotate_log(log)
    kept = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert kept == {
        "part.log": "short",
        "part.log.1": "fifth fifth",
        "part.log.2": "fourth fourth",
        "part.log.3": "third third",
    }


def test_work_beside_a_start_that_fails_ends_before_the_failure_is_raised() -> None:
    """Nothing of it may start further parts while the supervisor stops."""
    ended: list[str] = []

    async def fail() -> None:
        await asyncio.sleep(0)
        raise StartError("the store does not start")

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("the other")

    async def main() -> None:
        with pytest.raises(StartError, match="the store does not start"):
            await run_together(wait(), fail())
        assert ended == ["the other"]

    asyncio.run(main())
