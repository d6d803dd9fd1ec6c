"""The statements that lock and write rows: each runs once per transaction, however many rows it moves.

`task_rows` locks, inserts and updates tasks, `event_rows` stores and routes events, `publication_rows` commits units
and their manifests, `batch_rows` stores published batches and sends them to the sinks. Nothing here decides: the plan
says what to write.
"""
