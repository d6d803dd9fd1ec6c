"""What a command prints with `--json` cannot play tricks on a terminal, whichever command it is."""

import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress

import click
import msgspec
import pytest

from tests.cli.samples import EVIL
from tracelake.cli import json_output
from tracelake.cli.json_output import escaped_output
from tracelake.processes.main import trace

ESCAPED = r"x\u001b[31m\u0007[bold]y[/bold]\u202e\u009b2J"


def json_commands() -> Iterator[tuple[str, click.Command]]:
    """Every command that takes `--json`, also those of groups."""
    groups: list[tuple[str, click.Group]] = [("trace", trace)]
    while groups:
        path, group = groups.pop()
        if any("--json" in param.opts for param in group.params):
            yield path, group
        for name in group.list_commands(click.Context(group)):
            command = group.get_command(click.Context(group), name)
            assert command is not None
            if isinstance(command, click.Group):
                groups.append((f"{path} {name}", command))
            elif any("--json" in param.opts for param in command.params):
                yield f"{path} {name}", command


def test_every_command_prints_json_through_the_escaping_output(monkeypatch: pytest.MonkeyPatch) -> None:
    class EscapedError(Exception):
        pass

    def refuse() -> AbstractContextManager[None]:
        raise EscapedError

    monkeypatch.setattr(json_output, "escaped_output", refuse)
    commands = dict(json_commands())
    assert {"trace status", "trace up", "trace keys rotate", "trace gc", "trace read", "trace demo"} <= commands.keys()
    for path, command in commands.items():
        assert command.callback is not None
        options = dict.fromkeys(param.name for param in command.params if param.name is not None) | {"as_json": True}
        escaped = False
        with suppress(Exception):
            try:
                command.callback(**options)
            except EscapedError:  # before the command did anything
                escaped = True
        assert escaped, f"{path} prints JSON that nobody escapes: give it json_option or json_flag"


def test_whatever_is_written_is_escaped_and_means_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    document = msgspec.json.encode({EVIL: [EVIL, "Zürich 東京\n"]})
    before = sys.stdout
    with escaped_output():
        click.echo(document)
        click.echo(document.decode())
        print(document.decode())
        for number in range(len(document)):  # characters in pieces
            sys.stdout.buffer.write(document[number : number + 1])
    assert sys.stdout is before
    sys.stdout.write(f"\n{EVIL}")
    *lines, last = capsys.readouterr().out.split("\n")
    assert len(lines) == 4
    for line in lines:
        assert line.startswith(f'{{"{ESCAPED}":["{ESCAPED}"')
        assert msgspec.json.decode(line) == msgspec.json.decode(document)
    assert last == EVIL, "what comes after the command is as it was"


def test_a_command_without_the_flag_writes_as_it_likes(capsys: pytest.CaptureFixture[str]) -> None:
    @click.command()
    @json_output.json_option
    def command(as_json: bool) -> None:
        click.echo(f"{as_json} \x9b")

    for arguments in ([], ["--json"]):
        command.main(arguments, standalone_mode=False)
    assert capsys.readouterr().out == "False \x9b\nTrue \\u009b\n"


def test_a_line_reaches_a_pipe_while_the_command_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """`trace up --json` says that it is ready, and runs."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    with os.fdopen(reading, "rb") as lines, os.fdopen(writing, "w") as output:
        monkeypatch.setattr(sys, "stdout", output)
        with escaped_output():
            click.echo("{}")
            assert lines.readline() == b"{}\n"
