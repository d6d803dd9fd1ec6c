"""The operators that documents may name, from the catalogue of this Dispatcher."""

from tracelake.catalogue import CATALOGUE, document_operators
from tracelake.wire.operators import OperatorRow, OperatorsReply


def list_operators() -> OperatorsReply:
    rows = [
        OperatorRow(name=name, summary=spec.summary, package=CATALOGUE.package_of(name))
        for name, spec in document_operators().items()
    ]
    rows += [
        OperatorRow(name=name, summary="", package=item.label, available=False)
        for name, item in CATALOGUE.plugins.items()
        if item.plugin is None and name not in CATALOGUE
    ]
    return OperatorsReply(operators=sorted(rows, key=lambda row: row.name))
