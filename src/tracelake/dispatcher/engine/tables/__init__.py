"""The statements that lock and write rows: each runs once per transaction, however many rows it moves."""
