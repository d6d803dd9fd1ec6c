"""A stack for the demo: `trace up` as a child, exactly as a person would run it, in a home of its own.

However the demo ends, the stack is told to stop; only one that is to be kept outlives it.
"""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress

import msgspec

from tracelake.client.stack import LocalStack
from tracelake.demo import DemoError
from tracelake.demo.directory import DemoDirectory
from tracelake.demo.plan import DemoPlan
from tracelake.settings.home import Home, private_directory, write_private
from tracelake.stack.machine import wrap

LEASE_SECONDS = 4
SETTINGS = {
    # Short, so that one can watch: after a kill it takes a lease, not minutes, until somebody else goes on.
    "lease_seconds": str(LEASE_SECONDS),
    "heartbeat_seconds": "1",
    "retry_min_seconds": "0.5",
    "retry_max_seconds": "5",
    "max_attempts": "10",
    "queue_visibility_seconds": "5",
    "reconcile_seconds": "5",
    "reconcile_grace_seconds": "15",
    "workers": "2",
    # A process of its own, so that it can be killed by itself.
    "worker_sink": "false",
    "sinks": "1",
    # One is the follower's of the live chain for good.
    "worker_slots": "6",
    "spark_master": "local[2]",
    # Two workers on few cores: a process that waits for another org would take its start from the work.
    "spark_spare": "false",
}
_JAVA = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""Options for a Java that lives a minute: it compiles little, and quickly."""
_TRIES = 3
_TAKEN = "address already in use"
_MOST_LINES = 6
_POLITE_SECONDS, _STOP_SECONDS = 3.0, 60.0


class DemoStack:
    def __init__(self, directory: DemoDirectory, plan: DemoPlan, *, keep: bool) -> None:
        self.home = Home(directory.home)
        self.log = directory.scratch / "up.log"
        self._temporary = directory.scratch / "tmp"
        self._plan = plan
        self._keep = keep
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> LocalStack:
        """Returns when everything is ready."""
        if self._plan.url is not None:
            # A file that only we can read: the address may hold a key.
            private_directory(self.home.root)
            write_private(self.home.rpc_file, f"default = {json.dumps(self._plan.url)}\n")
        for _ in range(_TRIES):
            line = self._launch()
            if line:
                return msgspec.json.decode(line, type=LocalStack)
            self.stop()  # it is ending already
            log_text = self.log.read_text(errors="replace").strip()
            # Somebody else took a port between our choice and our start: the next start chooses another.
            if _TAKEN not in log_text.lower():
                break
        lines = log_text.removeprefix("error: ").splitlines()[:_MOST_LINES]
        raise DemoError("the stack did not start: " + ("\n".join(lines) or "no reason given"))

    def _launch(self) -> bytes:
        """Starts the stack and returns the line that it prints when ready; empty if it ended before."""
        command = [sys.executable, "-m", "tracelake", "up", f"--home={self.home.root}", "--json", *self._settings()]
        private_directory(self._temporary)
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                command if self._keep else wrap(command, death_signal=signal.SIGTERM),
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                # Ctrl-C is for the demo, which then stops the stack in order.
                start_new_session=True,
            )
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def stop(self) -> None:
        """Tell it to stop and wait. After a moment it is told to hurry: nobody needs what it stores any more."""
        process = self._process
        if process is None:
            return
        for number, seconds in (
            (signal.SIGTERM, _POLITE_SECONDS),
            (signal.SIGTERM, _STOP_SECONDS),
            (signal.SIGKILL, _STOP_SECONDS),
        ):
            with suppress(ProcessLookupError):
                process.send_signal(number)
            with suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
                process.wait(seconds)
                return
        process.wait()

    def _settings(self) -> list[str]:
        settings = dict(SETTINGS)
        if self._plan.recording is not None:
            settings["recorded_chain"] = str(self._plan.recording)
        return [f"--set={name}={value}" for name, value in settings.items()]

    def _environment(self) -> dict[str, str]:
        """The person's settings are for the person's stack. Temporary files of killed processes go with the rest."""
        variables = {name: value for name, value in os.environ.items() if not name.startswith("TRACE_")}
        java = f"{variables.get('JDK_JAVA_OPTIONS', '')} {_JAVA}".strip()
        return variables | {"JDK_JAVA_OPTIONS": java, "TMPDIR": str(self._temporary)}
