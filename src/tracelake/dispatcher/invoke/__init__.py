"""Attempts that the Dispatcher starts itself: handed to the Invoker, or run here as control operators.

`loop` takes outbox rows, claims their tasks and supervises; `attempt` is an attempt's way to speak; `in_process` runs
the operators of `operators/`.
"""
