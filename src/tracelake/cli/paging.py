"""As many rows as a person asked for; the client collects them."""

from tracelake.client.paging import PAGE_ROWS, collect

__all__ = ["PAGE_ROWS", "collect"]
