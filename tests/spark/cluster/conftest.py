"""A chain, a real object store, and what the operators write on one machine: what they must write anywhere."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spark.cluster.flow import BLOCKS, Flow
from tests.support.chain import ServedChain, serve_chain
from tests.support.object_store import object_store
from tracelake.adapters.s3.access import S3Access
from tracelake.adapters.s3.transfer import S3Transfer
from tracelake.spark.session import SharedSession
from tracelake.worker.spark import SparkOperators


@pytest.fixture(scope="session")
def chain() -> Iterator[ServedChain]:
    with serve_chain(BLOCKS[1] + 1) as chain:
        yield chain


@pytest.fixture(scope="session")
def access() -> Iterator[S3Access]:
    with object_store() as store:
        yield store.access()


@pytest.fixture(scope="session")
def local_engine(shared: SharedSession, access: S3Access, tmp_path_factory: pytest.TempPathFactory) -> SparkOperators:
    return SparkOperators(shared, S3Transfer(access), tmp_path_factory.mktemp("local"))


@pytest.fixture(scope="session")
def local_flow(local_engine: SparkOperators, access: S3Access, chain: ServedChain) -> Flow:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRACE_RPC_DEFAULT", chain.url)
        return Flow(lambda task: local_engine.operators()[task.operator].run(task.context()), access).all()


@pytest.fixture
def marks(tmp_path: Path) -> Path:
    directory = tmp_path / "marks"
    directory.mkdir()
    return directory
