"""Operators of one team, which Trace finds by the entry points of this package."""
