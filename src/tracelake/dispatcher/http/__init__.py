"""HTTP: three listeners, one route table, strict bodies, one place where errors become answers.

A connection is accepted within limits (`server`, `accepting`, `connections`). A request passes `app`: `router` finds
the endpoint, `credentials` admits the caller, `bodies` reads a bounded body, which is decoded strictly; `batches` does
this for each item of a batch. `user_endpoints` and `machine_endpoints` bind the routes of `wire.routes` to views and
use cases. `health` answers probes.
"""
