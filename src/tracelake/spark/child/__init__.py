"""The Spark process of one org: a child of the worker in which user SQL is analysed and run.

It holds nothing worth stealing. Its environment is empty, it has no token, no key of the object store and no password
of a database, and what it may do with files, processes and the network is limited before it reads its first message
(`sandbox`). It is connected to the worker by one socket (`messages`): the worker sends attempts, and does for each of
them what needs a credential: it names the pinned files, fetches and stores bytes, reads tables, publishes batches,
and checks each request against the grants of the attempt (`worker/org_process/broker.py`).

`python -m tracelake.spark.child` starts one; `serve` is what runs in it, and `transfer` is how Spark's own Python
processes reach the worker, through a relay in the child.
"""
