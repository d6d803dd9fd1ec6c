"""The drawn state machine has exactly the edges of the code."""

import re

from tools.docs import ROOT

from tracelake.model.lifecycle import TRANSITIONS, Verb
from tracelake.model.task import Status

Edge = tuple[Verb, Status | None, Status]

PAGE = (ROOT / "docs/state-machine.md").read_text(encoding="utf-8")
ARROW = re.compile(r"(\[\*\]|\w+) --> (\[\*\]|\w+)(?: : (\w+) / (\S.*))?")
ROW = re.compile(r"\| (\w*) ?\| `(\w+)` \| (\w+) \| (.+) \|")


def drawing() -> list[str]:
    block = re.search(r"```mermaid\nstateDiagram-v2\n(.*?)```", PAGE, re.DOTALL)
    assert block is not None, "no state diagram"
    return [line.strip() for line in block.group(1).splitlines() if line.strip()]


def drawn() -> list[Edge]:
    edges: list[Edge] = []
    for line in drawing():
        match = ARROW.fullmatch(line)
        assert match is not None, f"not an arrow with a verb and a condition: {line}"
        start, end, verb, _ = match.groups()
        if end != "[*]":
            assert verb, f"an edge without a verb: {line}"
            edges.append((Verb(verb), None if start == "[*]" else Status(start), Status(end)))
    return edges


def explained() -> list[Edge]:
    rows = [ROW.fullmatch(line) for line in PAGE.splitlines() if line.startswith("|")]
    return [(Verb(row[2]), Status(row[1]) if row[1] else None, Status(row[3])) for row in rows if row is not None]


def test_the_drawing_and_the_code_have_the_same_edges() -> None:
    edges = drawn()
    assert set(edges) - TRANSITIONS == set(), "drawn but not in the code"
    assert TRANSITIONS - set(edges) == set(), "in the code but not drawn"
    assert len(edges) == len(TRANSITIONS), "an edge is drawn twice"


def test_the_table_explains_every_edge_once() -> None:
    edges = explained()
    assert set(edges) == TRANSITIONS
    assert len(edges) == len(TRANSITIONS)


def test_the_final_states_are_drawn_as_final() -> None:
    ends = {match[1] for match in map(ARROW.fullmatch, drawing()) if match is not None and match[2] == "[*]"}
    leaving = {start for _, start, _ in TRANSITIONS if start is not None}
    assert ends == {status.value for status in Status if status not in leaving}
