"""Bundles of users' code: zip archives that nobody trusts.

`archive` decides whether an archive is acceptable, `entrypoint` whether its language can start it, `extraction` writes
its files. The Dispatcher runs the first two in a limited process (`child`) when an upload is finalized; a runner runs
them again before each run. `building` makes archives of a directory, for the command line.
"""
