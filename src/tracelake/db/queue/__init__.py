"""The queue database: migrations, statements, connections. The adapter is in `adapters.lite`."""

from tracelake.db.queue.lane import Lane

__all__ = ["Lane"]
