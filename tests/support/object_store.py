"""A real object store for tests: SeaweedFS, started once for the whole run."""

import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tracelake.stack.seaweedfs import EmbeddedObjectStore, StorePorts


@contextmanager
def object_store() -> Iterator[EmbeddedObjectStore]:
    with running_store() as (store, _):
        yield store


@contextmanager
def running_store() -> "Iterator[tuple[EmbeddedObjectStore, subprocess.Popen[bytes]]]":
    """The store and its process."""
    with tempfile.TemporaryDirectory(prefix="trace-objects-") as directory:
        root = Path(directory)
        store = EmbeddedObjectStore(
            root / "objects", root / "access.json", root / "config", root / "log", StorePorts.choose()
        )
        process = start(store)
        try:
            yield store, process
        finally:
            process.kill()
            process.wait()
            store.clean_up()


def start(store: EmbeddedObjectStore) -> "subprocess.Popen[bytes]":
    """Returns when it is ready."""
    store.prepare()
    with store.log_file.open("ab") as log:
        process = subprocess.Popen(
            store.command(), env=store.environment(), stdout=log, stderr=log, start_new_session=True
        )
    deadline = time.monotonic() + 60
    while not store.ready():
        assert process.poll() is None, store.log_file.read_text()
        assert time.monotonic() < deadline, store.log_file.read_text()
        time.sleep(0.05)
    return process
