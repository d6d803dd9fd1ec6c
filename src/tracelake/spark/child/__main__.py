"""`python -m tracelake.spark.child SOCKET DIRECTORY NETWORK READABLE...`: limits itself, then serves the worker.

SOCKET is an inherited descriptor, DIRECTORY the only place that can be written, NETWORK `shared` or `own`, and each
READABLE a further place that can be read. Two processes: the first one waits for the second, which is the first of its
namespace; whoever ends either ends everything below.
"""

import os
import signal
import sys

from tracelake.spark.child import sandbox


def main(arguments: list[str]) -> int:
    descriptor, directory, network, *readable = arguments
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal; the worker decides
    sandbox.end_with_parent()
    sandbox.limit_resources()
    missing = {"namespaces": sandbox.enter_namespaces(network=network == "shared")}
    inner = os.fork()
    if inner:
        os.close(int(descriptor))
        return os.waitstatus_to_exitcode(os.waitpid(inner, 0)[1]) & 0xFF
    sandbox.end_with_parent()
    if missing["namespaces"] is None:
        missing["proc"] = sandbox.mount_proc()
    sandbox.drop_capabilities()
    missing["files"] = sandbox.restrict_files(readable, [directory])
    from tracelake.spark.child.serve import serve

    serve(int(descriptor), {name: reason for name, reason in missing.items() if reason is not None})
    return 0


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(status)
