"""The README is short, and shows what the first DAG of the docs makes, which tests/stack/test_first_dag.py runs."""

import re
import xml.etree.ElementTree as ET

from tools.docs import ROOT

README = (ROOT / "README.md").read_text()
FIRST_DAG = (ROOT / "docs/first-dag.md").read_text()
EXAMPLE = ROOT / "examples/first_dag/activity.yaml"


def blocks(page: str, language: str) -> list[str]:
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    return [text for name, text in fenced if name == language]


def test_it_is_read_in_a_minute() -> None:
    assert len(README.splitlines()) <= 100
    introduction = README.partition("# Trace\n\n")[2].partition("\n\n")[0]
    assert len(introduction.splitlines()) == 6


def test_the_dag_is_that_of_trace_init() -> None:
    code = [line for line in EXAMPLE.read_text().splitlines() if line and not line.startswith("#")]
    (document,) = blocks(FIRST_DAG, "yaml")
    assert [line for line in document.splitlines() if line] == code


def test_the_job_is_that_of_the_file_that_is_linked() -> None:
    """From `jobs` to the end: everything but the name of the DAG, its defaults and its chain."""
    code = [line for line in EXAMPLE.read_text().splitlines() if line and not line.startswith("#")]
    (document,) = blocks(README, "yaml")
    lines = [line for line in document.splitlines() if line]
    assert lines == code[code.index("jobs:") :]
    assert len(lines) <= 13
    assert f"]({EXAMPLE.relative_to(ROOT)})" in README


def test_the_rows_are_those_of_the_page_that_is_run() -> None:
    (rows,) = blocks(README, "")
    assert rows in blocks(FIRST_DAG, "")


def test_the_commands_are_those_of_the_page_that_is_run() -> None:
    lines = [line.partition("  ")[0] for block in blocks(README, "sh") for line in block.splitlines()]
    run = FIRST_DAG.replace("trace deploy activity.yaml", "trace deploy my_project/activity.yaml")
    commands = [line for line in lines if line.startswith("trace ")]
    assert len(commands) >= 4
    for command in commands:
        assert f"\n{command}\n" in run, command


def test_there_is_one_picture_and_it_shows_the_same_rows() -> None:
    (picture,) = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", README)
    numbers = {text.text for text in ET.parse(ROOT / picture).iter() if text.text}
    (rows,) = blocks(README, "")
    for row in rows.splitlines()[1:]:
        assert f"{int(row.split()[1]):,}" in numbers


def test_how_it_is_installed() -> None:
    (commands,) = [block for block in blocks(README, "sh") if "pip install" in block]
    lines = [line.partition("  ")[0] for line in commands.splitlines()]
    assert lines[:3] == ["make dist", "python3 -m venv env && . env/bin/activate", "pip install dist/*.whl"]
    assert "python3 -m venv env && . env/bin/activate\n    pip install dist/tracelake-*.whl\n" in FIRST_DAG
    assert "`make setup` installs into `.venv`" in README
