"""Adapters for one machine with nothing to install by hand."""
