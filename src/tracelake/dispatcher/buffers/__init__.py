"""Buffered datasets, seen from the Dispatcher: tables, what became of batches, dead letters."""
