"""Reference pages of the HTTP surface: routes, OpenAPI documents, metrics."""

import json

from tracelake.dispatcher.http.credentials import HEADERS
from tracelake.dispatcher.http.openapi import build_openapi, declared_routes
from tracelake.dispatcher.http.routing import Listener
from tracelake.dispatcher.http.table import routes_of
from tracelake.dispatcher.metrics import Metrics


def openapi_json(listener: Listener) -> str:
    return json.dumps(build_openapi(listener, declared_routes()), indent=2) + "\n"


def routes_markdown() -> str:
    """Every route: where, how, by whom."""
    lines = [
        "# Routes",
        "",
        "Generated from `tracelake.dispatcher.http.table`; do not edit by hand (`make docs`).",
        "",
        "Three listeners on three sockets. A path of another listener is a plain 404. Bodies and replies are in",
        "`openapi-{public,task,internal}.json` beside this page.",
        "",
        "A role includes the ones before it: reader, writer, admin.",
        "",
        "| listener | method | path | credential | role | header | what it does |",
        "|---|---|---|---|---|---|---|",
    ]
    routes = declared_routes()
    for listener in Listener:
        for route in routes_of(routes, listener):
            header = f"`{HEADERS[route.principal]}`" if route.principal in HEADERS else ""
            lines.append(
                f"| {listener} | {route.method} | `{route.path}` | {route.principal} | {route.role or ''} | {header} "
                f"| {route.summary} |"
            )
    return "\n".join(lines) + "\n"


def metrics_markdown() -> str:
    """Every metric of the Dispatcher."""
    lines = [
        "# Metrics",
        "",
        "Generated from `tracelake.dispatcher.metrics`; do not edit by hand (`make docs`).",
        "",
        "`GET /metrics` on the internal listener, in the Prometheus text format.",
        "",
        "| metric | type | labels | meaning |",
        "|---|---|---|---|",
    ]
    declared = vars(Metrics())
    metrics = sorted(
        (metric for name, metric in declared.items() if name != "registry"), key=lambda metric: str(metric._name)
    )
    for metric in metrics:
        kind = metric._type
        name = f"{metric._name}_total" if kind == "counter" else metric._name
        labels = ", ".join(f"`{label}`" for label in metric._labelnames)
        lines.append(f"| `{name}` | {kind} | {labels} | {metric._documentation} |")
    return "\n".join(lines) + "\n"
