"""The reference page of the functions that queries may call."""

from tracelake.catalogue.sql.functions.kinds import KINDS
from tracelake.catalogue.sql.functions.refused import REFUSED
from tracelake.catalogue.sql.functions.signatures import GROUPS
from tracelake.catalogue.sql.functions.vocabulary import BARE_NAMES


def functions_markdown() -> str:
    lines = [
        "# Functions in queries",
        "",
        "Generated from `tracelake.catalogue.sql.functions`; do not edit by hand (`make docs`).",
        "",
        "What a query of [spark_sql](../operators/spark_sql.md) may call. Spark's own manual says what each does.",
        "Every argument has a kind: `value` is any expression, every other kind is",
        "[a literal](#kinds-of-arguments). `?` marks what may be left out, `...` what may be repeated.",
        "[All others](#functions-that-are-refused) are refused when the DAG is deployed.",
        "",
        "| group | functions |",
        "|---|---|",
    ]
    for group, signatures in GROUPS.items():
        lines.append(f"| {group} | {', '.join(f'`{signature}`' for signature in signatures)} |")
    lines += ["", "## Kinds of arguments", "", "| kind | what to write | why it is no free value |", "|---|---|---|"]
    lines += [f"| `{kind.name}` | {kind.expected} | {kind.reason} |" for kind in KINDS.values()]
    lines += [
        "",
        "Not columns, unless a table's name stands before them, because Spark takes them for functions: "
        + ", ".join(f"`{name}`" for name in sorted(BARE_NAMES))
        + ".",
        "",
        "## Functions that are refused",
        "",
        "| it ... | functions |",
        "|---|---|",
    ]
    reasons: dict[str, list[str]] = {}
    for name, reason in REFUSED.items():
        reasons.setdefault(reason, []).append(name)
    for reason, names in reasons.items():
        listed = ", ".join(f"<code>{_escaped(name)}</code>" for name in sorted(names))
        lines.append(f"| {reason} | {listed} |")
    return "\n".join(lines) + "\n"


def _escaped(name: str) -> str:
    return name.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("|", "&#124;")
