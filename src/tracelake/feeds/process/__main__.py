"""`python -m tracelake.feeds.process NETWORK READABLE...`: limits itself, then serves its one task.

NETWORK is `shared` or `own`, and each READABLE a further place that can be read. Two processes, as of
`tracelake.spark.child`: whoever ends the first ends both.
"""

import os
import signal
import sys

from tracelake.spark.child import sandbox


def main(arguments: list[str]) -> int:
    network, *readable = arguments
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal; the worker decides
    sandbox.end_with_parent()
    sandbox.limit_resources()
    in_namespaces = sandbox.enter_namespaces(network=network == "shared") is None
    inner = os.fork()
    if inner:
        # The inner process alone speaks.
        os.close(0)
        os.close(1)
        return os.waitstatus_to_exitcode(os.waitpid(inner, 0)[1]) & 0xFF
    sandbox.end_with_parent()
    if in_namespaces:
        sandbox.mount_proc()
    sandbox.protect_memory()
    # Loaded before the rights to read are given up.
    from tracelake.feeds.process.serve import serve

    sandbox.drop_capabilities()
    sandbox.restrict_files(readable, [])
    serve()
    return 0


if __name__ == "__main__":
    status = main(sys.argv[1:])
    os._exit(status)
