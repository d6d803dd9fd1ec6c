"""Buffered datasets: batches of many writers become rows of one table, whatever the order, the repeats, the crashes.

The sink holds no state of its own: what is to be done comes from the queues, what was done is in Postgres data.
"""
