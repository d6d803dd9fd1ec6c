"""`trace up --detach`: the stack runs in a process of its own session, and the command returns when it is ready.

The process is a copy of this one (fork), so that every setting is the same, whatever it came from. It has no terminal:
it reads nothing and writes to `HOME/logs/up.log`. It is not told when the terminal of its caller is closed.

A stack that runs already is what was asked for: the command waits until it is ready and succeeds, but says that
settings of this call were not applied. Two calls at the same time start one stack.
"""

import asyncio
import contextlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable

import click

from tracelake.cli.stack_screen import PlainScreen, Screen, choose_screen
from tracelake.cli.status import read_parts
from tracelake.processes.next_steps import find_next_steps
from tracelake.settings import Settings
from tracelake.settings.home import Home, LocalStack
from tracelake.stack import lock
from tracelake.stack.log_files import rotate_log
from tracelake.stack.supervisor import StartError

_LOOK_SECONDS = 0.1
_MOST_LINES = 6


class Detached:
    """One call of `trace up --detach`."""

    def __init__(self, settings: Settings, run: Callable[[Callable[[Home], Screen]], None], *, as_json: bool) -> None:
        """`run` runs the stack in the calling process until it is told to stop."""
        self._settings = settings
        self._home = settings.layout
        self._run = run
        self._as_json = as_json
        self.log_file = self._home.log_file("up")

    def start(self) -> None:
        """Returns when the stack is ready; raises StartError if it ended before."""
        self._home.make()
        holder = lock.holder(self._home.lock_file)
        if holder is None:
            rotate_log(self.log_file)
            began_at = self.log_file.stat().st_size if self.log_file.exists() else 0
            child = self._fork()
            with choose_screen(self._home, json=self._as_json) as screen:
                if self._await_child(child, screen):
                    return
            holder = lock.holder(self._home.lock_file)  # another call may have been faster
            if holder is None:
                raise StartError(f"the stack did not start: {self._read_reason(began_at)}; see {self.log_file}")
        with choose_screen(self._home, json=self._as_json) as screen:
            self._await_running(holder, screen)

    def _fork(self) -> int:
        """The process id of the stack's process."""
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        child = os.fork()
        if child:
            return child
        status = 1
        try:
            os.setsid()
            self._leave_terminal()
            self._run(lambda _home: PlainScreen())
            status = 0
        except BaseException as error:
            _write_reason(error)
        finally:
            with contextlib.suppress(OSError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(status)

    def _leave_terminal(self) -> None:
        nothing = os.open(os.devnull, os.O_RDONLY)
        log = os.open(self.log_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        for source, target in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(source, target)
        # Streams that something has replaced (a pipe of a test, the escaping of --json) write there as well.
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 - for as long as the process lives
        sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)

    def _await_child(self, child: int, screen: Screen) -> bool:
        """Whether the child became ready; False if it ended. Ctrl-C stops it."""
        try:
            while os.waitpid(child, os.WNOHANG)[0] == 0:
                if self._show_progress(child, screen):
                    return True
                time.sleep(_LOOK_SECONDS)
            return False
        except KeyboardInterrupt:
            screen.say("Interrupted. Stopping ...")
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGTERM)
            os.waitpid(child, 0)
            raise

    def _await_running(self, holder: int, screen: Screen) -> None:
        screen.say(f"Trace already runs on {self._home.root} (process {holder}).")
        while lock.holder(self._home.lock_file) == holder:
            if self._show_progress(holder, screen):
                if not self._as_json:
                    click.echo(
                        f"It was running before (process {holder}), so options and variables of this call were not "
                        f"applied. To apply them, first run `trace down --home {self._home.root}`.",
                        err=True,
                    )
                return
            time.sleep(_LOOK_SECONDS)
        raise StartError(f"the stack that ran on {self._home.root} (process {holder}) has stopped; start it again")

    def _show_progress(self, pid: int, screen: Screen) -> bool:
        """Shows the parts; returns whether the stack of this process is ready."""
        for view in read_parts(self._home):
            screen.part(view)
        stack = self._home.read_stack()
        # The file of a killed stack may name a process whose number was given out again.
        if stack is None or stack.pid != pid or lock.holder(self._home.lock_file) != pid:
            return False
        _show_ready(self._settings, stack, screen)
        return True

    def _read_reason(self, began_at: int) -> str:
        with contextlib.suppress(OSError):
            text = self.log_file.read_bytes()[began_at:].decode(errors="replace")
            reason = text.rpartition("error: ")[2] if "error: " in text else text
            lines = [line.strip() for line in reason.strip().splitlines() if line.strip()]
            return "\n".join(lines[:_MOST_LINES]) or "it gave no reason"
        return "it gave no reason"


def _show_ready(settings: Settings, stack: LocalStack, screen: Screen) -> None:
    screen.ready(stack, asyncio.run(find_next_steps(settings)), detached=True)


def _write_reason(error: BaseException) -> None:
    """As the command itself ends: one line for what a person can correct."""
    from tracelake.processes.main import one_line

    text = one_line(error) if isinstance(error, Exception) else None
    with contextlib.suppress(OSError):
        if text is None:
            traceback.print_exception(error)
        else:
            click.echo(f"error: {text}", err=True)
