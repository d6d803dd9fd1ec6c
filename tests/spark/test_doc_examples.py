"""The DAGs in the pages of the operators are taken as they stand there, checked, and run over the recorded chain."""

import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tools.docs import ROOT

from tests.spark.chain_tables import chain_tables
from tests.spark.support import Bench
from tests.support.chain import serve_chain
from tracelake.catalogue import document_operators
from tracelake.dag import KnownDataset, Surroundings, read_dag
from tracelake.model.dag import Dag, ReadMode
from tracelake.model.runtime import BUILT_IN
from tracelake.spark.operators import OPERATORS
from tracelake.wire.units import ReadScope

PAGES = sorted(path for path in (ROOT / "docs/operators").glob("*.md") if path.stem in OPERATORS)
LAST = 299
TABLES = ("blocks", "transactions", "logs")
S3 = KnownDataset(owner_dag="elsewhere", schema=None, storage="s3")
SURROUNDINGS = Surroundings(runtimes=BUILT_IN, datasets=dict.fromkeys(("blocks", "transfers"), S3), bundles={})


def dags_of(page: Path) -> list[Dag]:
    found = re.findall(r"^```yaml\n(name: .*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    return [read_dag(text.encode(), SURROUNDINGS) for text in found]


def test_every_page_has_an_example() -> None:
    modules = {module for name, module in OPERATORS.items() if name in document_operators()}
    assert {page.stem for page in PAGES} == {module.rpartition(".")[2] for module in modules}
    assert all(dags_of(page) for page in PAGES)


class Runner:
    """Runs the jobs of a DAG in their order; what comes from a node, or from elsewhere, is given."""

    def __init__(self, session: SparkSession, root: Path) -> None:
        self.session, self.root = session, root
        chain = chain_tables(LAST + 1)
        self.chain = [chain[name] for name in TABLES]
        transfers = self.start("decode_logs", {}, [("logs", chain["logs"])], 1)
        self.datasets = {"blocks": chain["blocks"], "transfers": transfers[0]}

    def start(
        self,
        operator: str,
        config: dict[str, object],
        inputs: list[tuple[str, pa.Table]],
        outputs: int,
        scopes: dict[int, ReadScope] | None = None,
    ) -> list[pa.Table]:
        directory = self.root / str(len(list(self.root.iterdir())))
        directory.mkdir()
        bench = Bench(self.session, directory)
        for index, (name, table) in enumerate(inputs):
            bench.add_input(name, table, scope=(scopes or {}).get(index))
        for index in range(outputs):
            bench.add_output(f"out{index}")
        bench.run(operator, importlib.import_module(OPERATORS[operator]).run, config, blocks=(0, LAST))
        return [bench.table(index) for index in range(outputs)]

    def run(self, dag: Dag) -> dict[str, list[pa.Table]]:
        made: dict[str, list[pa.Table]] = {}
        for job in dag.jobs:
            if job.operator in ("evm_ingest", "cryo_ingest"):
                made[job.name] = [self.chain[TABLES.index(name)] for name in job.config.get("tables", TABLES)]
            elif job.operator in OPERATORS:
                inputs, scopes = [], {}
                for number, item in enumerate(job.inputs):
                    if item.read is ReadMode.PREVIOUS:  # this is the first unit
                        scopes[number] = ReadScope(mode=item.read, empty=True, columns=item.columns)
                        inputs.append((f"input{number}", pa.table({})))
                    elif item.output is None:
                        assert item.dataset is not None
                        inputs.append((item.dataset, self.datasets[item.dataset]))
                    else:
                        inputs.append((f"input{number}", made[item.output.job][item.output.output_index]))
                made[job.name] = self.start(job.operator, job.config, inputs, job.outputs, scopes)
        return made


@pytest.fixture(scope="module")
def runner(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    """With a node, for operators that ask one besides their input."""
    with serve_chain(LAST + 1) as chain, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRACE_RPC_DEFAULT", chain.url)
        yield Runner(spark, tmp_path_factory.mktemp("examples"))


# These need a chain, or a table that a follower writes.
ALONE = [page for page in PAGES if page.stem not in ("evm_ingest", "parquet_compact")]


@pytest.mark.parametrize("page", ALONE, ids=lambda page: page.stem)
def test_examples_run(runner: Runner, page: Path) -> None:
    for dag in dags_of(page):
        made = runner.run(dag)
        for name, tables in made.items():
            assert tables[0].num_rows or name == "check", f"{name} gave nothing"
