"""What stands in `monitoring/`: the rules, and every expression of rules and dashboard."""

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent.parent
ALERTS = ROOT / "monitoring/prometheus/alerts.yaml"
PROMETHEUS = ROOT / "monitoring/prometheus/prometheus.yaml"
DASHBOARD = ROOT / "monitoring/grafana/trace.json"


@cache
def rules() -> dict[str, dict[str, Any]]:
    """Alert rules by name."""
    groups = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


@cache
def dashboard() -> dict[str, Any]:
    board: dict[str, Any] = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    return board


def panels() -> list[dict[str, Any]]:
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def expressions() -> Iterator[tuple[str, str]]:
    """Where it stands, and the expression, with Grafana's variables filled in."""
    for name, rule in rules().items():
        yield name, rule["expr"]
    for panel in panels():
        for target in panel["targets"]:
            yield panel["title"], target["expr"].replace("$__rate_interval", "5m").replace("$org", ".*")
