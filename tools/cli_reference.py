"""The reference page of the `trace` command: what `--help` says, for every command."""

import copy

import click

from tracelake.processes.main import trace

_WIDTH = 100


def commands_markdown() -> str:
    """Every command and subcommand with its help."""
    lines = [
        "# Commands",
        "",
        "Generated from the commands' own help; do not edit by hand (`make docs`).",
        "",
        "Commands over the user API find the stack by `HOME/stack.json`, and send the token of `--token-file`, of",
        "`TRACE_TOKEN`, or the admin token of the stack. With `--json` standard output holds one line of JSON: the",
        "answer of the API (its types are in `openapi-public.json` beside this page). An expected failure is one line",
        "on standard error, `error: code: message`, and exit status 1; with `--json` standard output then holds",
        '`{"error": {"code", "message", "details"}}`, as the API answers it. A wrong option is exit status 2.',
        "",
    ]
    root = _context(trace, "trace", None)
    lines += ["## trace", "", "```", _help(root), "```", ""]
    for name in trace.list_commands(root):
        command = trace.get_command(root, name)
        assert command is not None
        lines += _section(command, name, root)
    return "\n".join(lines).rstrip("\n") + "\n"


def _section(command: click.Command, name: str, parent: click.Context) -> list[str]:
    context = _context(command, name, parent)
    lines = [f"## {context.command_path}", "", "```", _help(context), "```", ""]
    if isinstance(command, click.Group):
        for child in command.list_commands(context):
            found = command.get_command(context, child)
            assert found is not None
            lines += _section(found, child, context)
    return lines


def _context(command: click.Command, name: str, parent: click.Context | None) -> click.Context:
    # A command remembers how its help option was called when it was first asked; the page must not depend on that.
    fresh = copy.copy(command)
    fresh._help_option = None
    # The width is fixed: nor on the terminal of whoever writes it.
    return click.Context(
        fresh,
        info_name=name,
        parent=parent,
        terminal_width=_WIDTH,
        max_content_width=_WIDTH,
        help_option_names=["-h", "--help"],
    )


def _help(context: click.Context) -> str:
    text = context.command.get_help(context)
    return "\n".join(line.rstrip() for line in text.splitlines())
