"""Backpressure: a queue that is full stops what feeds it, up to the sources, and nothing is lost by it.

`levels` says how full is too full, `upstream` whom a full queue stops, `gauge` keeps the depth and the level of each
queue in the transactions that change it, `watch` looks at ages, which change by themselves. Who is stopped is never
stored: whoever routes asks for the levels of what lies downstream, and an event that may not be routed waits in the
events table like everything else that waits (see `catch_up.edge_drain`).
"""
