"""The queue database: migrations, statements, connections. The adapter is `adapters/postgres_queue`."""

from tracelake.db.queue.lane import Lane

__all__ = ["Lane"]
