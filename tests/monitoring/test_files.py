"""The files of `monitoring/` fit together: every expression can be parsed, and names metrics and labels there are."""

import re
from typing import Any

import promql_parser as promql
import pytest
import yaml

from tests.monitoring.files import PROMETHEUS, ROOT, dashboard, expressions, panels, rules
from tracelake.dispatcher.metrics import SAME, Metrics
from tracelake.http.metrics import HttpMetrics
from tracelake.query.metrics import QueryMetrics
from tracelake.runner.metrics import RunnerMetrics

OF_PROMETHEUS = {"up": ("job", "instance")}
"""Metrics that Prometheus adds, with their labels."""
RUNBOOKS = ROOT / "docs/runbooks"
TARGET = ("job", "instance")
"""Labels that Prometheus gives to every series."""


def declared() -> dict[str, tuple[str, ...]]:
    """The labels of every series that a Dispatcher or a Query Service can have."""
    return OF_PROMETHEUS | labels_of(Metrics()) | labels_of(QueryMetrics()) | labels_of(RunnerMetrics())


def labels_of(metrics: HttpMetrics) -> dict[str, tuple[str, ...]]:
    known: dict[str, tuple[str, ...]] = {}
    for family in metrics.registry.collect():
        labels = next(
            (tuple(item._labelnames) for item in vars(metrics).values() if getattr(item, "_name", "") == family.name),
            (),
        )
        match family.type:
            case "counter":
                known[f"{family.name}_total"] = labels
            case "histogram":
                known |= {f"{family.name}_bucket": (*labels, "le"), f"{family.name}_count": labels}
            case _:
                known[family.name] = labels
    return known


def selectors(text: str) -> list[promql.VectorSelector]:
    found: list[promql.VectorSelector] = []

    def visit(node: Any) -> bool:
        if isinstance(node, promql.VectorSelector):
            found.append(node)
        if isinstance(node, promql.MatrixSelector):
            found.append(node.vector_selector)
        return True

    promql.walk(promql.parse(text), visit)
    return found


@pytest.mark.parametrize(("where", "text"), list(expressions()))
def test_every_expression_names_what_there_is(where: str, text: str) -> None:
    known = declared()
    used = selectors(text)
    assert used, "an expression about nothing"
    labels: set[str] = set()
    for selector in used:
        assert selector.name in known, f"{where}: there is no {selector.name}"
        there = {*known[selector.name], *TARGET}
        labels |= there
        for matcher in selector.matchers.matchers:
            assert matcher.name in there, f"{where}: {selector.name} has no label {matcher.name}"
    for group in re.findall(r"\b(?:by|on) \(([^)]*)\)", text):
        assert {name.strip() for name in group.split(",")} <= labels, f"{where}: by ({group})"


@pytest.mark.parametrize(("where", "text"), list(expressions()))
def test_what_every_dispatcher_says_is_not_added_up(where: str, text: str) -> None:
    """Three Dispatchers that each see one full queue see one full queue."""
    metrics = Metrics()
    same = {family.name for family in metrics.registry.collect() if family.documentation.endswith(SAME)}
    used = {selector.name for selector in selectors(text)} & same
    reduced = re.findall(r"\bmax(?: by \([^)]*\))? \((?:delta\()?(\w+)|\bmax\((\w+)|unless on \([^)]*\) (\w+)", text)
    assert used <= {name for names in reduced for name in names}, where


@pytest.mark.parametrize("name", rules())
def test_an_alert_says_what_to_do(name: str) -> None:
    rule = rules()[name]
    assert re.fullmatch(r"Trace[A-Z][A-Za-z]+", name)
    assert rule["labels"]["severity"] in ("page", "ticket")
    assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
    assert set(rule["annotations"]) == {"summary", "description", "runbook"}
    page, _, anchor = rule["annotations"]["runbook"].partition("#")
    text = (ROOT / page).read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    assert not anchor or anchor in {heading.lower().replace(" ", "-") for heading in headings}, page
    words = rule["annotations"]["summary"] + rule["annotations"]["description"]
    kept = re.findall(r"(?:by|on) \(([^)]*)\)", rule["expr"])
    labels = {label.strip() for group in kept for label in group.split(",")} | {"instance"}
    assert set(re.findall(r"\$labels\.(\w+)", words)) <= labels, "the expression has dropped that label"


@pytest.mark.parametrize("page", sorted({path.name for path in RUNBOOKS.glob("*.md")} - {"README.md"}))
def test_a_runbook_names_the_alerts_that_lead_to_it(page: str) -> None:
    named = set(re.findall(r"`(Trace[A-Z][A-Za-z]+)`", (RUNBOOKS / page).read_text(encoding="utf-8")))
    leading = {name for name, rule in rules().items() if rule["annotations"]["runbook"] == f"docs/runbooks/{page}"}
    assert named == leading


def test_the_dashboard_can_be_imported_as_it_is() -> None:
    board = dashboard()
    assert [row["title"] for row in board["panels"] if row["type"] == "row"] == [
        "Overview",
        "Sources",
        "Backpressure",
        "Tasks",
        "Outbox and queues",
        "Buffered datasets",
        "Dispatcher",
        "Queries",
        "Functions",
    ]
    assert "id" not in board, "an id is given by whoever imports it"
    variables = {item["name"]: item["type"] for item in board["templating"]["list"]}
    assert variables == {"datasource": "datasource", "org": "query"}
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))
    for panel in panels():
        assert {target["datasource"]["uid"] for target in panel["targets"]} == {"${datasource}"}, panel["title"]
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])


def test_no_two_panels_lie_on_each_other() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard()["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24, panel["title"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not taken & cells, panel["title"]
        taken |= cells


def test_every_metric_is_on_the_dashboard() -> None:
    shown = {selector.name for panel in panels() for target in panel["targets"]
             for selector in selectors(target["expr"].replace("$__rate_interval", "5m"))}  # fmt: skip
    exempt = {"process_virtual_memory_bytes", "process_start_time_seconds", "trace_always_on_sources"}
    services = (Metrics(), QueryMetrics(), RunnerMetrics())
    for family in (family for metrics in services for family in metrics.registry.collect()):
        series = {family.name, f"{family.name}_total", f"{family.name}_bucket"}
        assert shown & series or family.name in exempt, family.name


def test_the_scrape_configuration_keeps_the_label_job() -> None:
    (scrape,) = yaml.safe_load(PROMETHEUS.read_text(encoding="utf-8"))["scrape_configs"]
    assert scrape["honor_labels"] is True
    assert scrape["job_name"] == "trace"
    assert scrape["scheme"] == "https"
    assert scrape["tls_config"] == {"ca_file": "ca.pem"}
