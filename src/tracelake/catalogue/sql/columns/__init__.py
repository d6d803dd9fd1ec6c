"""The columns of a query before it runs: names as Spark gives them, and types where they are certain.

A query that Spark accepts is never refused here. Whatever is not certain has the type UNKNOWN, and a relation whose
columns are not all known is incomplete: no name is looked for in vain there. `analysis` walks the tree that the gate
has checked, `scopes` finds names as Spark does, `operators` and `functions` have the types.
"""
