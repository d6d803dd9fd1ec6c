"""Reorganisations on a real stack, of tables that a follower writes and of live datasets: through decoding, windows of
blocks and of time, running state and a check to a buffered table. In the end everything is what another DAG computes
from scratch, row by row, and each reorganisation has run what it changed once, and nothing else."""

import re
from collections import Counter
from typing import Any

import pytest

from tests.stack.reorg_dag import FILES, SOURCES, write_dag
from tests.support.chain import ServedChain, serve_chain
from tests.support.real_stack import SHORT_TIMES, RealStack

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]

FIRST, BEGIN, FORK, BEFORE, LAST = 930, 965, 963, 973, 995
"""First block, newest block at the beginning, first block that is replaced, newest blocks then and at the end."""
FORMER_TIMES = {955: -600, 956: 600, 965: -140, 966: 140, 970: 3000}
"""Seconds by which blocks are later from these on: 955 and 965 are older than their parents, and 970 is an hour on."""
LATER_TIMES = {965: 140, 966: -140, 968: -70, 969: 70, 970: -3000, 972: 3000, 973: -170, 974: 170}
"""What the reorganisation changes: 968 and 973 are now older instead of 965; 970 and 971 are an hour back."""
HOUR, DAY = 3600, 86_400
UNSETTLED = """
    SELECT EXISTS (SELECT FROM tasks WHERE finished_at IS NULL AND unit_end IS NOT NULL)
        OR EXISTS (SELECT FROM pending_units WHERE due OR waits_for IS NOT NULL)
        OR NOT EXISTS (SELECT FROM events v JOIN datasets d USING (dataset_uuid)
                       WHERE d.name = $1 AND coalesce(v.cursor, v.range_end) = $2
                         AND ($3 OR v.invalidates IS NOT NULL)) AS unsettled"""
COUNTS = """
    SELECT j.name, t.unit_key, count(*) AS n FROM tasks t JOIN jobs j USING (job_id)
    WHERE j.dag_name = $1 AND t.unit_end IS NOT NULL GROUP BY 1, 2"""
BOUNDARIES = """
    SELECT d.name, b.boundary FROM live_boundaries b JOIN datasets d USING (dataset_uuid) ORDER BY 1"""


class ReorgStack(RealStack):
    def ask(self, sql: str) -> list[list[Any]]:
        rows: list[list[Any]] = self.trace(f'query "{sql}"')["rows"]
        return rows

    def settle(self, *dags: str, at: int, reorganised: bool = False) -> None:
        """Until nothing is left to do, with an event that ends at this block (`reorganised`: of a replaced range)."""
        for dag in dags:
            self.wait_until(
                lambda dag=dag: not self.sql(UNSETTLED, f"{dag}_logs", at, not reorganised)[0]["unsettled"],  # type: ignore[misc]
                f"{dag} at {at}",
                timeout=300,
            )

    def await_boundary(self, boundary: int) -> None:
        """Until the files of all live datasets end there."""
        expected = sorted((f"live_{name}", boundary) for name in SOURCES)
        self.wait_until(lambda: [tuple(row) for row in self.sql(BOUNDARIES)] == expected, f"files up to {boundary}")

    def count_tasks(self, dag: str) -> Counter[tuple[str, str]]:
        return Counter({(row["name"], row["unit_key"]): row["n"] for row in self.sql(COUNTS, dag)})

    def findings(self, dag: str) -> list[int]:
        """Blocks that are older than their parents."""
        query = f"SELECT block_number FROM {dag}_findings WHERE detail LIKE '%older%' ORDER BY 1"
        return [number for (number,) in self.ask(query)]

    def differing(self, dag: str, dataset: str) -> list[list[Any]]:
        """Rows that one DAG has and the rebuild has not, or the other way round."""
        one, other = f"(SELECT * FROM {dag}_{dataset})", f"(SELECT * FROM again_{dataset})"
        return self.ask(f"({one} EXCEPT ALL {other}) UNION ALL ({other} EXCEPT ALL {one})")


def window(start: int, size: int) -> str:
    return f"p:{start}-{start + size - 1}"


def hour(number: int) -> str:
    return window(number * HOUR, HOUR)


CHANGED = {
    "tens": {window(960, 10)},
    "totals": {window(960, 10)},
    "hold_together": {window(960, 10), window(970, 10)},
    "hours": {hour(492_360), hour(492_361)},
    "so_far": {hour(492_360), hour(492_361)},
    "days": {window(20_515 * DAY, DAY)},
}
"""Units that the reorganisation changes, by job. Units of complete windows wait for the end of 970-979."""
UPDATES = ("decode", "moves")
"""Their units are the writes of the follower, or windows of ten blocks."""
DAGS = ("tables", "live")


def find_units(tasks: Counter[tuple[str, str]], job: str) -> set[str]:
    """The units of the job that have blocks from the fork on: `c:LAST` or `p:FIRST-LAST`."""
    return {unit for name, unit in tasks if name == job and int(re.split("[:-]", unit)[-1]) >= FORK}


@pytest.fixture
def chain() -> Any:
    with serve_chain(LAST + 1, head=BEGIN + 1) as chain:
        chain.reorganise(FIRST, changed=0, later=FORMER_TIMES)
        yield chain


def test_a_reorganisation_goes_through_all_dependants(chain: ServedChain) -> None:
    settings = SHORT_TIMES | {"query_service": "true", "spark_master": "local[2]", "lease_seconds": "30"}
    stack = ReorgStack(settings=settings, variables={"TRACE_RPC_DEFAULT": chain.url})
    with stack.running():
        for dag in DAGS:
            stack.deploy(dag, write_dag(dag, FIRST, live=dag == "live"))
        stack.settle(*DAGS, at=BEGIN)
        stack.await_boundary(949)
        chain.show(BEFORE + 1)
        stack.settle(*DAGS, at=BEFORE)
        stack.await_boundary(959)  # blocks 950 to 959 were in the table
        former = {dag: stack.count_tasks(dag) for dag in DAGS}
        for dag in DAGS:
            assert stack.findings(dag) == [955, 965]

        chain.reorganise(FORK, later=LATER_TIMES)
        stack.settle(*DAGS, at=BEFORE, reorganised=True)
        for dag in DAGS:
            changed = CHANGED | {job: find_units(former[dag], job) for job in UPDATES}
            once = {(job, unit): 1 for job, units in changed.items() for unit in units}
            assert dict(stack.count_tasks(dag) - former[dag]) == once, dag
            for job, units in changed.items():
                assert units, job
                assert {unit for name, unit in former[dag] if name == job} > units, f"{job} has others as well"
            assert stack.findings(dag) == [955, 968, 973]

        chain.show(LAST + 1)
        stack.settle(*DAGS, at=LAST)
        stack.await_boundary(979)  # files of blocks that the reorganisation replaced
        stack.deploy("again", write_dag("again", FIRST, live=False))
        stack.settle("again", at=LAST)
        for dag in DAGS:
            for dataset in (*SOURCES, *FILES):
                assert stack.differing(dag, dataset) == [], (dag, dataset)
            stack.wait_until(
                lambda dag=dag: stack.differing(dag, "moves") == [],  # type: ignore[misc]
                "the buffered table",
                timeout=60,
            )
        counts = ", ".join(f"(SELECT count(*) FROM again_{name})" for name in (*SOURCES, *FILES, "moves"))
        assert all(count > 0 for count in stack.ask(f"SELECT {counts}")[0]), "nothing is compared with nothing"
        assert stack.ask("SELECT max(block_number) >= 963 FROM again_moves") == [[True]]
