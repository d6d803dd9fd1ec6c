"""The reference page of the functions that queries of `trace query` may call."""

import duckdb

from tracelake.query.gate.functions.kinds import KINDS
from tracelake.query.gate.functions.refused import reason_against
from tracelake.query.gate.functions.signatures import GROUPS, SIGNATURES, TABLE_SIGNATURES, CallForm


def query_functions_markdown() -> str:
    lines = [
        "# Functions in interactive queries",
        "",
        "Generated from `tracelake.query.gate.functions`; do not edit by hand (`make docs`).",
        "",
        "What a query of [trace query](../query.md) may call. DuckDB's own manual says what each does.",
        "Every argument has a kind: `value` is any expression, every other kind is",
        "[a constant or a lambda](#kinds-of-arguments). `?` marks what may be left out, `...` what may be repeated.",
        "[All others](#functions-that-are-refused) are refused before anything runs. CAST, CASE, COALESCE, EXTRACT,",
        "BETWEEN, IN and the comparisons are part of the language, and are allowed.",
        "",
        "| group | functions |",
        "|---|---|",
    ]
    for group, functions in GROUPS.items():
        calls = [_spell(name, form) for name in sorted(functions) for form in functions[name]]
        lines.append(f"| {group} | {', '.join(f'<code>{_escaped(call)}</code>' for call in calls)} |")
    lines += ["", "## Kinds of arguments", "", "| kind | what to write | why |", "|---|---|---|"]
    lines += [f"| `{name}` | {kind.expected} | {kind.reason} |" for name, kind in KINDS.items()]
    lines += ["", "## Functions that are refused", "", "| why | functions |", "|---|---|"]
    for reason, names in sorted(_refused().items()):
        lines.append(f"| {reason} | {', '.join(f'<code>{_escaped(name)}</code>' for name in names)} |")
    return "\n".join(lines) + "\n"


def _spell(name: str, form: CallForm) -> str:
    arguments = [f"{kind}{'?' if index >= form.required else ''}" for index, kind in enumerate(form.kinds)]
    shown_name = name.removesuffix("__postfix")
    if not name.isidentifier():
        return shown_name
    return f"{shown_name}({', '.join([*arguments, *(['...'] if form.repeats else [])])})"


def _refused() -> dict[str, list[str]]:
    """Functions of the pinned DuckDB by the reason against them."""
    with duckdb.connect() as connection:
        rows = connection.execute("SELECT DISTINCT function_name FROM duckdb_functions() ORDER BY 1").fetchall()
    reasons: dict[str, list[str]] = {}
    for (name,) in rows:
        lower = name.lower()
        if lower in SIGNATURES or lower in TABLE_SIGNATURES or lower.startswith("__"):
            continue
        if (reason := reason_against(lower)) is not None:
            reasons.setdefault(reason, []).append(lower)
    return reasons


def _escaped(name: str) -> str:
    return name.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("|", "&#124;")
