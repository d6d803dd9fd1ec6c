"""What a person enters at the prompt, or a program on standard input: statements, and commands that begin with `\\`."""

import io
import re
import shlex
import sys
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Literal

import click
from rich.text import Text

from tracelake.cli.error_text import query_error_lines
from tracelake.cli.export import check_target
from tracelake.cli.listing import Listing, ListingColumn, whole_line
from tracelake.cli.names import suggestion
from tracelake.cli.query_output import save_result, wire_format, write_result
from tracelake.cli.query_runner import QueryRunner
from tracelake.cli.query_table import render, show_result, type_text
from tracelake.cli.row_formats import ENDINGS
from tracelake.cli.session import Session
from tracelake.cli.sql_text import is_complete, split
from tracelake.cli.text import clean_lines
from tracelake.client.query import QueryResult
from tracelake.client.stack import NoStackError
from tracelake.errors import TraceError
from tracelake.wire import routes
from tracelake.wire.query import (
    MAX_SQL_CHARS,
    CatalogRelation,
    ParameterValue,
    QueryReply,
    QueryRequest,
    ResultColumn,
)

ScreenFormat = Literal["table", "csv", "json", "jsonl"]

COMMANDS = {
    "\\d": ("\\d [NAME]", "list the datasets, or the columns of one"),
    "\\o": ("\\o FILE", f"write the next result to a file ({', '.join(ENDINGS)})"),
    "\\param": ("\\param [NAME:TYPE=VALUE]", "give $NAME a value, or list the values"),
    "\\q": ("\\q", "leave (or Ctrl-D)"),
    "\\rows": ("\\rows N", "show at most N rows of a result; 0 shows all"),
    "\\timing": ("\\timing", "show times and bytes, or no longer"),
    "\\x": ("\\x", "show each column on a line of its own, or no longer"),
    "\\?": ("\\?", "show this list"),
}
_KIB = 1024
_DATASET_NAME = re.compile(r"[a-z][a-z0-9_]{0,127}")


class LeaveShell(Exception):  # noqa: N818 - not an error
    """`\\q` was entered."""


@dataclass(slots=True)
class ShellSettings:
    parameters: dict[str, ParameterValue] = field(default_factory=dict)
    limit: int | None = None
    timeout: int | None = None
    screen_format: ScreenFormat = "table"
    expanded: bool = False
    timing: bool = True
    target: Path | None = None
    """The file for the next result."""
    force: bool = False
    """The file may be replaced."""
    shown_rows: int = 0
    """How many rows a table shows at most; 0: all."""


class QueryShell:
    def __init__(self, session: Session, runner: QueryRunner, settings: ShellSettings) -> None:
        self.session = session
        self.settings = settings
        self._runner = runner
        self._pending = ""
        self._commands: dict[str, Callable[[str], None]] = {
            "\\d": self._describe,
            "\\o": self._set_target,
            "\\param": self._set_parameter,
            "\\q": self._leave,
            "\\rows": self._set_shown_rows,
            "\\timing": self._toggle_timing,
            "\\x": self._toggle_expanded,
            "\\?": self._help,
        }

    @property
    def is_pending(self) -> bool:
        """A statement was begun and not ended."""
        return bool(self._pending.strip())

    def discard(self) -> None:
        self._pending = ""

    def feed(self, text: str) -> bool:
        """Runs the statements that end in this text and keeps the rest. False: one failed; what follows it is dropped.

        Raises LeaveShell.
        """
        if text.lstrip().startswith("\\") and is_complete(self._pending):
            self._pending = ""
            return self._run_command(text.strip())
        self._pending += text + "\n"
        if len(self._pending) > 10 * MAX_SQL_CHARS:
            self._pending = ""
            return self._refuse(f"A statement has at most {MAX_SQL_CHARS:,} characters. Does a quote or a `;` lack?")
        if ";" not in text:
            return True
        pieces = split(self._pending)
        self._pending = pieces.rest
        for statement in pieces.statements:
            if not self.run(statement):
                self._pending = ""
                return False
        return True

    def finish(self) -> bool:
        """Runs what was begun and not ended."""
        statement, self._pending = split(self._pending + "\n;"), ""
        return all(self.run(each) for each in (*statement.statements, *filter(None, [statement.rest])))

    def run(self, sql: str) -> bool:
        """Runs one statement and shows its result, or the error."""
        try:
            self.show(self.fetch(sql))
        except TraceError as error:
            self.show_error(error, sql)
            return False
        except click.ClickException as error:  # of the file
            return self._refuse(error.message)
        except NoStackError as error:
            return self._refuse(str(error))
        return True

    # --- results

    def fetch(self, sql: str) -> QueryResult:
        settings = self.settings
        if settings.target is not None:
            check_target(settings.target, force=settings.force, endings=ENDINGS)
        request = QueryRequest(
            sql=sql,
            parameters=settings.parameters,
            limit=settings.limit,
            format=wire_format(self._ending) if self._ending else "json",
            timeout_seconds=settings.timeout,
        )
        return self._runner.run(request)

    @property
    def _ending(self) -> str:
        """The format of a whole result; empty for a table and for --json."""
        if self.settings.target is not None:
            return self.settings.target.suffix.lower()
        is_reply = self.settings.screen_format == "table" or self.session.as_json
        return "" if is_reply else f".{self.settings.screen_format}"

    def show(self, result: QueryResult) -> None:
        settings, reply = self.settings, result.reply
        if settings.target is not None:
            save_result(result, settings.target, force=settings.force)
            self._show_file(settings.target, reply)
            settings.target = None
        elif self.session.as_json:
            self.session.json(reply)
        elif settings.screen_format == "table":
            self._show_table(reply)
        else:
            self._print(result)

    def _show_file(self, target: Path, reply: QueryReply) -> None:
        if self.session.as_json:
            self.session.json({"file": str(target), "rows": reply.row_count})
        else:
            self.session.say(f"{count_rows(reply.row_count)} in {target}.")

    def _print(self, result: QueryResult) -> None:
        """To a file or a program as it is; on a terminal no value may write control characters."""
        stream: BinaryIO = sys.stdout.buffer
        if not stream.isatty():
            write_result(result, self._ending, stream)
            stream.flush()
            return
        sink = io.BytesIO()
        write_result(result, self._ending, sink)
        text = sink.getvalue().decode()
        click.echo(clean_lines(text) if self.settings.screen_format == "csv" else text, nl=False)

    def _show_table(self, reply: QueryReply) -> None:
        settings, console = self.settings, self.session.console
        rows = reply.rows[: settings.shown_rows] if settings.shown_rows else reply.rows
        width = console.width if console.is_terminal else None
        text = render(reply.columns, rows, width, expanded=settings.expanded)
        show_result(console, text)
        notes = [count_rows(reply.row_count)]
        if settings.timing:
            notes += [f"{_size(reply.bytes_read)} read", f"{reply.elapsed_ms:,} ms"]
        self.session.show(Text(f"({', '.join(notes)})", style="dim"))
        if text.shortened:
            self.session.show(Text("Long values are shortened: \\x or --expanded shows them whole.", style="dim"))
        if len(rows) < reply.row_count:
            self._show_rest(reply, len(rows))

    def _show_rest(self, reply: QueryReply, row_count: int) -> None:
        self.session.say(
            f"The first {count_rows(row_count)}; --output FILE, or \\o FILE at the prompt, writes all of them."
        )
        if reply.download is not None and self.session.stack.is_local:
            self.session.say(f"Until {reply.download.expires_at:%H:%M} UTC they are also a Parquet file at:")
            self.session.show(whole_line(Text(reply.download.url)))

    # --- errors

    def show_error(self, error: TraceError, sql: str) -> None:
        if self.session.as_json:
            self.session.error(error)
        if error.code == "query_canceled":
            click.secho("Canceled.", fg="yellow", err=True)
            return
        console = self.session.console
        error = self._explain_relation(error)
        first, *more = query_error_lines(error, sql, console.width if console.is_terminal else 80)
        if console.is_terminal:  # elsewhere a line stays one
            first = textwrap.fill("error: " + first, console.width - 1, break_long_words=False).removeprefix("error: ")
        self._refuse(first)
        for line in more:
            click.echo(line, err=True)

    def _explain_relation(self, error: TraceError) -> TraceError:
        """Says of a dataset that was removed when that was, and how it comes back; otherwise it is the same error."""
        name = error.details.get("name")
        if error.code != "query_unknown_relation" or not isinstance(name, str) or not _DATASET_NAME.fullmatch(name):
            return error
        try:
            self.session.run(lambda client: client.call(routes.SHOW_DATASET, name=name))
        except (TraceError, NoStackError) as answer:
            if isinstance(answer, TraceError) and answer.code == "dataset_removed":
                details = error.details | {"suggestions": []}
                return TraceError("query_unknown_relation", answer.message, **details)
        return error

    def _refuse(self, message: str) -> bool:
        click.echo(click.style("error: ", fg="red") + message, err=True)
        return False

    # --- commands

    def _run_command(self, line: str) -> bool:
        name, _, argument = line.rstrip(";").strip().partition(" ")
        command = self._commands.get(name)
        try:
            if command is None:
                hint = suggestion(name, COMMANDS)
                return self._refuse(f"There is no command {clean_lines(name)}.{hint} \\? lists them.")
            command(argument.strip())
        except TraceError as error:
            self.show_error(error, "")
            return False
        except click.ClickException as error:
            return self._refuse(error.message.removeprefix("--output: ").removeprefix("--param: "))
        except NoStackError as error:
            return self._refuse(str(error))
        return True

    def _describe(self, name: str) -> None:
        relations = self._runner.catalog()
        if not name:
            self._list_datasets(relations)
            return
        lower_name = name.strip('"').lower()
        relation = next((each for each in relations if each.name.lower() == lower_name), None)
        if relation is None:
            raise click.ClickException(f"There is no dataset {name}.{suggestion(name, [r.name for r in relations])}")
        if not relation.columns:
            self.session.say(f"Nothing of {relation.name} has been committed yet, so its columns are not known.")
            return
        name_column: ListingColumn[ResultColumn] = ListingColumn("column", lambda column: column.name)
        type_column: ListingColumn[ResultColumn] = ListingColumn("type", lambda column: type_text(column.type))
        self.session.show(Listing(relation.columns, name_column, type_column))

    def _list_datasets(self, relations: list[CatalogRelation]) -> None:
        if all(relation.storage == "system" for relation in relations):
            self.session.say("No dataset is published yet: deploy a DAG with `trace deploy`.")
        columns: list[ListingColumn[CatalogRelation]] = [
            ListingColumn("dataset", lambda relation: relation.name),
            ListingColumn("columns", lambda relation: len(relation.columns), right=True),
            ListingColumn("stored as", lambda relation: _STORAGES.get(relation.storage)),
        ]
        self.session.show(Listing(relations, *columns))

    def _set_target(self, argument: str) -> None:
        try:
            words = shlex.split(argument)
        except ValueError:
            words = [argument]
        if not words:
            self.settings.target = None
            self.session.say("Results are shown.")
            return
        target = Path(words[0]).expanduser()
        check_target(target, force=False, endings=ENDINGS)
        self.settings.target = target
        self.session.say(f"The next result goes to {target}.")

    def _set_parameter(self, argument: str) -> None:
        if argument:
            name, value = parse_parameter(argument)
            self.settings.parameters = {**self.settings.parameters, name: value}
        for name, value in self.settings.parameters.items():
            self.session.say(f"${name} = {value.value} ({value.type})")

    def _set_shown_rows(self, argument: str) -> None:
        if not argument.isdigit():
            raise click.ClickException("\\rows: expected a number of rows, like \\rows 500; 0 shows all.")
        self.settings.shown_rows = int(argument[:9])

    def _toggle_timing(self, _argument: str) -> None:
        self.settings.timing = not self.settings.timing
        self.session.say(f"Timing is {'on' if self.settings.timing else 'off'}.")

    def _toggle_expanded(self, _argument: str) -> None:
        self.settings.expanded = not self.settings.expanded
        self.session.say(f"Expanded display is {'on' if self.settings.expanded else 'off'}.")

    def _help(self, _argument: str) -> None:
        width = max(len(usage) for usage, _ in COMMANDS.values())
        self.session.say("A statement ends at `;` and may have several lines. Ctrl-C cancels it, Tab completes a name.")
        for usage, text in COMMANDS.values():
            self.session.say(f"  {usage:{width}}  {text}")

    def _leave(self, _argument: str) -> None:
        raise LeaveShell


_STORAGES = {
    "s3": "files",
    "buffered": "a table",
    "postgres": "a table",
    "live": "files and a table",
    "system": "results of checks",
}


def run_script(shell: QueryShell, lines: Iterable[str]) -> bool:
    """Runs statements in turn, up to the first that fails; False if one did."""
    try:
        for line in lines:
            if not shell.feed(line.rstrip("\r\n")):
                return False
        return shell.finish()
    except LeaveShell:
        return True


def parse_parameter(text: str) -> tuple[str, ParameterValue]:
    """`NAME:TYPE=VALUE`."""
    head, separator, value = text.partition("=")
    name, colon, kind = head.partition(":")
    if not (separator and colon and name and kind):
        raise click.UsageError(f"--param: expected NAME:TYPE=VALUE, like low:int64=5, received {text!r}.")
    typed: str | float | bool | None = value
    if kind == "bool":
        if value.lower() not in ("true", "false"):
            raise click.UsageError(f"--param: {name}: expected true or false, received {value!r}.")
        typed = value.lower() == "true"
    elif kind == "float64":
        try:
            typed = float(value)
        except ValueError:
            raise click.UsageError(f"--param: {name}: {value!r} is not a number.") from None
    return name, ParameterValue(type=kind, value=typed)


def count_rows(number: int) -> str:
    return "1 row" if number == 1 else f"{number:,} rows"


def _size(number: float) -> str:
    unit = "B"
    for larger in ("KiB", "MiB", "GiB"):
        if number < _KIB:
            break
        number, unit = number / _KIB, larger
    return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
