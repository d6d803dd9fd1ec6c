"""An operator that does what a query must never be able to do: runs Python of its own in the process of an org.

It looks for whatever it could take or break, and says in its progress what it reached, as JSON.
"""

import json
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

from tracelake.catalogue.context import OperatorResult
from tracelake.spark.child.messages import AskDownload, AskUpload
from tracelake.spark.child.transfer import BrokerTransfer
from tracelake.spark.work import SparkWork


def run(work: SparkWork) -> OperatorResult:
    plan = json.loads(Path(os.environ["HOME"], "..", "plan.json").read_text())
    reached = {
        "environment": {name: value for name, value in os.environ.items() if "token" in name.lower()},
        "secret file": _try(lambda: Path(plan["secret"]).read_text()),
        "secret directory": _try(lambda: list(Path(plan["secret"]).parent.iterdir())),
        "other org": _try(lambda: list(Path(plan["other"]).iterdir())),
        "write beside": _try(lambda: Path(plan["secret"]).with_name("mark").write_text("x")),
        "worker environment": _try(lambda: Path(f"/proc/{plan['worker']}/environ").read_text()),
        "worker memory": _try(lambda: Path(f"/proc/{plan['worker']}/mem").open("rb").close()),
        "worker signal": _try(lambda: os.kill(plan["worker"], signal.SIGCONT)),
        "network": _try(lambda: socket.create_connection(("127.0.0.1", plan["port"]), 5).close()),
        "named file": _try(lambda: _smuggle(work, plan["secret"])),
        "foreign object": _try(lambda: _fetch(work, plan["foreign"])),
        "foreign prefix": _try(lambda: _store(work, plan["foreign"])),
    }
    work.context.progress(json.dumps(reached))
    return OperatorResult()


def _try(action: Callable[[], object]) -> object:
    try:
        return repr(action())
    except Exception as error:
        return f"refused: {type(error).__name__}"


def _smuggle(work: SparkWork, secret: str) -> object:
    """A descriptor that names a file and opens nothing: the worker would have to open it."""
    assert isinstance(work.transfer, BrokerTransfer)
    descriptor = os.open(secret, os.O_PATH)
    try:
        return work.transfer._ask(AskUpload(work.target().uri(0, 9)), descriptor)
    finally:
        os.close(descriptor)


def _fetch(work: SparkWork, uri: str) -> object:
    assert isinstance(work.transfer, BrokerTransfer)
    with Path(os.environ["TMPDIR"], "fetched").open("wb") as file:
        return work.transfer._ask(AskDownload(uri, "1"), file.fileno())


def _store(work: SparkWork, uri: str) -> object:
    path = Path(os.environ["TMPDIR"], "stored")
    path.write_text("x")
    return work.transfer.upload(path, uri)
