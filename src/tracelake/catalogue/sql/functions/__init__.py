"""Which functions a query may call, and with what: one entry for each function that Spark knows.

`signatures` has those that may be called, with the kind of each argument; `kinds` says what each kind is and why;
`refused` has all others with the reason. What may be called is a function of its arguments alone: a task that is tried
again has to write the same rows.
"""

from tracelake.catalogue.sql.functions.signatures import SIGNATURES

FUNCTIONS: frozenset[str] = frozenset(SIGNATURES)
