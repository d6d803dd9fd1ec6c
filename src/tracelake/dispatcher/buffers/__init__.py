"""Buffered datasets, seen from the Dispatcher.

Tasks publish batches (`engine.calls.buffer_publish`), the outbox sends them to the sinks, and sinks report here:
`commits` records which batches are in their table and which were rejected. `dead_batches` lists, replays and drops
rejected ones (`trace dlq`). `artifact_retention` deletes the files of batches that are done. `writer_grants` says which
DAGs may write a dataset of another.
"""
