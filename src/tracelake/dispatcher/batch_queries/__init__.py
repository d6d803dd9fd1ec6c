"""Batch queries of people: each is a task of the operator `query`, with a row that says whose it is.

`submission` makes both in one transaction; `states` tells how far a query is and cancels it; `outcomes` records how it
ended, exactly once, and removes it when it expires.
"""
