"""Routing: which tasks an event makes.

An event is routed in the transaction that accepts it (or, for files, in the one that commits its unit), so an accepted
event is never without its tasks and a task never without its event. `directory` remembers who reads what, `router` puts
the steps in order, `units` says what an event asks of a reader, `drafts` makes the tasks, `coverage` keeps which units
exist. Edges that fell behind are taken on by `catch_up.edge_drain`.
"""
