"""The supervisor: starts parts, restarts those that die, stops all in order.

A part is one child process. Parts of one stage start together, the next stage starts when all of them are
ready; stopping goes the other way round. A part that ends by itself is started again after a wait that
doubles from 0.2 s to 10 s and falls back once the part has run for a while. A part that never becomes ready
is given up, with the last lines of its log as the reason. A part that fails its liveness check several times
in a row runs without working: it is ended and started again.

Children are sessions of their own: a Ctrl-C in the terminal reaches the supervisor alone, which then stops
them in order. They end when the supervisor is killed (see `launch.py`), so they must be started from the main
thread, as an event loop there does. Their logs are kept small while they run (see `log_files.py`).
"""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from tracelake.stack.log_files import keep_logs_small, rotate_log

_READY_POLL_SECONDS = 0.05
_HURRY_SECONDS = 5.0


class StartError(Exception):
    """A part could not be brought up; the message names it and the reason."""


class PartState(StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    WAITING = "waiting to restart"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Part:
    """A child process to run. `prepare` runs before every start (in a thread), `clean_up` after every end; `ready` is
    asked until it is true."""

    name: str
    stage: int
    command: Callable[[], Sequence[str]]
    environment: Mapping[str, str]
    log_file: Path
    pass_fds: tuple[int, ...] = ()
    start_seconds: float | None = None
    """How long it may take to be ready; None is the supervisor's default."""
    prepare: Callable[[], None] | None = None
    ready: Callable[[], Awaitable[bool]] | None = None
    alive: Callable[[], Awaitable[bool]] | None = None
    """Asked again and again once it was ready; False several times in a row restarts it."""
    clean_up: Callable[[], None] | None = None
    stop_signal: signal.Signals = signal.SIGTERM
    hurry_signal: signal.Signals = signal.SIGKILL
    grace_seconds: float = 15.0


@dataclass(frozen=True, slots=True)
class PartView:
    """The visible state of a part; `since` is the time (epoch) of its last change."""

    name: str
    state: PartState
    pid: int | None
    restarts: int
    since: float
    note: str = ""
    ended: str = ""
    """How it last ended in this run of the stack; `ended_at` is when (epoch)."""
    ended_at: float | None = None


@dataclass(frozen=True, slots=True)
class RestartPatience:
    """The timeouts and limits of the supervisor; tests use short ones."""

    backoff_min: float = 0.2
    backoff_max: float = 10.0
    stable_seconds: float = 30.0
    start_seconds: float = 60.0
    start_tries: int = 4
    alive_seconds: float = 5.0
    """Between two liveness checks."""
    alive_failures: int = 6
    """Failed checks in a row after which a part is restarted: a moment of load is none of them."""


@dataclass(slots=True)
class _Kept:
    part: Part
    view: PartView
    up: asyncio.Event = field(default_factory=asyncio.Event)
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    process: asyncio.subprocess.Process | None = None
    task: "asyncio.Task[None] | None" = None
    delay: float = 0.0
    failures: int = 0
    ended: str = ""
    ended_at: float | None = None


def _ignore(_: PartView) -> None:
    pass


class Supervisor:
    def __init__(
        self,
        parts: Sequence[Part],
        *,
        on_change: Callable[[PartView], None] = _ignore,
        patience: RestartPatience | None = None,
    ) -> None:
        self._patience = patience or RestartPatience()
        self._on_change = on_change
        self._hurry = asyncio.Event()
        self._supervised = [_Kept(part, PartView(part.name, PartState.STOPPED, None, 0, time.time())) for part in parts]
        self._logs: asyncio.Task[None] | None = None

    def views(self) -> list[PartView]:
        return [entry.view for entry in self._supervised]

    async def start(self, stage: int) -> None:
        """Start the stage's parts; returns when each was ready once. Raises StartError if one cannot be."""
        if self._logs is None:
            self._logs = asyncio.create_task(keep_logs_small([entry.part.log_file for entry in self._supervised]))
        members = [entry for entry in self._supervised if entry.part.stage == stage]
        for entry in members:
            entry.task = asyncio.create_task(self._keep(entry), name=f"keep {entry.part.name}")
        ready_tasks = [asyncio.create_task(self._first_ready(entry)) for entry in members]
        try:
            await asyncio.gather(*ready_tasks)
        finally:
            for wait in ready_tasks:
                wait.cancel()

    async def stop(self) -> None:
        """Stop everything that runs, last stage first."""
        for stage in sorted({entry.part.stage for entry in self._supervised}, reverse=True):
            members = [entry for entry in self._supervised if entry.part.stage == stage and entry.task is not None]
            await asyncio.gather(*(self._stop_part(entry) for entry in members))
        if self._logs is not None:
            self._logs.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._logs
            self._logs = None

    def hurry(self) -> None:
        """Cut every grace period short, now and for what is still to be stopped."""
        self._hurry.set()

    # -- one part ----------------------------------------------------------------------------------

    async def _first_ready(self, entry: _Kept) -> None:
        assert entry.task is not None
        up = asyncio.create_task(entry.up.wait())
        try:
            await asyncio.wait(
                {up, entry.task},
                timeout=entry.part.start_seconds or self._patience.start_seconds,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            up.cancel()
        if entry.up.is_set():
            return
        if entry.task.done():
            await entry.task  # raises the reason
            raise StartError(f"{entry.part.name} was stopped before it was ready")
        waited = f"{entry.part.start_seconds or self._patience.start_seconds:g} s"
        raise StartError(f"{entry.part.name} was not ready after {waited}; {_log_tail(entry.part.log_file)}")

    async def _keep(self, entry: _Kept) -> None:
        while not entry.stop.is_set():
            began = time.monotonic()
            try:
                ended = await self._run_once(entry)
            except Exception as error:
                if not entry.up.is_set():
                    self._change(entry, PartState.FAILED, str(error))
                    raise
                ended = str(error)
            entry.process = None
            if entry.stop.is_set():
                break
            entry.failures += 1
            entry.ended, entry.ended_at = ended, time.time()
            if not entry.up.is_set() and entry.failures >= self._patience.start_tries:
                self._change(entry, PartState.FAILED, ended)
                raise StartError(f"{entry.part.name} {ended} at start; {_log_tail(entry.part.log_file)}")
            await self._back_off(entry, ended, time.monotonic() - began)
        self._change(entry, PartState.STOPPED)

    async def _back_off(self, entry: _Kept, ended: str, ran_seconds: float) -> None:
        patience = self._patience
        if ran_seconds >= patience.stable_seconds:
            entry.delay = 0.0
        entry.delay = min(max(entry.delay * 2, patience.backoff_min), patience.backoff_max)
        self._change(entry, PartState.WAITING, ended)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(entry.stop.wait(), entry.delay)

    async def _run_once(self, entry: _Kept) -> str:
        """Run the part until it ends; says how it ended."""
        part = entry.part
        self._change(entry, PartState.STARTING, restarts=entry.failures)
        if part.prepare is not None:
            await asyncio.to_thread(part.prepare)
        if entry.stop.is_set():
            return "was stopped"
        rotate_log(part.log_file)
        with part.log_file.open("ab") as log:
            entry.process = process = await asyncio.create_subprocess_exec(
                *part.command(),
                env=dict(part.environment),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=part.pass_fds,
                start_new_session=True,
            )
        self._change(entry, PartState.STARTING)
        if entry.stop.is_set():
            _send(process, part.stop_signal)
        ended = asyncio.create_task(process.wait())
        try:
            await self._watch_ready(entry, ended)
            if await self._watch_alive(entry, ended):
                return _how(await ended)
            await self._end_stuck(process, part, ended)
            return f"failed its liveness check and {_how(await ended)}"
        except BaseException:
            _send(process, signal.SIGKILL)
            raise
        finally:
            ended.cancel()
            if part.clean_up is not None:
                part.clean_up()

    async def _watch_alive(self, entry: _Kept, ended: "asyncio.Task[int]") -> bool:
        """Returns when the part has ended or is to stop; False as soon as it is known not to work any more."""
        failures = 0
        while entry.part.alive is not None and not ended.done() and not entry.stop.is_set():
            await asyncio.wait({ended}, timeout=self._patience.alive_seconds)
            if ended.done() or entry.stop.is_set():
                break
            failures = 0 if await _ask(entry.part.alive, ended) else failures + 1
            if failures >= self._patience.alive_failures:
                return ended.done() or entry.stop.is_set()
        return True

    async def _end_stuck(self, process: asyncio.subprocess.Process, part: Part, ended: "asyncio.Task[int]") -> None:
        """It gets a moment to finish what it can; what is stuck does not end by itself."""
        _send(process, part.stop_signal)
        await asyncio.wait({ended}, timeout=_HURRY_SECONDS)
        if not ended.done():
            _send(process, signal.SIGKILL)

    async def _watch_ready(self, entry: _Kept, ended: "asyncio.Task[int]") -> None:
        while entry.part.ready is not None and not ended.done() and not entry.stop.is_set():
            if await _ask(entry.part.ready, ended):
                break
            await asyncio.wait({ended}, timeout=_READY_POLL_SECONDS)
        if not ended.done() and not entry.stop.is_set():
            self._change(entry, PartState.RUNNING)
            entry.up.set()

    async def _stop_part(self, entry: _Kept) -> None:
        assert entry.task is not None
        entry.stop.set()
        if entry.process is not None and not entry.task.done():
            self._change(entry, PartState.STOPPING)
            _send(entry.process, entry.part.stop_signal)
            if not await self._ended(entry, entry.part.grace_seconds, hurry=True):
                _send(entry.process, entry.part.hurry_signal)
                if not await self._ended(entry, _HURRY_SECONDS):
                    _send(entry.process, signal.SIGKILL)
        with contextlib.suppress(Exception):  # why it failed was raised by `start`
            await entry.task

    async def _ended(self, entry: _Kept, seconds: float, *, hurry: bool = False) -> bool:
        assert entry.task is not None
        events: set[asyncio.Task[None] | asyncio.Task[bool]] = {entry.task}
        hurried = asyncio.create_task(self._hurry.wait())
        if hurry:
            events.add(hurried)
        await asyncio.wait(events, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        hurried.cancel()
        return entry.task.done()

    def _change(self, entry: _Kept, state: PartState, note: str = "", *, restarts: int | None = None) -> None:
        pid = entry.process.pid if entry.process is not None and state != PartState.WAITING else None
        entry.view = PartView(
            entry.part.name,
            state,
            None if state in (PartState.STOPPED, PartState.FAILED) else pid,
            entry.view.restarts if restarts is None else restarts,
            time.time(),
            note,
            entry.ended,
            entry.ended_at,
        )
        self._on_change(entry.view)


async def run_together(*works: Awaitable[None]) -> None:
    """Does all of them at once. When one fails, the others have ended before this raises: none starts anything more."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _ask(question: Callable[[], Awaitable[bool]], ended: "asyncio.Task[int]") -> bool:
    """The question may take seconds; a child that ends meanwhile is seen at once."""
    answer = asyncio.ensure_future(question())
    try:
        await asyncio.wait({ended, answer}, return_when=asyncio.FIRST_COMPLETED)
        return answer.done() and answer.result()
    finally:
        answer.cancel()


def _send(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        if number == signal.SIGKILL:
            # Each child leads a session of its own; what it started itself goes with it.
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)


def _how(status: int) -> str:
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"


def _log_tail(path: Path, lines: int = 5) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 4096))
            text = file.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return f"nothing in {path}"
    tail = "\n  ".join(text.strip().splitlines()[-lines:])
    return f"the end of {path}:\n  {tail}" if tail else f"nothing in {path}"
