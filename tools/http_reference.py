"""Reference pages of the HTTP surface: routes, OpenAPI documents, metrics."""

import json

from tools.openapi import build_openapi
from tracelake.dispatcher.metrics import Metrics
from tracelake.http.metrics import HttpMetrics
from tracelake.query.metrics import QueryMetrics
from tracelake.runner.metrics import RunnerMetrics
from tracelake.wire.contract import HEADERS, Listener
from tracelake.wire.routes import ROUTES, routes_of


def openapi_json(listener: Listener) -> str:
    return json.dumps(build_openapi(listener, ROUTES), indent=2) + "\n"


def routes_markdown() -> str:
    """Every route: where, how, by whom."""
    lines = [
        "# Routes",
        "",
        "Generated from `tracelake.wire.routes`; do not edit by hand (`make docs`).",
        "",
        "Each listener is a socket of its own: `public`, `task` and `internal` of the Dispatcher, `query` and",
        "`query_task` of the Query Service, `runner` of the runner. A path of another listener is a plain 404. Bodies",
        "and replies are in `openapi-LISTENER.json` beside this page.",
        "",
        "A role includes the ones before it: reader, writer, admin.",
        "",
        "| listener | method | path | credential | role | header | what it does |",
        "|---|---|---|---|---|---|---|",
    ]
    for listener in Listener:
        for route in routes_of(listener):
            header = f"`{HEADERS[route.principal]}`" if route.principal in HEADERS else ""
            lines.append(
                f"| {listener} | {route.method} | `{route.path}` | {route.principal} | {route.role or ''} | {header} "
                f"| {route.summary} |"
            )
    return "\n".join(lines) + "\n"


def metrics_markdown() -> str:
    """Every metric of the Dispatcher and of the Query Service."""
    lines = [
        "# Metrics",
        "",
        "Generated from `tracelake.dispatcher.metrics`; do not edit by hand (`make docs`).",
        "",
        "`GET /metrics` on the internal listener, in the Prometheus text format. Counters and histograms are of one",
        "process. Gauges that read the stores are the same in every Dispatcher, as noted below: take their `max`.",
        "",
        "The number of label values depends on what is deployed, not on the load: routes, codes, kinds, states,",
        "queues, operators. `org`, `dag` and `job` exist for sources and for jobs with a queue threshold, and for at",
        "most a hundred jobs with failed units. Large counts stop at a bound, so that their cost does not grow with",
        "the data.",
        "",
        "| metric | type | labels | meaning |",
        "|---|---|---|---|",
    ]
    lines += _metric_rows(Metrics())
    shared = {family.name for family in Metrics().registry.collect()}
    others = (
        ("The Query Service", "its listener for people", QueryMetrics()),
        ("The runner", "its listener", RunnerMetrics()),
    )
    for service, listener, metrics in others:
        own = {family.name for family in metrics.registry.collect()} - shared
        lines += [
            "",
            f"{service} has those of every service (requests, tokens, the process) at `GET /metrics` of",
            f"{listener}, and:",
            "",
            "| metric | type | labels | meaning |",
            "|---|---|---|---|",
            *_metric_rows(metrics, own),
        ]
    return "\n".join(lines) + "\n"


def _metric_rows(metrics: HttpMetrics, names: set[str] | None = None) -> list[str]:
    lines = []
    labels = {metric._name: metric._labelnames for metric in vars(metrics).values() if hasattr(metric, "_labelnames")}
    for family in sorted(metrics.registry.collect(), key=lambda family: family.name):
        if names is not None and family.name not in names:
            continue
        name = f"{family.name}_total" if family.type == "counter" else family.name
        named = ", ".join(f"`{label}`" for label in labels.get(family.name, ()))
        lines.append(f"| `{name}` | {family.type} | {named} | {family.documentation} |")
    return lines
