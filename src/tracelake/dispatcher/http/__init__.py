"""The Dispatcher's routes on its three listeners (`tracelake.http` serves them).

`credentials` admits the caller. `user_endpoints` and `machine_endpoints` bind the routes of `wire.routes` to views and
use cases; `batches` admits and decodes each item of a batch. `health` answers probes.
"""
