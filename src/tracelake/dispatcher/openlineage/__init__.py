"""OpenLineage: what attempts read and wrote, told to a receiver of the operator's choice. Off unless a URL is set.

`engine.tables.lineage_rows` notes starts and ends in the transactions that they happen in; `sender` sends the notes
after the commit, at least once and in their order; `run_events` says what an event holds, `receiver` is the HTTP.
"""
