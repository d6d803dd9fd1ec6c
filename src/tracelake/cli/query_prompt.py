"""The prompt of `trace query`: history, several lines, completion, and colours that follow the SQL.

On a terminal that cannot move its cursor (TERM=dumb), or where the output goes elsewhere, lines are read as they come.
"""

import asyncio
import os
import sys
import time
from collections.abc import Callable, Iterable

import click
from prompt_toolkit import PromptSession
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, get_common_complete_suffix
from prompt_toolkit.document import Document
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.history import History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.lexers import Lexer
from prompt_toolkit.styles import Style

from tracelake.cli.query_history import BoundedHistory, history_file
from tracelake.cli.query_runner import QueryRunner
from tracelake.cli.query_shell import COMMANDS, LeaveShell, QueryShell
from tracelake.cli.sql_completion import KEYWORDS, RESERVED, complete
from tracelake.cli.sql_text import TokenKind, is_complete, quote_name, scan
from tracelake.client.stack import NoStackError
from tracelake.errors import TraceError

PROMPT, CONTINUATION = "trace> ", "   ..> "
_GREETING = "SQL over your datasets; `;` ends a statement. \\d lists the datasets, \\? helps."
_CATALOG_SECONDS = 30.0
"""After this time the catalog is read again, when a line is about to be entered."""
_STYLE = Style.from_dict(
    {
        "prompt": "bold",
        "keyword": "ansiblue bold",
        "string": "ansigreen",
        "comment": "ansibrightblack",
        "name": "ansicyan",
        "command": "ansimagenta",
    }
)


class PromptInterrupt(Exception):  # noqa: N818 - not an error
    """Ctrl-C while nothing runs: the line is dropped."""


class SqlCompleter(Completer):
    """Candidates of the catalog as it was read last."""

    def __init__(self) -> None:
        self.relations: dict[str, dict[str, str]] = {}

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:  # noqa: ARG002
        before = document.text_before_cursor
        if before.startswith("\\"):
            yield from self._complete_command(before)
            return
        for candidate in complete(document.text, document.cursor_position, self.relations):
            yield Completion(
                candidate.text,
                start_position=candidate.start - document.cursor_position,
                display_meta=f"{candidate.kind} {candidate.detail}".strip(),
            )

    def _complete_command(self, before: str) -> Iterable[Completion]:
        name, blank, argument = before.partition(" ")
        if not blank:
            for command, (_, text) in COMMANDS.items():
                if command.startswith(name):
                    yield Completion(command, start_position=-len(name), display_meta=text)
        elif name == "\\d":
            for relation, columns in self.relations.items():
                if relation.lower().startswith(argument.lower()):
                    meta = f"{len(columns)} columns"
                    yield Completion(quote_name(relation, RESERVED), start_position=-len(argument), display_meta=meta)


class SqlLexer(Lexer):
    def lex_document(self, document: Document) -> Callable[[int], StyleAndTextTuples]:
        lines: list[StyleAndTextTuples] = [[]]
        if document.text.startswith("\\"):
            lines = [[("class:command", line)] for line in document.lines]
        else:
            for token in scan(document.text):
                style = _style(token.kind, token.text)
                first, *more = token.text.split("\n")
                lines[-1].append((style, first))
                lines += [[(style, part)] for part in more]
        return lambda number: lines[number] if number < len(lines) else []


def _style(kind: TokenKind, text: str) -> str:
    if kind is TokenKind.WORD:
        return "class:keyword" if text.lower() in KEYWORDS else ""
    if kind is TokenKind.BLANK:
        return "class:comment" if not text.isspace() else ""
    return {TokenKind.STRING: "class:string", TokenKind.NAME: "class:name"}.get(kind, "")


def run_prompt(shell: QueryShell, runner: QueryRunner) -> None:
    """Reads and runs statements until Ctrl-D or `\\q`."""
    if os.environ.get("TERM") in (None, "", "dumb") or not sys.stdout.isatty():
        read: Callable[[], str] = lambda: _read_line(shell)  # noqa: E731
    else:
        read = _TerminalReader(runner).read
    click.echo(_GREETING, err=True)
    while True:
        try:
            text = read()
            shell.feed(text)
        except (PromptInterrupt, KeyboardInterrupt):
            shell.discard()
        except (EOFError, LeaveShell):
            return


def _read_line(shell: QueryShell) -> str:
    """From a terminal without editing. The prompt goes to standard error, so that output is results alone."""
    click.echo(CONTINUATION if shell.is_pending else PROMPT, nl=False, err=True)
    try:
        line = sys.stdin.readline()
    except KeyboardInterrupt:
        click.echo(err=True)
        raise
    if not line:
        click.echo(err=True)
        raise EOFError
    return line.rstrip("\r\n")


class _TerminalReader:
    def __init__(self, runner: QueryRunner) -> None:
        self._runner = runner
        self._completer = SqlCompleter()
        self._read_at = -_CATALOG_SECONDS
        self._reading: asyncio.Task[None] | None = None
        self._session: PromptSession[str] = PromptSession(
            [("class:prompt", PROMPT)],
            multiline=True,
            # A line that the terminal wraps is not a new one.
            prompt_continuation=lambda width, _line, wraps: " " * width if wraps else CONTINUATION,
            completer=self._completer,
            complete_while_typing=False,
            lexer=SqlLexer(),
            style=_STYLE,
            history=_open_history(),
            key_bindings=_key_bindings(),
            interrupt_exception=PromptInterrupt,
            enable_open_in_editor=False,
        )

    def read(self) -> str:
        if self._reading is None and time.monotonic() - self._read_at >= _CATALOG_SECONDS:
            self._reading = self._runner.start(self._read_catalog())
        return self._runner.wait(self._session.prompt_async())

    async def _read_catalog(self) -> None:
        """While the person types. Without it, functions and keywords are still completed."""
        try:
            relations = await self._runner.fetch_catalog()
            self._completer.relations = {
                relation.name: {column.name: column.type for column in relation.columns} for relation in relations
            }
        except (TraceError, NoStackError, OSError):
            pass
        finally:
            self._read_at, self._reading = time.monotonic(), None


def _key_bindings() -> KeyBindings:
    bindings = KeyBindings()

    @bindings.add("enter")
    def _(event: KeyPressEvent) -> None:
        """Runs what is complete; otherwise a new line begins."""
        buffer = event.current_buffer
        if buffer.complete_state is not None and buffer.complete_state.current_completion is not None:
            buffer.complete_state = None  # takes the candidate
        elif buffer.text.lstrip().startswith("\\") or is_complete(buffer.text):
            buffer.validate_and_handle()
        else:
            buffer.newline(copy_margin=False)

    @bindings.add("c-i")
    def _(event: KeyPressEvent) -> None:
        """Completes as far as there is no choice, then offers the choice; at the start of a line it indents."""
        buffer = event.current_buffer
        if not buffer.document.current_line_before_cursor.strip() and buffer.document.line_count > 1:
            buffer.insert_text("  ")
        elif buffer.complete_state is not None:
            buffer.complete_next()
        else:
            _complete(buffer)

    return bindings


def _complete(buffer: Buffer) -> None:
    """At once: the next key may end the statement."""
    event = CompleteEvent(completion_requested=True)
    completions = list(buffer.completer.get_completions(buffer.document, event))
    if len(completions) == 1:
        buffer.apply_completion(completions[0])
    elif common := get_common_complete_suffix(buffer.document, completions):
        buffer.insert_text(common)
    elif completions:
        buffer.start_completion()


def _open_history() -> History:
    try:
        return BoundedHistory(history_file())
    except RuntimeError:  # a user without a home
        return InMemoryHistory()
