"""examples/systemd/trace.service, read as systemd would read it, without systemd."""

import shlex
from configparser import ConfigParser
from pathlib import Path

import click

from tracelake.cli.status import _GRACE_SECONDS, _HURRY_SECONDS
from tracelake.processes.main import trace

ROOT = Path(__file__).resolve().parent.parent.parent
UNIT = ROOT / "examples" / "systemd" / "trace.service"
KNOWN = {
    "Unit": {"Description", "Documentation", "After"},
    "Service": {
        *("Type", "ExecStart", "TimeoutStartSec", "TimeoutStopSec", "KillMode", "Restart", "RestartSec", "UMask"),
    },
    "Install": {"WantedBy"},
}
"""The directives that the unit uses, by the section that systemd expects them in."""


def read_unit() -> ConfigParser:
    unit = ConfigParser(delimiters=("=",), comment_prefixes=("#", ";"), interpolation=None, strict=True)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read_string(UNIT.read_text())
    return unit


def test_sections_and_directives() -> None:
    unit = read_unit()
    assert {section: set(unit[section]) for section in unit.sections()} == KNOWN
    for line in UNIT.read_text().splitlines():
        assert line == line.rstrip(), "a trailing backslash or blank would join lines or become part of a value"
        assert not line.endswith("\\")


def test_the_command_is_one_that_trace_accepts() -> None:
    program, *arguments = shlex.split(read_unit()["Service"]["ExecStart"])
    assert program.startswith(("/", "%h/")), "systemd wants an absolute path"
    assert program.endswith("/.venv/bin/trace")
    context = click.Context(trace)
    _, command, rest = trace.resolve_command(context, arguments)
    assert command is not None
    parsed = command.make_context("up", rest, parent=context)
    assert not parsed.params["detach"], "systemd watches the process that it started"


def test_it_may_stop_for_as_long_as_trace_down_waits() -> None:
    service = read_unit()["Service"]
    assert service["Type"] == "notify"
    assert service["KillMode"] == "mixed", "parts that get a signal of their own would stop in any order"
    assert _seconds(service["TimeoutStopSec"]) >= _GRACE_SECONDS + _HURRY_SECONDS


def _seconds(text: str) -> float:
    return float(text.removesuffix("min")) * 60 if text.endswith("min") else float(text.removesuffix("s"))
