"""The Dispatcher of the HTTP tests, one per module, with a clock that can be moved; and an object store."""

import asyncio
import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TypeAlias

import pytest

from tests.http.conftest import harness as harness
from tests.support.object_store import running_store
from tracelake.adapters.s3.object_store import S3ObjectStore
from tracelake.stack.seaweedfs import EmbeddedObjectStore

RunningStore: TypeAlias = tuple[EmbeddedObjectStore, "subprocess.Popen[bytes]"]


@pytest.fixture(scope="package")
def running() -> Iterator[RunningStore]:
    """A store and its process, started by somebody whose files are for everybody unless they say otherwise."""
    with ExitStack() as stack:
        umask = os.umask(0)
        try:
            pair = stack.enter_context(running_store())
        finally:
            os.umask(umask)
        asyncio.run(S3ObjectStore(pair[0].access()).put("s3://bucket-one/datasets/known", b"known"))
        yield pair
