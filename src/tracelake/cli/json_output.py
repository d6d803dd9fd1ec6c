"""`--json`, and the one place where what a command prints with it is escaped.

A name may hold characters that rewrite what a terminal shows. The option escapes everything that the command writes to
standard output, however it writes it, so that no command can forget to.
"""

import codecs
import functools
import io
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

import click

from tracelake.cli.text import escape_json


def json_flag(help_text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The option `--json`; the command gets it as `as_json`."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def with_escaped_output(*arguments: Any, as_json: bool, **options: Any) -> Any:
            if not as_json:
                return command(*arguments, as_json=False, **options)
            with escaped_output():
                return command(*arguments, as_json=True, **options)

        return click.option("--json", "as_json", is_flag=True, help=help_text)(with_escaped_output)

    return decorate


json_option = json_flag("Print one line of JSON.")


class _EscapingWriter(io.RawIOBase):
    def __init__(self, target: BinaryIO) -> None:
        self._target = target
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        """A write may end in the middle of a character."""

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        text = self._decoder.decode(bytes(data))
        self._target.write(escape_json(text).encode("utf-8", "surrogateescape"))
        self._target.flush()  # the buffer above it passes on what is to be seen now, but not the order to flush
        return len(memoryview(data))

    def isatty(self) -> bool:
        return self._target.isatty()

    def fileno(self) -> int:
        return self._target.fileno()


@contextmanager
def escaped_output() -> Iterator[None]:
    """Escape whatever is written to standard output meanwhile."""
    target = sys.stdout
    if target is None:  # closed before the process began: nobody reads it
        yield
        return
    target.flush()
    writer = io.BufferedWriter(_EscapingWriter(target.buffer))
    escaped = io.TextIOWrapper(writer, "utf-8", "surrogateescape", write_through=True)
    sys.stdout = escaped
    try:
        yield
    finally:
        sys.stdout = target
        escaped.flush()
