"""The queue port on Postgres."""

from tracelake.adapters.postgres_queue.queue import PostgresQueue

__all__ = ["PostgresQueue"]
