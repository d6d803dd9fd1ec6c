"""The sink: turns batches of many writers into rows of one table per dataset, despite reordering, repeats and crashes.

It holds no state of its own: work comes from the queues, and Postgres data records what was done.
"""
