"""The one spelling of a document: texts that mean the same have it in common, whatever their order and comments."""

import hashlib

import msgspec

from tracelake.model.dag import Dag


def canonical(dag: Dag) -> bytes:
    """JSON with sorted keys. Fields at their default are left out, so that a field that a later release adds does
    not change the hash of a document that does not use it."""
    return msgspec.json.encode(dag, order="deterministic")


def document_hash(dag: Dag) -> str:
    return f"sha256:{hashlib.sha256(canonical(dag)).hexdigest()}"
