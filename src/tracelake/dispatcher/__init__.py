"""The Dispatcher: stateless, the only writer of Postgres state. HTTP on one side, loops on the other.

Several may run at once: lifecycle calls lock their rows, every loop takes rows with SKIP LOCKED, nobody leads.
"""
