"""Help: there for every command, with examples that the command itself would take."""

import re
import shlex
from pathlib import Path

import click
import duckdb
import pytest
from tools.cli_reference import commands_markdown

from tracelake import doc_pages
from tracelake.catalogue.decode import TRANSFER_COLUMNS
from tracelake.catalogue.evm_columns import EVM_COLUMNS
from tracelake.doc_pages import find_page
from tracelake.processes.main import _COMMANDS, trace

GROUPS = {"dlq", "gc", "outbox", "quota", "udf"}
OF_THE_MACHINE = {"backup", "down", "init", "keys", "restore", "secrets", "status", "token"}
OF_CONTEXTS = {"context", "login"}
USER_COMMANDS = sorted(
    name
    for name, (where, _) in _COMMANDS.items()
    if where.startswith("tracelake.cli.") and name not in GROUPS | OF_THE_MACHINE | OF_CONTEXTS
)


def whole() -> click.Context:
    """As `trace` itself is called: a command remembers the names of its help option from the first context it sees."""
    return click.Context(trace, info_name="trace", **trace.context_settings)


def command_of(name: str) -> click.Command:
    found = trace.get_command(whole(), name)
    assert found is not None
    return found


@pytest.mark.parametrize("name", USER_COMMANDS)
def test_examples_are_what_the_command_takes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    command = command_of(name)
    text = command.get_help(click.Context(command, parent=whole(), info_name=name))
    examples = re.findall(
        rf"^ +trace ({name} .*|{name})$", text.partition("Example")[2].partition("Options:")[0], re.MULTILINE
    )
    assert examples, "no example"
    for param in command.params:  # a file of an example need not exist
        if isinstance(param.type, click.Path):
            monkeypatch.setattr(param, "type", click.STRING)
    for example in examples:
        words = shlex.split(re.split(r"\s{2,}|[|<]", example)[0])[1:]
        command.make_context(name, words, parent=whole(), resilient_parsing=False)


HOURLY_FLOWS = (
    "hour timestamp, token string, standard string, transfers bigint, senders bigint, amount double"  # of the example
)


def test_help_of_an_installed_wheel_says_where_the_pages_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def help_of(name: str) -> str:
        command = command_of(name)
        return command.get_help(click.Context(command, parent=whole(), info_name=name))

    note = "docs/ and examples/ are in"
    assert note not in trace.get_help(whole()) + help_of("logs"), "a clone has them in its root"
    (tmp_path / "docs").mkdir()
    monkeypatch.setattr(doc_pages, "_INSTALLED", tmp_path / "docs")
    assert find_page("logs.md") == tmp_path / "docs/logs.md"
    for text in (trace.get_help(whole()), help_of("logs"), help_of("udf"), help_of("up")):
        assert text.endswith(f"\n\n  {note}\n  {tmp_path}")
    assert note not in help_of("read"), "it names no page"


def test_pages_that_help_names_exist() -> None:
    pages = set(re.findall(r"docs/[\w/-]+\.md", " ".join(commands_markdown().split())))
    assert len(pages) > 5
    assert [page for page in pages if not find_page(page.removeprefix("docs/")).is_file()] == []


@pytest.mark.parametrize("name", ["plot", "query"])
def test_queries_of_examples_name_columns_that_exist(name: str) -> None:
    tables = {
        "blocks": ", ".join(f"{column.name} {column.type}" for column in EVM_COLUMNS["blocks"]),
        "transfers": "block_number bigint, " + ", ".join(f"{column} {kind}" for column, kind in TRANSFER_COLUMNS),
        "hourly_flows": HOURLY_FLOWS,
        "large_transfers": "block_number bigint, token binary",
    }
    queries = re.findall(r"""["'](SELECT .*?)["']""", command_of(name).help or "", re.DOTALL)
    assert queries
    with duckdb.connect(":memory:") as engine:
        for table, columns in tables.items():
            engine.execute(f"CREATE TABLE {table} ({columns})")
        for query in queries:
            engine.execute(query, {"low": 1} if "$low" in query else None)


@pytest.mark.parametrize("name", USER_COMMANDS)
def test_every_command_has_the_common_options(name: str) -> None:
    options = {option for param in command_of(name).params for option in param.opts}
    assert {"--home", "--context", "--token-file", "--json"} <= options
    assert all(param.help for param in command_of(name).params if isinstance(param, click.Option))


def test_the_reference_names_every_command_and_no_terminal() -> None:
    page = commands_markdown()
    for name in _COMMANDS:
        assert f"\n## trace {name}\n" in page
    assert "\n## trace outbox requeue\n" in page
    assert max(map(len, page.splitlines())) <= 120


def test_the_reference_does_not_depend_on_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    page = commands_markdown()
    monkeypatch.setenv("COLUMNS", "40")
    assert commands_markdown() == page
