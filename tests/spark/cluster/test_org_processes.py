"""The operators in the Spark process of an org, on one machine, on a standalone cluster and over Spark Connect: they
write what they write in the worker's own session."""

import dataclasses
import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from tests.spark.cluster import checks
from tests.spark.cluster.daemons import ConnectServer, standalone
from tests.spark.cluster.driver import Task
from tests.spark.cluster.flow import Flow
from tests.support.chain import ServedChain
from tracelake.adapters.s3.access import S3Access
from tracelake.adapters.s3.transfer import S3Transfer
from tracelake.catalogue.context import OperatorResult
from tracelake.worker.org_process.launch import OrgProcessConfig
from tracelake.worker.org_process.pool import OrgProcesses
from tracelake.worker.spark import SparkOperators

ROOT = Path(__file__).parents[3]
DATA_DSN = "postgresql://reader:password-of-data@127.0.0.1:1/data"


@contextmanager
def isolated(
    engine: SparkOperators, master: str, access: S3Access, scratch: Path, **options: str
) -> Iterator[SparkOperators]:
    config = OrgProcessConfig(
        scratch=scratch,
        master=master,
        memory="600m",
        memory_bytes=600 * 2**20,
        log_level="error",
        options={f"spark.{name.replace('_', '.')}": value for name, value in options.items()},
        readable=(ROOT / "tests",),
    )
    processes = OrgProcesses(config, S3Transfer(access), lambda: DATA_DSN, spare=False)
    try:
        yield dataclasses.replace(engine, isolation=processes)
    finally:
        processes.close()


def run_flow(engine: SparkOperators, access: S3Access, chain: ServedChain, monkeypatch: pytest.MonkeyPatch) -> Flow:
    monkeypatch.setenv("TRACE_RPC_DEFAULT", chain.url)
    return Flow(lambda task: engine.operators()[task.operator].run(task.context()), access).all()


def test_on_one_machine_the_worker_fetches_and_stores_for_it(
    local_engine: SparkOperators,
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
    local_engine: SparkOperators,
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


def test_on_a_standalone_cluster_each_org_has_an_application_and_no_key(
    local_engine: SparkOperators,
    local_flow: Flow,
    access: S3Access,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert access.secret_key is not None
    held: dict[str, dict[str, object]] = {}
    with standalone(tmp_path / "cluster") as place:
        # The cluster was started by others: what the worker's environment has is not theirs.
        for name, value in {**place.environment, "PYTHONPATH": str(ROOT), "TRACE_KEY": access.secret_key}.items():
            monkeypatch.setenv(name, value)
        with isolated(local_engine, place.master, access, tmp_path / "orgs", cores_max="1") as engine:
            assert engine.isolation is not None
            for org in ("first", "second"):
                task = Task(
                    "spark_sql",
                    {"query": "SELECT block_number, token FROM transfers", "order_by": ["block_number"], "files": 2},
                    (0, 199),
                    [f"tokens_{org}"],
                    [local_flow.input("transfers")],
                )
                flow = Flow(partial(run_as, engine, org), access)
                result = flow.do(task)
                wanted = sum(table.num_rows for _, table in local_flow.files("transfers"))
                assert sum(table.num_rows for _, table in flow.files(f"tokens_{org}")) == wanted
                assert result.spark is not None
                said: list[str] = []
                context = dataclasses.replace(task.context(), org=org, progress=said.append, attempt=2)
                engine.isolation.run("spark_sql", "tests.spark.cluster.probe", context)
                held[org] = json.loads("".join(said))
    assert held["first"]["application"] != held["second"]["application"]
    for holding in held.values():
        text = json.dumps(holding)
        assert "CoarseGrainedExecutorBackend" in text, "it has seen an executor"
        assert access.secret_key not in text
        assert "password-of-data" not in text


def run_as(engine: SparkOperators, org: str, task: Task) -> OperatorResult:
    return engine.operators()[task.operator].run(dataclasses.replace(task.context(), org=org))
