"""The canonical form of a document, which is the same for texts of the same meaning."""

import hashlib
from functools import cache
from typing import Any

import msgspec

from tracelake.model.dag import Dag


def canonical(dag: Dag) -> bytes:
    """JSON with sorted keys, which decodes to the same Dag. Fields at their default are omitted, so that a new field of
    a later release does not change the hash of documents that do not use it."""
    return msgspec.json.encode(_without_defaults(dag), order="deterministic")


def document_hash(dag: Dag) -> str:
    return canonical_hash(canonical(dag))


def canonical_hash(document: bytes) -> str:
    """The `document_hash` of a Dag, from its canonical form."""
    return f"sha256:{hashlib.sha256(document).hexdigest()}"


def _without_defaults(value: Any) -> Any:
    """Omits fields that equal their default; `omit_defaults` of msgspec compares by identity."""
    if isinstance(value, tuple):
        return [_without_defaults(item) for item in value]
    if not isinstance(value, msgspec.Struct):
        return value
    fields = {}
    for name, encoded_name, default in _fields(type(value)):
        item = getattr(value, name)
        if item != default:
            fields[encoded_name] = _without_defaults(item)
    return fields


class _NoDefault:
    """Equal to nothing, so that a field without a default is always kept."""


@cache
def _fields(kind: type[msgspec.Struct]) -> tuple[tuple[str, str, Any], ...]:
    """Name, encoded name and default of each field; cached, since describing a type is slow."""
    described = []
    for field in msgspec.structs.fields(kind):
        default = field.default_factory() if field.default_factory is not msgspec.NODEFAULT else field.default
        described.append((field.name, field.encode_name, _NoDefault() if default is msgspec.NODEFAULT else default))
    return tuple(described)
