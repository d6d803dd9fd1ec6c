"""`trace graph`: drawings of DAGs and of documents, on terminals of any width and in files."""

import json
import random
import re
import xml.etree.ElementTree as ET
from itertools import combinations
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from tests.cli import samples
from tests.cli.conftest import Trace, run_trace
from tests.cli.fake_api import FakeApi
from tracelake.cli.characters import draws_ascii
from tracelake.cli.dag_graph import graph_of_document, graph_of_version, to_drawing
from tracelake.cli.docs_graph import DocsGraph, GraphNode
from tracelake.cli.graph_files import to_dot, to_mermaid, to_svg
from tracelake.cli.graph_text import draw_text
from tracelake.dag import DagInvalidError
from tracelake.model.runtime import BUILT_IN
from tracelake.wire.datasets import DatasetsReply

EXAMPLES = Path(__file__).parents[2] / "examples"
HOSTILE = "</title><script>alert(1)</script>\"'\\];{}\n&#x" + samples.EVIL
STEPS = {"│": "NS", "─": "EW", "└": "NE", "┘": "NW", "┌": "SE", "┐": "SW", "├": "NES", "┤": "NSW", "┬": "ESW",
         "┴": "NEW", "┼": "NESW"}  # fmt: skip
MOVES = {"N": (-1, 0), "E": (0, 1), "S": (1, 0), "W": (0, -1)}
BACK = {"N": "S", "S": "N", "E": "W", "W": "E"}


def random_graph(seed: int, *, most: int = 14) -> DocsGraph:
    dice = random.Random(seed)
    graph = DocsGraph()
    keys = [f"n{number}" for number in range(dice.randrange(1, most))]
    for key in keys:
        kind = dice.choice(("job", "dataset"))
        notes = ("2 running",) if dice.random() < 0.3 else ()
        graph.add(GraphNode(key, key, kind, notes=notes))  # type: ignore[arg-type]
    for start, end in combinations(keys, 2):
        if dice.random() < 0.25:
            graph.connect(start, end)
    return graph


def rows(graph: DocsGraph, width: int, *, ascii_only: bool = False) -> list[str]:
    return [line.plain for line in draw_text(graph, width, ascii_only=ascii_only)]


def follow(lines: list[str], row: int, column: int) -> set[tuple[int, int]]:
    """Where the line that leaves this place downwards ends, as a person reads it: a line that is crossed by an
    unbroken one goes on behind it."""

    def at(row: int, column: int) -> str:
        return lines[row][column] if 0 <= row < len(lines) and 0 <= column < len(lines[row]) else " "

    ends: set[tuple[int, int]] = set()
    waiting = [(row + 1, column, "S")]
    visited = set()
    while waiting:
        place = waiting.pop()
        if place in visited:
            continue
        visited.add(place)
        row, column, heading = place
        letter = at(row, column)
        if letter == "▼":
            ends.add((row + 1, column))
            continue
        directions = STEPS.get(letter, "")
        if heading in "EW" and letter == "│":
            directions = heading
        else:
            assert BACK[heading] in directions, (letter, place)
            directions = directions.replace(BACK[heading], "")
        for direction in directions:
            down, right = MOVES[direction]
            waiting.append((row + down, column + right, direction))
    return ends


def read_edges(graph: DocsGraph, lines: list[str]) -> set[tuple[str, str]]:
    """The edges that the drawing shows."""
    areas: dict[str, tuple[int, int, int, int]] = {}
    for number, line in enumerate(lines):
        for match in re.finditer(r"│\s+(n\d+)\s+│|\(\s*(n\d+)\b[^)]*\)", line):
            if match[1]:
                bottom = next(row for row in range(number + 1, len(lines)) if lines[row][match.start()] == "└")
                areas[match[1]] = (number - 1, bottom, match.start(), match.end() - 1)
            else:
                areas[match[2]] = (number, number, match.start(), match.end() - 1)
    assert areas.keys() == graph.nodes.keys()
    edges = set()
    for key, (_, bottom, left, right) in areas.items():
        if not any(start == key for start, _ in graph.edges):
            continue
        middle = left + (right - left + 1) // 2
        for row, column in follow(lines, bottom, middle):
            (target,) = [
                name for name, (top, _, first, last) in areas.items() if top == row and first <= column <= last
            ]
            edges.add((key, target))
    return edges


@pytest.mark.parametrize("seed", range(60))
def test_a_drawing_shows_exactly_the_edges(seed: int) -> None:
    graph = random_graph(seed)
    lines = rows(graph, 400)
    assert read_edges(graph, lines) == set(graph.edges)


@pytest.mark.parametrize("width", [20, 40, 80, 132])
@pytest.mark.parametrize("seed", range(10))
def test_no_line_is_wider_than_the_terminal(seed: int, width: int) -> None:
    graph = random_graph(seed, most=30)
    for ascii_only in (False, True):
        lines = rows(graph, width, ascii_only=ascii_only)
        assert max(map(len, lines)) <= width
        assert not ascii_only or "".join(lines).isascii()
        assert all(
            re.search(rf"\b{key}\b", "\n".join(lines)) for key, node in graph.nodes.items() if node.kind == "job"
        )


def test_the_states_of_a_version() -> None:
    reply = samples.jobs()
    failing = msgspec.structs.replace(reply.jobs[1], name="totals", failed=2, inputs=[], outputs=[])
    graph = graph_of_version(msgspec.structs.replace(reply, jobs=[*reply.jobs, failing]), ["prices_out", "blocks"])
    nodes = {node.key: node for node in graph.nodes}
    assert nodes["job prices"].states == [
        "held by a failed unit", "4 retrying", "behind by 12 events", "2 running", "4 queued"
    ]  # fmt: skip
    assert nodes["job prices"].level == "failed"
    assert nodes["job totals"].states[0] == "2 failed"
    assert nodes["dataset other"].outside
    assert {(edge.start, edge.end) for edge in graph.edges} == {
        ("dataset blocks", "job prices"),
        ("dataset other", "job prices"),
        ("job prices", "dataset prices_out"),
    }
    text = "\n".join(rows(to_drawing(graph), 100))
    assert "behind by 12 events" in text
    assert "( blocks" in text


def test_a_document_needs_no_stack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRACE_HOME", str(tmp_path / "nothing"))
    trace = run_trace(monkeypatch, capsys)
    ended = trace("graph", str(EXAMPLES / "token_flows" / "flows.yaml"), columns=80)
    assert ended.status == 0, ended.err
    assert "token_flows, a document: 8 jobs and 8 datasets" in ended.out
    assert "( large_transfers )" in ended.out
    assert max(map(len, ended.out.splitlines())) <= 80
    narrow = trace("graph", str(EXAMPLES / "token_flows" / "flows.yaml"), columns=40)
    assert "→     blocks, transactions, logs" in narrow.out
    piped = trace("graph", "-", stdin=(EXAMPLES / "block_ranges.yaml").read_bytes())
    assert "( worked_blocks )" in piped.out
    wrong = trace("graph", "-", stdin=b"name: x\njobs: [{name: a, activation: reactive}]\n")
    assert wrong.status == 1
    assert "<stdin>:2:" in wrong.err
    as_json = trace("graph", "-", "--json", stdin=b"name: x\njobs: [{name: a, activation: reactive}]\n")
    assert json.loads(as_json.out)["error"]["code"] == "dag_invalid"
    assert trace("graph", "missing.yaml").status == 2
    assert trace("graph", str(EXAMPLES / "block_ranges.yaml"), "--version", "2").status == 2


@pytest.mark.parametrize(
    "path",
    [path for path in sorted(EXAMPLES.glob("**/*.yaml")) if path.parent.name != "operator_template"],
    ids=lambda path: path.stem,
)
def test_every_example_fits_a_terminal(path: Path) -> None:
    graph = graph_of_document(path.read_bytes(), BUILT_IN)
    lines = rows(to_drawing(graph), 80)
    assert max(map(len, lines)) <= 80
    assert not any(line.startswith("    reads ") for line in lines), "it is drawn, not listed"


def test_datasets_and_functions_of_elsewhere_are_taken_to_exist() -> None:
    document = b"""
name: late
jobs:
  - name: f
    activation: reactive
    runtime: lambda
    operator: udf
    udf: {bundle_id: 01890000-0000-7000-8000-000000000001}
    inputs: [{from: {dataset: prices}}]
publish:
  alerts: {from: [{job: f}], storage: s3}
"""
    try:
        graph = graph_of_document(document, BUILT_IN)
    except DagInvalidError as error:
        pytest.fail(str(error.problems))
    assert {node.key: node.outside for node in graph.nodes} == {
        "job f": False, "dataset alerts": False, "dataset prices": True
    }  # fmt: skip


def test_a_mistake_is_reported_even_if_a_dataset_is_of_elsewhere() -> None:
    with pytest.raises(DagInvalidError) as raised:
        graph_of_document(
            b"name: late\njobs: [{name: f, activation: reactive, runtime: ecs_platform, operator: nop,"
            b" inputs: [{from: {dataset: prices}}]}]\n",
            BUILT_IN,
        )
    assert [problem.code for problem in raised.value.problems] == ["unknown_operator"]


def test_the_command(trace: Trace, api: FakeApi, tmp_path: Path) -> None:
    api.answers |= {
        "GET /v1/dags/pools/jobs": samples.jobs(),
        "GET /v1/datasets": DatasetsReply(datasets=[samples.dataset_row(name="prices_out")]),
    }
    ended = trace("graph", "pools", columns=80)
    assert ended.status == 0, ended.err
    assert "pools, version 3: 2 jobs and 3 datasets" in ended.out
    assert "2 running" in ended.out
    for ending in ("svg", "dot", "mmd"):
        output = tmp_path / f"graph.{ending}"
        assert "2 jobs and 3 datasets in" in trace("graph", "pools", "--output", str(output)).out
        assert "prices_out" in output.read_text()
        assert trace("graph", "pools", "--output", str(output)).status == 1
    assert trace("graph", "pools", "--output", str(tmp_path / "graph.png")).status == 2
    printed = json.loads(trace("graph", "pools", "--json").out)
    assert printed["version"] == 3
    assert {"start": "job prices", "end": "dataset prices_out"} in printed["edges"]
    assert trace("graph", "pools", "--ascii").out.isascii()
    assert trace("graph", "pols").status == 1


def test_hostile_names_stay_text(trace: Trace, api: FakeApi) -> None:
    reply = samples.jobs(name=HOSTILE)
    api.answers |= {"GET /v1/dags/pools/jobs": reply, "GET /v1/datasets": DatasetsReply(datasets=[])}
    shown = trace("graph", "pools", columns=80).out
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", shown)
    drawing = to_drawing(graph_of_version(reply, []))
    picture = ET.fromstring(to_svg(drawing, HOSTILE))
    tags = {element.tag.rpartition("}")[2] for element in picture.iter()}
    assert tags == {"svg", "title", "style", "path", "g", "rect", "text"}
    dot = to_dot(drawing, HOSTILE)
    assert all(len(re.findall(r'(?<!\\)(?:\\\\)*"', line)) % 2 == 0 for line in dot.splitlines())
    mermaid = to_mermaid(drawing, HOSTILE)
    assert "<script>" not in mermaid.split("\n", 1)[1]
    assert all(line.count('"') in (0, 2) for line in mermaid.splitlines()[1:])


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"LANG": "en_US.UTF-8", "TERM": "xterm"}, False),
        ({}, False),
        ({"TERM": "dumb", "LANG": "en_US.UTF-8"}, True),
        ({"LC_ALL": "C"}, True),
        ({"LANG": "C", "LC_CTYPE": "C.UTF-8"}, True),
        ({"LANG": "C", "LC_CTYPE": "de_DE.utf8"}, False),
        ({"LANG": "de_DE.ISO-8859-1"}, True),
    ],
)
def test_the_locale_chooses_the_characters(environment: dict[str, str], expected: bool) -> None:
    assert draws_ascii(Console(), environment) is expected
