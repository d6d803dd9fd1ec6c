"""The session of a command: it finds the stack, calls the API as the user, and shows the answers.

With `--json` standard output holds one document and nothing else, also for a failure (`{"error": {"code": ...}}`);
everything for people then goes to standard error.
"""

import asyncio
import functools
import os
import shlex
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click
import msgspec
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.live import Live
from rich.segment import Segment
from rich.text import Text

from tracelake.cli.json_output import json_option
from tracelake.cli.listing import whole_line
from tracelake.cli.option_names import name_option
from tracelake.cli.options import context_option, home_option, stack_option, token_file_option
from tracelake.cli.text import clean
from tracelake.client.errors import DispatcherUnavailableError, StackDownError
from tracelake.client.internal import InternalClient
from tracelake.client.name_suggestions import suggest_names
from tracelake.client.stack import NoStackError, Stack, find_stack
from tracelake.client.user import UserClient
from tracelake.errors import TraceError
from tracelake.wire.base import ErrorBody, ErrorInfo

T = TypeVar("T")

EVERY_SECONDS = 1.0
NEW_PROJECT = "my_project"
EXAMPLE = f"{NEW_PROJECT}/activity.yaml"
"""The document that `trace init` writes there, which a new user can deploy."""
NO_STACK = "no_stack"
"""The error code with --json when no stack runs."""
_PATIENCE = 60
"""How many refreshes in a row may fail before a command gives up; a restart of the Dispatcher takes far fewer."""
_UNNOTICED_SECONDS = 1
"""A wait that is not longer is not announced."""
_PIPE_WIDTH = 1000
"""The width of output that is not a terminal: rows stay on one line for grep and awk."""


class Session:
    def __init__(
        self,
        home: Path | None = None,
        token_file: Path | None = None,
        *,
        as_json: bool = False,
        context: str | None = None,
    ) -> None:
        self.as_json = as_json
        self.console = make_console(stderr=as_json)
        self.home = home
        self.token_file = token_file
        self.context = context

    def run(self, work: Callable[[UserClient], Awaitable[T]], **names: str | None) -> T:
        """Runs the work; an error about one of the names suggests the nearest one that exists."""
        return asyncio.run(self._run(lambda client: suggest_names(client, work(client), **names)))

    @property
    def stack(self) -> Stack:
        return find_stack(self.home, self.context)

    async def _run(self, work: Callable[[UserClient], Awaitable[T]]) -> T:
        stack = self.stack
        try:
            client = UserClient.of_stack(stack, self.token_file, again=lambda: self.stack)
        except OSError:  # also when the file holds no certificate
            next_step = "run `trace status`" if stack.context is None else "log in again with `trace login`"
            raise NoStackError(f"{stack.ca_file} holds no CA certificate; {next_step}") from None
        client.on_wait = _announce_wait
        try:
            return await work(client)
        except DispatcherUnavailableError as error:
            raise DispatcherUnavailableError(_explain_silence(error.message, stack)) from error
        finally:
            await client.close()

    def ask(self, work: Callable[[UserClient], Awaitable[T]], **names: str | None) -> T:
        """Runs the work and returns its result for people; with --json prints it and ends the command."""
        return self.answer(self.run(work, **names))

    def view(
        self,
        work: Callable[[UserClient], Awaitable[T]],
        render: Callable[[T], RenderableType],
        *,
        watch: bool,
        **names: str | None,
    ) -> T:
        """Shows what the work fetches and returns it; with `watch` shows it every second and does not return."""
        if watch:
            self.watch(work, render)
        document = self.ask(work, **names)
        self.show(render(document))
        return document

    def watch(self, work: Callable[[UserClient], Awaitable[T]], render: Callable[[T], RenderableType]) -> NoReturn:
        """Shows what the work fetches every second, until Ctrl-C ends the command."""
        if self.as_json:
            raise click.UsageError("--watch is for people; leave out --json.")

        async def refresh(client: UserClient) -> None:
            with live_view(self.console) as update:
                async for item in looks(lambda: work(client)):
                    update(Text(away(item), style="yellow") if isinstance(item, TraceError) else render(item))

        with suppress(KeyboardInterrupt):
            self.run(refresh)
        raise click.exceptions.Exit(0)

    def ask_service(self, work: Callable[[InternalClient], Awaitable[T]]) -> T:
        """Like `ask`, but with the stack's service token: for commands of the platform's operator."""
        return self.answer(asyncio.run(self._run_service(work)))

    async def _run_service(self, work: Callable[[InternalClient], Awaitable[T]]) -> T:
        client = self.stack.internal_client()
        try:
            return await work(client)
        finally:
            await client.close()

    # --- showing

    def answer(self, document: T, status: int = 0) -> T:
        """Returns the document, to be shown to people; with --json prints it and ends the command with the status."""
        if self.as_json:
            self.json(document)
            raise click.exceptions.Exit(status)
        return document

    def json(self, document: Any) -> None:
        click.echo(msgspec.json.encode(document))

    def error(self, error: TraceError) -> None:
        """Prints the JSON document of a failure, as the API writes it."""
        self.json(ErrorBody(error=ErrorInfo(code=error.code, message=error.message, details=error.details)))

    def show(self, *parts: RenderableType) -> None:
        show(self.console, *parts)

    def say(self, *parts: str | tuple[str, str]) -> None:
        """Shows one sentence, of cleaned parts; a part may have a style."""
        self.show(
            Text.assemble(*(clean(part) if isinstance(part, str) else (clean(part[0]), part[1]) for part in parts))
        )

    def hint(self, purpose: str, *command: str | int) -> None:
        """Shows a next step: its purpose, and a command line that can be copied."""
        self.show(whole_line(self.hint_text(purpose, *command)))

    def say_to_copy(self, purpose: str, text: str) -> None:
        """Shows a text that can be copied, which is no command of `trace`."""
        self.show(whole_line(Text.assemble((f"{purpose}: ", "dim"), (clean(text), "bold"))))

    def hint_first_dag(self, purpose: str) -> None:
        """Shows how somebody who has no DAG yet gets one."""
        self.show(whole_line(Text.assemble(("write one that works: ", "dim"), (f"trace init {NEW_PROJECT}", "bold"))))
        self.hint(purpose, "deploy", EXAMPLE)

    def hint_text(self, purpose: str, *command: str | int) -> Text:
        words = ["trace", *(str(word) for word in command)]
        if self.home is not None:
            words += ["--home", str(self.home)]
        if self.context is not None:
            words += ["--context", self.context]
        return Text.assemble((f"{purpose}: ", "dim"), (clean(shlex.join(words)), "bold"))


def _announce_wait(refusal: TraceError, seconds: float) -> None:
    """Says on standard error why a command seems to stand still; a second is too short to be noticed."""
    if seconds > _UNNOTICED_SECONDS:
        line = f"{refusal.code}: {refusal.message.rstrip('.')}. Trying again in {seconds:g} seconds; Ctrl-C gives up."
        click.echo(clean(line), err=True)


def _explain_silence(reason: str, stack: Stack) -> str:
    if stack.context is None:
        return f"The Dispatcher does not answer ({reason}); `trace status` shows which part is down."
    return (
        f"The stack of the context {stack.context} does not answer at {stack.public_url} ({reason}); "
        "check the network, or ask whoever operates it."
    )


@contextmanager
def live_view(console: Console) -> Iterator[Callable[[RenderableType], None]]:
    """Yields a function that shows a view: on a terminal over the last one, elsewhere whenever it has changed."""
    if console.is_terminal:
        with Live(console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False) as live:
            yield lambda view: live.update(view, refresh=True)
        return
    frame = ""

    def update(view: RenderableType) -> None:
        nonlocal frame
        with console.capture() as capture:
            show(console, view)
        if capture.get() != frame:
            frame = capture.get()
            click.echo(frame, nl=False, err=console.stderr)

    yield update


async def looks(look: Callable[[], Awaitable[T]]) -> AsyncIterator[T | TraceError]:
    """Yields the result of a look every second, for ever. A retryable error is yielded too, and raised if it stays.

    A stack that was stopped is waited for until somebody starts it.
    """
    failures = 0
    while True:
        try:
            result: T | TraceError = await look()
            failures = 0
        except TraceError as error:
            failures += not isinstance(error, StackDownError)
            if not error.retryable or failures > _PATIENCE:
                raise
            result = error
        yield result
        await _pause()


async def _pause() -> None:
    await asyncio.sleep(EVERY_SECONDS)


def away(error: TraceError) -> str:
    if isinstance(error, StackDownError):
        return "The stack is down; waiting for `trace up` ..."
    return f"The Dispatcher does not answer right now ({clean(error.message)}); trying again ..."


class _Trimmed:
    """A part without the blanks with which tables pad their last column, so that lines can be copied."""

    def __init__(self, part: RenderableType) -> None:
        self._part = part

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in Segment.split_lines(console.render(self._part, options)):
            while line and not line[-1].text.strip():
                line.pop()
            if line:
                line[-1] = line[-1]._replace(text=line[-1].text.rstrip())
            yield from line
            yield Segment.line()


def show(console: Console, *parts: RenderableType) -> None:
    for part in parts:
        # Nothing is cropped: what is wider than the terminal is the terminal's to wrap.
        console.print(_Trimmed(part), end="", crop=False)


def make_console(*, stderr: bool = False) -> Console:
    """A console without markup, emoji or highlighting: it shows what a server answers as it is."""
    stream = sys.stderr if stderr else sys.stdout
    piped = stream is None or not stream.isatty()
    width = _PIPE_WIDTH if piped and not os.environ.get("COLUMNS") else None
    return Console(stderr=stderr, markup=False, emoji=False, highlight=False, width=width)


def user_command(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options of every command over the user API; the command gets a `Session` first."""

    @stack_option
    @context_option
    @token_file_option
    @json_option
    @functools.wraps(function)
    def with_session(
        *, home: Path | None, context: str | None, token_file: Path | None, as_json: bool, **options: Any
    ) -> Any:
        session = Session(home, token_file, as_json=as_json, context=context)
        try:
            return function(session, **options)
        except TraceError as error:
            if as_json:
                session.error(error)
            error.details = name_option(error.details)
            raise
        except NoStackError as error:
            if as_json:
                session.json(ErrorBody(error=ErrorInfo(code=NO_STACK, message=str(error))))
            raise

    return with_session


def operator_command(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options of a command for the platform's operator; the command gets a `Session` first."""

    @home_option
    @json_option
    @functools.wraps(function)
    def with_session(*, home: Path | None, as_json: bool, **options: Any) -> Any:
        return function(Session(home, as_json=as_json), **options)

    return with_session
