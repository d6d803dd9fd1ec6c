"""Paths into JSON and into variants."""

import re

from tracelake.catalogue.sql.literals.errors import LiteralError

MAX_LENGTH = 500
MAX_STEPS = 32
MAX_WILDCARDS = 2
_STEP = re.compile(
    r"\.(?P<name>[A-Za-z0-9_$@ -]{1,128})|\[(?P<index>[0-9]{1,6})\]|\['(?P<quoted>[^'\"\[\]\\?]{1,128})'\]"
    r"|(?P<wildcard>\.\*|\[\*\])"
)


def check_json_path(text: str) -> None:
    """A path of `get_json_object`: `$.a[0].b`, with `[*]` for every item."""
    if _steps(text) > MAX_WILDCARDS:
        raise LiteralError(f"a path has at most {MAX_WILDCARDS} wildcards, since each multiplies the items")


def check_variant_path(text: str) -> None:
    """A path of `variant_get`: `$.a[0].b`."""
    if _steps(text):
        raise LiteralError("a path into a variant has no wildcards")


def _steps(text: str) -> int:
    """Checks each step; the number of wildcards."""
    if len(text) > MAX_LENGTH or not text.startswith("$"):
        raise LiteralError(f"a path begins with `$`, like `$.a[0].b`, and has at most {MAX_LENGTH} characters")
    place, steps, wildcards = 1, 0, 0
    while place < len(text):
        match = _STEP.match(text, place)
        if match is None:
            raise LiteralError("a step of a path is `.name`, `[0]`, `['name']` or a wildcard `[*]`")
        place, steps = match.end(), steps + 1
        wildcards += match["wildcard"] is not None
        if steps > MAX_STEPS:
            raise LiteralError(f"a path has at most {MAX_STEPS} steps")
    return wildcards
