"""A page of docs/runbooks, followed by a test: its ```sh blocks, line by line, in the order of the page.

A word in capitals is something that whoever follows the page fills in. The test says how it is learned, as a rule from
what an earlier command of the page printed (asked for again with --json). A command that fails, a word that nobody
explains, and a step of the test that the page does not have are all failures: then one of the two is wrong.
"""

import json
import re
import signal
import subprocess
from collections.abc import Callable, Mapping
from typing import Any

from tests.support.real_stack import ROOT, RealStack

PAGES = ROOT / "docs/runbooks"

_BLOCK = re.compile(r"^ *```sh\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
_COMMENT = re.compile(r"\s+#.*$")
_PLACEHOLDER = re.compile(r"(?<![$\w{%])(?<!\s-)[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)*\b(?!=)")

UNTIL_CTRL_C = ("trace worker", "trace sink")


def commands(page: str, section: str | None = None) -> list[str]:
    """Every command of the page, or of one of its sections."""
    text = (PAGES / page).read_text(encoding="utf-8")
    if section is not None:
        _, found, text = text.partition(f"\n## {section}\n")
        assert found, f"{page} has no section {section}"
        text = text.partition("\n## ")[0]
    lines = [line.strip() for block in _BLOCK.findall(text) for line in block.replace("\\\n", " ").splitlines()]
    found_commands = [_COMMENT.sub("", line) for line in lines if line and not line.startswith("#")]
    assert found_commands, f"{page} has no commands"
    return found_commands


class Followed:
    """What was run so far, with every word filled in."""

    def __init__(self, stack: RealStack) -> None:
        self.stack = stack
        self.lines: list[str] = []
        self.printed: list[str] = []

    def json(self, beginning: str) -> Any:
        """What the last command that begins so would print for a program."""
        line = next(line for line in reversed(self.lines) if line.startswith(beginning))
        return json.loads(self.stack.shell(f"{line} --json"))


Learn = Callable[[Followed], str]


def follow(
    stack: RealStack,
    page: str,
    *,
    section: str | None = None,
    words: Mapping[str, str | Learn] | None = None,
    before: Mapping[str, Callable[[], object]] | None = None,
    after: Mapping[str, Callable[[], object]] | None = None,
    fine: Mapping[str, tuple[int, ...]] | None = None,
) -> Followed:
    """Run the page's commands. `before` and `after` name commands by their beginning, as the page writes them: what
    happens in the world around them. `fine`: exit statuses other than 0 that the page expects."""
    known: dict[str, str | Learn] = dict(words or {})
    unused = {*known, *(before or {}), *(after or {}), *(fine or {})}
    followed = Followed(stack)
    started: list[subprocess.Popen[bytes]] = []
    try:
        for line in commands(page, section):
            _happen(before, line, unused)
            command = _fill_in(line, known, followed, unused)
            if line.startswith(UNTIL_CTRL_C):
                started.append(_start(stack, command))
            elif line == "trace up":
                stack.up()
            else:
                statuses = next((value for key, value in (fine or {}).items() if line.startswith(key)), (0,))
                unused -= {key for key in fine or {} if line.startswith(key)}
                followed.lines.append(command)
                followed.printed.append(stack.shell(command, fine=statuses))
            _happen(after, line, unused)
    finally:
        for process in started:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=60)
    assert not unused, f"{page} has nothing for {sorted(unused)}"
    return followed


def _start(stack: RealStack, command: str) -> "subprocess.Popen[bytes]":
    with (stack.root / "background.log").open("ab") as log:
        return subprocess.Popen(
            ["sh", "-c", f"exec {command}"], env=stack.environment, cwd=stack.files, stdout=log, stderr=log
        )


def _happen(events: Mapping[str, Callable[[], object]] | None, line: str, unused: set[str]) -> None:
    for beginning, event in (events or {}).items():
        if line.startswith(beginning) and beginning in unused:
            unused.discard(beginning)
            event()


def _fill_in(line: str, known: dict[str, str | Learn], followed: Followed, unused: set[str]) -> str:
    def fill(found: re.Match[str]) -> str:
        word = found[0]
        assert word in known, f"nobody says what {word} is: {line}"
        unused.discard(word)
        value = known[word]
        if not isinstance(value, str):
            value = known[word] = value(followed)
        return value

    return _PLACEHOLDER.sub(fill, line)
