"""The process in which the answer of a server, or the body of a delivery, is taken apart.

It serves one task and ends. It is started without an environment, gets what it needs over its standard input (the
config, the secrets of the request, the bodies), and writes rows into files that the worker opened for it. Before it
reads a byte of a server it has given up every right to other files and processes; for `webhook_rows` also the network.
`python -m tracelake.feeds.process` starts one.
"""
