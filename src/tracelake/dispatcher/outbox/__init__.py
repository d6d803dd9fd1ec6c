"""The outbox: side effects as rows, and the relay that publishes them at least once."""
