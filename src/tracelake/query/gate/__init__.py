"""The gate for DuckDB SQL of callers: nothing of a query is believed, and what was checked is what runs.

`check.QueryGate` does the work, `child` does it in a process with limits, and `processes` is the pool of those.
"""
