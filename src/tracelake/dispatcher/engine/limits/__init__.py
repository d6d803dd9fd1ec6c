"""Limits on running work: a limited task runs only while it has a place under each of its limits.

`keys` says which limits a task has: of its job (`max_concurrency`), of its operator, and its org's quota of running
tasks. `places` counts the places in the transactions that make tasks ready or end them: a task without a place is held,
and the transaction that frees one wakes the next. An operator's limit is shared fairly between orgs.
"""
