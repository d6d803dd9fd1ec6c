"""How two definitions of a job differ: fields, single values, and texts as diffs."""

from difflib import unified_diff
from typing import Any

import msgspec

from tracelake.model.dag import JobDocument
from tracelake.wire.dags import FieldChange, TextChange

_SHORT = 100
"""Longer values are named, not repeated."""
_LONGEST = 50_000
"""Longer texts are not compared line by line."""
_MOST_LINES = 1_000
_SHOWN_LINES = 200


def changed_fields(was: JobDocument, job: JobDocument) -> list[str]:
    # A stored definition has lists where one that was just parsed has tuples.
    before, after = (msgspec.json.decode(msgspec.json.encode(item)) for item in (was, job))
    return [field for field in job.__struct_fields__ if before.get(field) != after.get(field)]


def changed_values(was: JobDocument, job: JobDocument) -> list[FieldChange]:
    """Returns the changes that fit in a line: single values, also those of maps one level down."""
    before, after = _flat(was), _flat(job)
    return [
        FieldChange(field=name, before=before.get(name), after=after.get(name))
        for name in {**before, **after}
        if before.get(name) != after.get(name) and _is_single(before.get(name)) and _is_single(after.get(name))
    ]


def changed_texts(was: JobDocument, job: JobDocument) -> list[TextChange]:
    """Returns the changes of texts that do not fit in a line, such as queries."""
    before, after = _flat(was), _flat(job)
    changes = []
    for name in after:
        old, new = before.get(name), after[name]
        if not isinstance(old, str) or not isinstance(new, str) or old == new or (_is_single(old) and _is_single(new)):
            continue
        lines, other_lines = old.splitlines(), new.splitlines()
        if max(len(old), len(new)) > _LONGEST or max(len(lines), len(other_lines)) > _MOST_LINES:
            continue
        diff = list(unified_diff(lines, other_lines, lineterm="", n=2))[2:]
        changes.append(TextChange(field=name, diff=diff[:_SHOWN_LINES], more=max(0, len(diff) - _SHOWN_LINES)))
    return changes


def _flat(job: JobDocument) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in msgspec.structs.asdict(job).items():
        below = msgspec.structs.asdict(value) if isinstance(value, msgspec.Struct) else value
        fields |= {f"{name}.{key}": item for key, item in below.items()} if isinstance(below, dict) else {name: below}
    return fields


def _is_single(value: object) -> bool:
    if isinstance(value, str):
        return len(value) <= _SHORT and "\n" not in value.strip()
    return value is None or (isinstance(value, int | float) and len(str(value)) <= _SHORT)
