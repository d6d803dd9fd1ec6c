"""DuckDB, one sandboxed process per query.

- `requests`: what a query is and what it may use. `server`: runs it, for the service.
- `child`: runs inside of the sandbox, with `database` (secure set-up, views), `results` (Arrow, export) and `failures`
  (which error codes leave it).

Only `child` and what it imports know DuckDB, and only they parse Parquet. The service relays bytes and numbers.
"""
