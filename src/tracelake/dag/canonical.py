"""The one spelling of a document: texts that mean the same have it in common, whatever their order and comments."""

import hashlib
from functools import cache
from typing import Any

import msgspec

from tracelake.model.dag import Dag


def canonical(dag: Dag) -> bytes:
    """JSON with sorted keys, which decodes to the same Dag. Fields at their default are left out, so that a field that
    a later release adds does not change the hash of a document that does not use it."""
    return msgspec.json.encode(_without_defaults(dag), order="deterministic")


def document_hash(dag: Dag) -> str:
    return canonical_hash(canonical(dag))


def canonical_hash(document: bytes) -> str:
    """The `document_hash` of a Dag whose canonical form is at hand."""
    return f"sha256:{hashlib.sha256(document).hexdigest()}"


def _without_defaults(value: Any) -> Any:
    """`omit_defaults` would not do: it leaves out what is the very object of the default, not all that is equal."""
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
    """Name, encoded name and default of each field. Describing a type takes far longer than reading its fields."""
    described = []
    for field in msgspec.structs.fields(kind):
        default = field.default_factory() if field.default_factory is not msgspec.NODEFAULT else field.default
        described.append((field.name, field.encode_name, _NoDefault() if default is msgspec.NODEFAULT else default))
    return tuple(described)
