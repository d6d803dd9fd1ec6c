"""Write the generated reference pages: `python -m tools.docs` (or `make docs`).

`tests/docs/test_generated.py` fails when a page in the repository is not what its generator says.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from tools.cli_reference import commands_markdown
from tools.http_reference import metrics_markdown, openapi_json, routes_markdown
from tools.query_reference import query_functions_markdown
from tools.sql_reference import functions_markdown
from tracelake.dag.json_schema import json_schema_text
from tracelake.dispatcher.why.reasons import reasons_markdown
from tracelake.errors import CATALOGUE
from tracelake.settings import reference_markdown
from tracelake.wire.contract import Listener

ROOT = Path(__file__).resolve().parent.parent


def errors_markdown() -> str:
    """The error reference page."""
    lines = [
        "# Errors",
        "",
        "Generated from `tracelake.errors.catalogue`; do not edit by hand (`make docs`).",
        "",
        'Every error body is `{"error": {"code", "message", "details"}}`. Codes are stable: new ones may be added, but',
        "none changes its meaning. Codes with the status `task` are not returned by calls: they begin the error of a",
        "failed task.",
        "",
        "| code | status | meaning | what to do | retryable |",
        "|---|---|---|---|---|",
    ]
    for code, kind in sorted(CATALOGUE.items()):
        again = "yes" if kind.retryable else "no"
        status = kind.status if kind.answered else "task"
        lines.append(f"| `{code}` | {status} | {kind.message} | {kind.remedy} | {again} |")
    return "\n".join(lines) + "\n"


PAGES: tuple[tuple[str, Callable[[], str]], ...] = (
    ("docs/reference/commands.md", commands_markdown),
    ("docs/reference/dag.schema.json", json_schema_text),
    ("docs/reference/errors.md", errors_markdown),
    ("docs/reference/metrics.md", metrics_markdown),
    *((f"docs/reference/openapi-{name}.json", partial(openapi_json, name)) for name in Listener),
    ("docs/reference/query_functions.md", query_functions_markdown),
    ("docs/reference/routes.md", routes_markdown),
    ("docs/reference/settings.md", reference_markdown),
    ("docs/reference/sql_functions.md", functions_markdown),
    ("docs/why.md", reasons_markdown),
)


def main() -> None:
    for path, generate in PAGES:
        target = ROOT / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(generate(), encoding="utf-8")


if __name__ == "__main__":
    main()
