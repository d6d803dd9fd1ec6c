"""Deploying: a document becomes a version, a version becomes active.

`plan` says what would change, as data and without a database; `registry` reads what it needs to know; `apply` writes a
version's definitions; `cutover` moves the pointers in one transaction; `builds` ends builds that are finished; and
`deployments` puts them in order for a caller.
"""
