"""`trace docs`: a page that stands alone, whatever names and descriptions hold."""

import base64
import hashlib
import json
import random
import re
from html.parser import HTMLParser
from itertools import combinations, pairwise, product
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.cli import samples
from tests.cli.conftest import Trace
from tests.cli.fake_api import FakeApi
from tracelake.cli.docs_graph import DocsGraph, GraphNode, assign_layers, draw_graph, lay_out, order_layers
from tracelake.cli.docs_page import STYLE, DocsData, DocsPage
from tracelake.errors import TraceError
from tracelake.wire.dags import DagsReply
from tracelake.wire.datasets import DatasetColumnRow, DatasetsReply
from tracelake.wire.platform import WhoAmI

HOSTILE = """</title><script>alert(1)</script><img src=x onerror="a()">'"&]]>{}`javascript:a()""" + samples.EVIL
VOID = {"meta", "rect", "path"}
HEAD = {"html", "head", "title", "style", "body"}
BLOCKS = {
    "header",
    "main",
    "section",
    "div",
    "h1",
    "h2",
    "h3",
    "h4",
    "p",
    "pre",
    "code",
    "span",
    "a",
    "details",
    "summary",
}
TABLES = {"table", "thead", "tbody", "tr", "th", "td", "dl", "dt", "dd"}
TAGS = VOID | HEAD | BLOCKS | TABLES | {"svg", "g", "text"}


class StrictPage(HTMLParser):
    """Reads a page, and fails on anything that is not closed, not expected, or not its own."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.stack: list[str] = []
        self.ids: list[str] = []
        self.targets: list[str] = []
        self.texts: list[str] = []
        self.policy = ""
        self.feed(page)
        self.close()
        assert self.stack == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in TAGS, tag
        given = dict(attrs)
        assert len(given) == len(attrs)
        assert not [name for name in given if name.startswith("on") or name in ("src", "style", "srcset", "xlink:href")]
        self.ids += [given["id"] or ""] if "id" in given else []
        self.targets += [given["href"] or ""] if "href" in given else []
        if given.get("http-equiv") == "Content-Security-Policy":
            self.policy = given["content"] or ""
        if tag not in VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in VOID
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def handle_comment(self, data: str) -> None:
        raise AssertionError(data)


def check_page(page: str) -> StrictPage:
    read = StrictPage(page)
    assert len(set(read.ids)) == len(read.ids), "anchors are unique"
    assert [target for target in read.targets if target[:1] != "#" or target[1:] not in read.ids] == []
    digest = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    assert read.policy.startswith(f"default-src 'none'; style-src 'sha256-{digest}'")
    assert f"<style>{STYLE}</style>" in page
    assert not re.search(r"url\(|@import|https?://(?!www\.w3\.org/2000/svg)", page)
    assert not set(page) & set("\x1b\x07\x9b\u202e")
    return read


def make_data(**changes: Any) -> DocsData:
    detail = msgspec.structs.replace(
        samples.dataset(),
        columns=[DatasetColumnRow(name="price", type="double", nullable=False, description="In dollars.")],
    )
    return DocsData(org="acme", made_at=samples.EARLIER, dags=[samples.jobs()], datasets=[detail], **changes)


def test_the_page_tells_what_a_reader_needs() -> None:
    data = make_data()
    text = " ".join(check_page(DocsPage(data).render()).texts)
    name = data.datasets[0].dataset.name
    for part in (
        "Prices of pools.", "data team", "In dollars.", "double", "not null", "12,345", "no unit covers 1500-1509",
        "was skipped", f"trace read {name}", f"SELECT price FROM {name} LIMIT 10",
    ):  # fmt: skip
        assert part in text, part


def test_a_live_dataset_says_where_its_files_end() -> None:
    data = make_data()
    detail = msgspec.structs.replace(samples.dataset(storage="live"), boundary=1_999)
    for live, part in (
        (detail, "files up to block 1,999, a table above"),
        (
            msgspec.structs.replace(detail, boundary=None, content=None),
            "a table, and files of what was there before it",
        ),
    ):
        text = " ".join(check_page(DocsPage(msgspec.structs.replace(data, datasets=[live])).render()).texts)
        assert part in text
        assert f"trace read {detail.dataset.name}" in text


def test_a_dataset_without_rows_says_so_and_names_no_command_that_reads() -> None:
    page = DocsPage(msgspec.structs.replace(make_data(), datasets=[samples.dataset(storage="none")])).render()
    assert "<dt>storage</dt><dd>events only</dd>" in page
    assert "trace read" not in page


def test_hostile_names_and_descriptions_stay_text() -> None:
    def change(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {name: change(item, name) for name, item in value.items()}
        if isinstance(value, list):
            return [change(item, key) for item in value]
        fixed = ("status", "state", "phase", "change", "kind", "activation", "severity")
        plain = isinstance(value, str) and key not in fixed and not value.startswith(("01890000", "20"))
        return value + HOSTILE if plain else value

    data = msgspec.convert(change(msgspec.to_builtins(make_data())), DocsData)
    page = DocsPage(data).render()
    read = check_page(page)
    assert "<script" not in page
    assert any("<script>alert(1)</script>" in text for text in read.texts), "it is shown as it is"


def test_names_that_differ_only_in_what_anchors_cannot_hold() -> None:
    details = [samples.dataset(name=name) for name in ("a b", "a/b", "a.b", "é", "dataset-1-of-page")]
    check_page(DocsPage(msgspec.structs.replace(make_data(), datasets=details)).render())


def test_an_org_without_anything() -> None:
    read = check_page(DocsPage(DocsData(org="acme", made_at=samples.EARLIER, dags=[], datasets=[])).render())
    assert "There is none." in read.texts


@pytest.mark.parametrize("seed", range(20))
def test_layers_go_from_left_to_right(seed: int) -> None:
    dice = random.Random(seed)
    keys = [f"n{number}" for number in range(dice.randrange(1, 25))]
    edges = [(start, end) for start in keys for end in keys if dice.random() < 0.1]
    forward = [(start, end) for start, end in edges if keys.index(start) < keys.index(end)]
    layers = assign_layers(keys, forward)
    assert all(layers[start] < layers[end] for start, end in forward)
    circular = assign_layers(keys, edges)
    assert set(circular) == set(keys), "circles are drawn too"
    columns = order_layers(circular, edges)
    assert sorted(key for column in columns for key in column) == sorted(keys)
    graph = DocsGraph()
    for key in keys:
        graph.add(GraphNode(key, key, "job"))
    graph.edges = edges
    picture = draw_graph(graph, "all")
    corners = re.findall(r'<rect x="(\d+)" y="(\d+)"', picture)
    assert len(set(corners)) == len(keys), "no node hides another"


@pytest.mark.parametrize("seed", range(20))
def test_no_edge_runs_behind_a_node(seed: int) -> None:
    dice = random.Random(seed)
    graph = DocsGraph()
    keys = [f"n{number}" for number in range(dice.randrange(2, 25))]
    for key in keys:
        graph.add(GraphNode(key, key, "job"))
    for start, end in combinations(keys, 2):
        if dice.random() < 0.1:
            graph.connect(start, end)
    layout = lay_out(graph, 40)
    for edge, path in zip(graph.edges, layout.paths, strict=True):
        assert (path[0], path[-1]) == edge
        hops = [layout.layers[key] for key in path]
        assert hops == list(range(hops[0], hops[-1] + 1)), "it has a place in every layer that it crosses"
    for column in layout.columns:
        places = [(layout.centres[key], 40 if key in graph.nodes else 8) for key in column]
        for (centre, extent), (other, other_extent) in pairwise(places):
            assert other - centre >= (extent + other_extent) / 2
    for centre in layout.centres.values():
        assert 0 < centre < layout.span


def test_a_wide_graph_goes_from_top_to_bottom() -> None:
    def shape(*, layers: int, beside: int) -> tuple[int, int]:
        graph = DocsGraph()
        for layer, number in product(range(layers), range(beside)):
            graph.add(GraphNode(f"{layer} {number}", "x" * 25, "job"))
            if layer:
                graph.connect(f"{layer - 1} {number}", f"{layer} {number}")
        width, height = re.findall(r'viewBox="0 0 (\d+) (\d+)"', draw_graph(graph, "all"))[0]
        return int(width), int(height)

    width, height = shape(layers=3, beside=1)
    assert width > height
    width, height = shape(layers=12, beside=2)
    assert width < height
    width, height = shape(layers=12, beside=20)
    assert width > height, "from top to bottom it would be wider still"


def test_the_output_that_a_job_reads_itself_comes_after_it() -> None:
    graph = DocsGraph()
    for key in ("balances", "changes", "holders"):
        graph.add(GraphNode(key, key, "job"))
    graph.connect("holders", "balances", back=True)
    graph.connect("changes", "balances")
    graph.connect("balances", "holders")
    assert lay_out(graph, 40).layers == {"changes": 0, "balances": 1, "holders": 2}
    assert draw_graph(graph, "all").count('class="edge back"') == 1


def test_the_command(trace: Trace, api: FakeApi, tmp_path: Path) -> None:
    name = samples.dataset().dataset.name
    api.answers |= {
        "GET /v1/whoami": WhoAmI(subject="ann", org="acme", roles=["reader"]),
        "GET /v1/dags": samples.dags(),
        "GET /v1/dags/pools/jobs": samples.jobs(),
        "GET /v1/datasets": DatasetsReply(
            datasets=[samples.dataset_row(), samples.dataset_row(name="elsewhere"), samples.dataset_row(name="gone")]
        ),
        f"GET /v1/datasets/{name}": samples.dataset(),
        "GET /v1/datasets/elsewhere": samples.dataset(name="elsewhere"),
        "GET /v1/datasets/gone": TraceError("dataset_not_found"),
    }
    output = tmp_path / "page.html"
    ended = trace("docs", "--output", str(output))
    assert ended.status == 0, ended.err
    assert "1 DAG and 2 datasets" in ended.out
    check_page(output.read_text())
    refused = trace("docs", "--output", str(output))
    assert refused.status == 1
    assert "--force" in refused.err
    assert trace("docs", "pools", "--output", str(output), "--force").status == 0
    read = check_page(output.read_text())
    assert "elsewhere" not in read.texts, "only what the DAG writes and reads"
    assert trace("docs", "--output", str(tmp_path / "page.pdf")).status == 2
    printed = json.loads(trace("docs", "--json").out)
    assert [item["dataset"]["name"] for item in printed["datasets"]] == [name, "elsewhere"]
    assert not (tmp_path / "trace-docs.html").exists()
    api.answers["GET /v1/dags"] = DagsReply(dags=[])
    api.answers["GET /v1/datasets"] = DatasetsReply(datasets=[])
    assert trace("docs", "--output", str(output), "--force").status == 0
