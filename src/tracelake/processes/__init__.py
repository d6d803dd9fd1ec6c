"""Composition roots and the entry point: the only layer that knows which adapters are used."""
