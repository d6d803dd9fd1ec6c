"""Which functions of DuckDB a query may call, and with what: one entry for each function that DuckDB knows.

`signatures` has those that may be called, with the kind of each argument; `kinds` defines the kinds and says why they
exist; `refused` has the reason for each other function, by name or by rule.
"""

from tracelake.query.gate.functions.refused import reason_against
from tracelake.query.gate.functions.signatures import (
    AGGREGATES,
    SIGNATURES,
    TABLE_SIGNATURES,
    WINDOWS,
    CallForm,
)

__all__ = ["AGGREGATES", "SIGNATURES", "TABLE_SIGNATURES", "WINDOWS", "CallForm", "reason_against"]
