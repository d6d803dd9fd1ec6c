"""The operators in the Spark process of an org, on one machine and over Spark Connect: they write what they write in
the worker's own session."""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.spark.cluster import checks
from tests.spark.cluster.daemons import ConnectServer
from tests.spark.cluster.flow import Flow
from tests.support.chain import ServedChain
from tracelake.adapters.s3.access import S3Access
from tracelake.adapters.s3.transfer import S3Transfer
from tracelake.worker.org_launch import OrgProcessConfig
from tracelake.worker.org_processes import OrgProcesses
from tracelake.worker.spark import Engine


@contextmanager
def isolated(engine: Engine, master: str, access: S3Access, scratch: Path) -> Iterator[Engine]:
    config = OrgProcessConfig(
        scratch=scratch, master=master, memory="600m", memory_bytes=600 * 2**20, log_level="error"
    )
    processes = OrgProcesses(config, S3Transfer(access), lambda: "", spare=False)
    try:
        yield dataclasses.replace(engine, isolation=processes)
    finally:
        processes.close()


def run_flow(engine: Engine, access: S3Access, chain: ServedChain, monkeypatch: pytest.MonkeyPatch) -> Flow:
    monkeypatch.setenv("TRACE_RPC_DEFAULT", chain.url)
    return Flow(lambda task: engine.operators()[task.operator].run(task.context()), access).all()


def test_on_one_machine_the_worker_fetches_and_stores_for_it(
    local_engine: Engine,
    local_flow: Flow,
    access: S3Access,
    chain: ServedChain,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with isolated(local_engine, "local[2]", access, tmp_path) as engine:
        flow = run_flow(engine, access, chain, monkeypatch)
    checks.writes_what_one_machine_writes(flow, local_flow)


def test_over_connect_it_has_a_session_of_its_own(
    local_engine: Engine,
    local_flow: Flow,
    access: S3Access,
    chain: ServedChain,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with (
        ConnectServer(tmp_path / "connect").serving() as server,
        isolated(local_engine, server.place.master, access, tmp_path / "orgs") as engine,
    ):
        flow = run_flow(engine, access, chain, monkeypatch)
    checks.writes_what_one_machine_writes(flow, local_flow)
