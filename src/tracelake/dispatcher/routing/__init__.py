"""Routing: which tasks an event makes.

An event is routed in the transaction that accepts it (or, for files, in the one that commits its unit), so an accepted
event is never without its tasks and a task never without its event. `router` puts the steps in order, `units` decides,
`coverage` knows which units are there, `directory` remembers who reads what, `drain` takes edges on that fell behind.
"""
