"""A program on a real pseudo-terminal, and the screen that a person would see: the bytes go through an emulator."""

import fcntl
import os
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import pyte

CTRL_C, CTRL_D, TAB, ENTER, UP = "\x03", "\x04", "\t", "\r", "\x1b[A"
_SECONDS = 60.0


class _AnsweringScreen(pyte.Screen):
    """Answers where its cursor is, as terminals do."""

    answer: Callable[[str], None] = staticmethod(lambda _: None)

    def write_process_input(self, data: str) -> None:
        self.answer(data)


class TerminalSession:
    """The terminal is the controlling one of the program: Ctrl-C is a signal where the program has not changed that."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], *, columns: int = 80, lines: int = 200
    ) -> None:
        self._master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self._lock = threading.Lock()
        self.screen = _AnsweringScreen(columns, lines)
        self.screen.answer = self.send
        self._stream = pyte.ByteStream(self.screen)
        self.process = subprocess.Popen(
            command,
            env=dict(environment),
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(slave)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> "TerminalSession":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join(10)
        os.close(self._master)

    def _read(self) -> None:
        with suppress(OSError):  # the program has ended
            while data := os.read(self._master, 65536):
                with self._lock:
                    self._stream.feed(data)

    def send(self, text: str) -> None:
        os.write(self._master, text.encode())

    @property
    def text(self) -> str:
        """The lines of the screen, without blanks at their ends."""
        with self._lock:
            return "\n".join(line.rstrip() for line in self.screen.display).rstrip()

    def wait_for(self, condition: str | Callable[[str], bool], seconds: float = _SECONDS) -> str:
        """Waits until the screen has the text, or the condition holds of it."""
        holds = condition if callable(condition) else lambda text: condition in text
        deadline = time.monotonic() + seconds
        while not holds(self.text):
            assert time.monotonic() < deadline, f"expected {condition!r} on the screen:\n{self.text}"
            time.sleep(0.02)
        return self.text

    def wait_for_end(self) -> int:
        status = self.process.wait(_SECONDS)
        self._reader.join(10)
        return status
